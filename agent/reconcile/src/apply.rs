// SPDX-License-Identifier: Apache-2.0

//! Application of steps, and the state of the kernel after them.

use std::collections::BTreeSet;
use std::time::Instant;

use portolan_dataplane::{Dataplane, Doubt, HoldReason, StepError, StepErrorKind};
use portolan_model::RecordKey;
use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::VirtualServerKey;
use portolan_plan::{KernelState, Step};

use crate::Reconciler;
use crate::failed::RecordError;
use crate::trash::deleted_by;

/// Missing entries of a set that are traced to their records: enough to see the reason, and cheap for a
/// set that is missing as a whole.
const EXPLAINED: usize = 64;

/// Observed state before a reconciliation, the steps that the kernel executed, and the changed virtual
/// servers. Merging takes as long as programming, and is left to the time after the report.
#[derive(Debug)]
pub(crate) struct PendingMerge {
    pub(crate) observed: KernelState,
    pub(crate) steps: Vec<Step>,
    pub(crate) touched: BTreeSet<VirtualServerKey>,
}

impl PendingMerge {
    /// Leaves failed steps out, but for the part that the kernel executed.
    pub(crate) fn new(
        mut observed: KernelState,
        steps: Vec<Step>,
        errors: &[StepError],
        touched: BTreeSet<VirtualServerKey>,
    ) -> Self {
        let mut failed = errors.iter().peekable();
        // The vector is reused: it is large after the first reconciliation.
        let steps = steps.into_iter().enumerate().filter_map(|(index, step)| {
            let Some(error) = failed.next_if(|error| error.index == index) else {
                return Some(step);
            };
            if let Step::WriteRules { family, .. } = &step {
                // Some of them may have been written.
                observed.rules.remove(family);
            }
            error.done.clone()
        });
        let steps = steps.collect();
        Self {
            observed,
            steps,
            touched,
        }
    }
}

impl<D: Dataplane> Reconciler<D> {
    /// Applies steps.
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

    /// Returns `true` if the state of the kernel is certain after errors. An answer that
    /// contradicts the observed state means that it was wrong, unless the kernel was read right
    /// before: then the step cannot work.
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

    /// The error of each record that a failed step concerns.
    pub(crate) fn explain(&self, steps: &[Step], error: &StepError) -> Vec<RecordError> {
        // The error of the virtual server says it all.
        if error.kind == StepErrorKind::Held(HoldReason::ServerMissing) {
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
        // Hairpin endpoints and health check ports belong to records, and are found by virtual servers,
        // which may be another record's: then all records are retried.
        let is_indirect =
            |entry: &SetEntry| matches!(entry, SetEntry::IpPortIp(..) | SetEntry::Port(_));
        // A surplus entry belongs to no desired record: the record that has its address now does not name it.
        let is_deletion = matches!(step, Step::DelEntries { .. });
        let is_traced = error.entries.len() <= EXPLAINED
            && !is_deletion
            && !error.entries.iter().any(is_indirect);
        if explained.is_empty() || !is_traced {
            explained.push((None, message));
        }
        explained
    }
}
