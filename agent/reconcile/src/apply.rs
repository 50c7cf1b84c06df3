//! Steps that are taken, and what is known of the kernel after them.

use std::collections::BTreeSet;
use std::time::Instant;

use portolan_dataplane::{Dataplane, Doubt, HELD_WITH_SERVER, StepError};
use portolan_model::RecordKey;
use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::VirtualServerKey;
use portolan_plan::{KernelState, Step};

use crate::Reconciler;
use crate::failed::RecordError;
use crate::trash::deleted_by;

/// Of how many missing entries of a set the records are looked for: enough to see what is wrong,
/// and not too dear for a set that is missing as a whole.
const EXPLAINED: usize = 64;

/// What was known of the kernel, the steps that it took since, and the virtual servers that changed.
/// To put them together takes as long as to program them, and whoever waits need not wait for it.
#[derive(Debug)]
pub(crate) struct PendingMerge {
    pub(crate) observed: KernelState,
    pub(crate) steps: Vec<Step>,
    pub(crate) touched: BTreeSet<VirtualServerKey>,
}

impl PendingMerge {
    /// Of steps of which some failed.
    pub(crate) fn new(
        mut observed: KernelState,
        steps: Vec<Step>,
        errors: &[StepError],
        touched: BTreeSet<VirtualServerKey>,
    ) -> Self {
        let mut failed = errors.iter().peekable();
        let mut taken = Vec::with_capacity(steps.len());
        for (index, step) in steps.into_iter().enumerate() {
            match failed.next_if(|error| error.index == index) {
                None => taken.push(step),
                Some(error) => {
                    if let Step::WriteRules { family, .. } = &step {
                        // Some of them may have been written.
                        observed.rules.remove(family);
                    }
                    taken.extend(error.done.clone());
                }
            }
        }
        Self {
            observed,
            steps: taken,
            touched,
        }
    }
}

impl<D: Dataplane> Reconciler<D> {
    /// Takes steps.
    pub(crate) async fn apply(&mut self, steps: &[Step], observed: &KernelState) -> Vec<StepError> {
        if steps.is_empty() {
            return Vec::new();
        }
        for step in steps {
            tracing::debug!(%step, "step");
        }
        let errors = self.dataplane.apply(steps).await;
        let deleted = steps.iter().map(|step| deleted_by(step, observed)).sum();
        self.trash.add(deleted, Instant::now());
        errors
    }

    /// Whether it is known what the kernel holds after errors. An answer that contradicts what was
    /// known says that it was wrong, unless the kernel was read right before: then it is the step that
    /// cannot work.
    pub(crate) fn is_state_certain(
        &self,
        steps: &[Step],
        errors: &[StepError],
        is_fresh: bool,
    ) -> bool {
        errors.iter().all(|error| match error.doubt {
            Doubt::None => true,
            Doubt::Stale => {
                let is_stubborn =
                    |(record, _): &RecordError| self.failed.is_stubborn(record.as_ref());
                is_fresh || self.explain(steps, error).iter().all(is_stubborn)
            }
            Doubt::Lost => false,
        })
    }

    /// What went wrong, once for each record that it concerns.
    pub(crate) fn explain(&self, steps: &[Step], error: &StepError) -> Vec<RecordError> {
        if error.message == HELD_WITH_SERVER {
            return Vec::new();
        }
        let Some(step) = steps.get(error.index) else {
            return vec![(None, error.message.clone())];
        };
        let route = match step {
            Step::AddRoute { vip, .. } | Step::SetRoute { vip, .. } => Some(SetEntry::Ip(*vip)),
            _ => None,
        };
        let records: BTreeSet<RecordKey> = self.desired.read(|desired| {
            let of_server = step
                .virtual_server()
                .and_then(|key| Some(&desired.records.get(key)?.key));
            let missing = error.entries.iter().take(EXPLAINED).chain(&route);
            let of_entries = missing.flat_map(|entry| desired.records_of(entry));
            of_server.into_iter().chain(of_entries).cloned().collect()
        });
        let message = format!("{step}: {}", error.message);
        let records = records.into_iter().map(Some);
        let mut explained: Vec<RecordError> =
            records.map(|record| (record, message.clone())).collect();
        if explained.is_empty() || error.entries.len() > EXPLAINED {
            explained.push((None, message));
        }
        explained
    }
}
