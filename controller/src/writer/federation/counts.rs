// SPDX-License-Identifier: Apache-2.0

//! Counts for the metrics of clusters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use portolan_select::Pipeline;

use super::Federated;

impl Federated {
    /// Counts exports and imports, if the plan has changed.
    pub(super) fn count_exports(&self, pipeline: &mut Pipeline) {
        if let Some(counts) = pipeline.changed_counts() {
            self.states.lock().counts = counts;
        }
    }

    /// Notes the number of problems of the policy.
    pub(in crate::writer) fn count_problems(&self, problems: usize) {
        self.states.lock().policy_problems = problems;
    }

    /// Counts changes that the source of a cluster sent.
    pub(in crate::writer) fn count_changes(&self, cluster: &Arc<str>, changes: usize) {
        let changes = u64::try_from(changes).unwrap_or(u64::MAX);
        let mut states = self.states.lock();
        if let Some(count) = states.changes.get_mut(cluster) {
            *count = count.saturating_add(changes);
        } else {
            states.changes.insert(Arc::clone(cluster), changes);
        }
    }

    /// Forgets the count of a cluster that has left.
    pub(in crate::writer) fn forget_changes(&self, cluster: &str) {
        self.states.lock().changes.remove(cluster);
    }

    /// Notes the numbers of events that wait, by the cluster whose source sent them.
    pub(in crate::writer) fn count_queues(&self, queues: BTreeMap<Arc<str>, usize>) {
        self.states.lock().queues = queues;
    }

    /// Notes the time that a flush has taken until imports were planned. Without clusters of a policy it plans nothing.
    pub(in crate::writer) fn planned(&self, took: Duration) {
        if self.is_on() {
            self.states.lock().planning.note(took);
        }
    }
}
