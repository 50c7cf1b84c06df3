//! What came of a reconciliation.

use std::time::Duration;

use portolan_dataplane::DataplaneError;
use portolan_model::{Families, Family, RecordKey};
use portolan_plan::Step;

/// What one reconciliation did.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// How many kernel objects it changed or tried to.
    pub objects: usize,
    /// How long it took.
    pub duration: Duration,
    /// What did not work, with the record it belongs to where it belongs to one.
    pub errors: Vec<(Option<RecordKey>, String)>,
    /// The families for which nothing can be relied on: the kernel could not be read, what all
    /// virtual servers need could not be written, or no virtual server at all was taken.
    pub broken: Families,
    /// Whether the same may work at another attempt.
    pub again: bool,
}

impl Outcome {
    /// That of a kernel that cannot be read.
    #[must_use]
    pub fn unreadable(error: &DataplaneError) -> Self {
        Self {
            errors: vec![(None, format!("the kernel cannot be read: {error}"))],
            broken: Family::ALL.into_iter().collect(),
            again: true,
            ..Self::default()
        }
    }
}

/// How much there is in the kernel, foreign objects included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Virtual servers.
    pub virtual_servers: usize,
    /// Real servers of all of them.
    pub real_servers: usize,
}

/// The family for which nothing can be relied on after such a step has failed.
pub(crate) fn breaks(step: &Step) -> Option<Family> {
    match step {
        Step::CreateSet { header, .. } => Some(header.family),
        Step::ReplaceSet { set, .. } => Some(set.header.family),
        Step::WriteRules { family, .. } => Some(*family),
        _ => None,
    }
}
