// SPDX-License-Identifier: Apache-2.0

//! Outcome of a reconciliation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use portolan_dataplane::DataplaneError;
use portolan_model::{Families, Family, RecordKey};
use portolan_plan::Step;

/// Outcome of one reconciliation.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Number of changed kernel objects, failed attempts included.
    pub objects: usize,
    /// Its duration.
    pub duration: Duration,
    /// The part of it before the first change was handed to the kernel; zero if that is not told apart.
    pub planned_in: Duration,
    /// Errors, each with its record if it belongs to one.
    pub errors: Vec<(Option<RecordKey>, String)>,
    /// Families that cannot be relied on: the kernel could not be read, rules or sets could not be
    /// written, or the kernel refused every virtual server.
    pub broken: Families,
    /// Presence of failures that a later attempt may mend.
    pub again: bool,
    /// Number of objects that another program had changed or deleted since the last reconciliation.
    /// They were found by reading the kernel; repairs that failed are included.
    pub repaired: usize,
    /// Whether the whole table was compared with the kernel, not only changed records.
    pub is_full: bool,
    /// Number of written iptables rules, by iptables table.
    pub rules_written: BTreeMap<String, usize>,
    /// Number of families whose iptables rules could not be written.
    pub rule_failures: usize,
}

impl Outcome {
    /// Outcome for a kernel that cannot be read.
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

/// Numbers of objects in the kernel, foreign ones included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Virtual servers.
    pub virtual_servers: usize,
    /// Real servers of all of them.
    pub real_servers: usize,
}

/// Numbers of iptables rules that steps have written, by table, and of families that failed.
pub(crate) fn written_rules(
    steps: &[Step],
    failed: &BTreeSet<usize>,
) -> (BTreeMap<String, usize>, usize) {
    let (mut written, mut failures) = (BTreeMap::new(), 0);
    for (index, step) in steps.iter().enumerate() {
        match step {
            Step::WriteRules { .. } if failed.contains(&index) => failures += 1,
            Step::WriteRules { rules, .. } => {
                for (table, count) in rules.count_by_table() {
                    *written.entry(table).or_default() += count;
                }
            }
            _ => {}
        }
    }
    (written, failures)
}

/// The family that cannot be relied on after a step has failed.
pub(crate) fn breaks(step: &Step) -> Option<Family> {
    match step {
        Step::CreateSet { header, .. } => Some(header.family),
        Step::ReplaceSet { set, .. } => Some(set.header.family),
        Step::WriteRules { family, .. } => Some(*family),
        _ => None,
    }
}
