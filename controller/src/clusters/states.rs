// SPDX-License-Identifier: Apache-2.0

//! The states of clusters as metrics and dumps show them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan_federate::state::Status;
use portolan_runtime::HistogramValues;
use portolan_select::FederationCounts;
use prometheus_client::metrics::histogram::exponential_buckets;

/// Number of buckets of [`Durations`], the last one without a bound.
const BUCKETS: usize = 17;

/// The states of clusters, shared with metrics and dumps.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterStates(Arc<Mutex<States>>);

/// The states of clusters.
#[derive(Debug, Default)]
pub(crate) struct States {
    /// By the name of the cluster.
    pub(crate) statuses: BTreeMap<Arc<str>, Status>,
    /// Whether so many clusters are stale that none is lost.
    pub(crate) preserving: bool,
    /// The number of gateways' addresses that take connections, by the name of each cluster that has gateways.
    pub(crate) gateways: BTreeMap<Arc<str>, usize>,
    /// Number of restarts of the source of a cluster after a panic, by its name.
    pub(crate) restarts: BTreeMap<Arc<str>, u64>,
    /// Numbers of exports and imports, as of the last flush.
    pub(crate) counts: FederationCounts,
    /// Reasons and messages of the Clusters that the policy has and that are not in force as it has them, by name.
    pub(crate) refused: BTreeMap<String, (String, String)>,
    /// Number of problems of the policy.
    pub(crate) policy_problems: usize,
    /// Number of changes of objects that the source of a cluster has sent, by its name.
    pub(crate) changes: BTreeMap<Arc<str>, u64>,
    /// Number of events of the source of a cluster that wait for the writer, by its name.
    pub(crate) queues: BTreeMap<Arc<str>, usize>,
    /// Times in which the imports were planned.
    pub(crate) planning: Durations,
}

/// Durations as a histogram has them.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    sum: Duration,
    /// Of each bucket alone.
    counts: [u64; BUCKETS],
}

impl Durations {
    /// Notes one more.
    pub(crate) fn note(&mut self, took: Duration) {
        self.sum += took;
        let seconds = took.as_secs_f64();
        let mut buckets = bounds().zip(&mut self.counts);
        if let Some((_, count)) = buckets.find(|(bound, _)| seconds <= *bound) {
            *count += 1;
        }
    }

    /// The histogram in seconds.
    pub(crate) fn values(&self) -> HistogramValues {
        HistogramValues {
            sum: self.sum.as_secs_f64(),
            buckets: bounds().zip(self.counts).collect(),
        }
    }
}

/// The upper bounds of the buckets in seconds: 0.1 ms, and each twice the last one.
fn bounds() -> impl Iterator<Item = f64> {
    let finite = exponential_buckets(0.000_1, 2.0, 16);
    finite.chain([f64::INFINITY])
}

impl ClusterStates {
    pub(crate) fn lock(&self) -> MutexGuard<'_, States> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_first_bucket_that_holds_it() {
        let mut durations = Durations::default();
        for micros in [100, 101, 200, 3_600_000_000] {
            durations.note(Duration::from_micros(micros));
        }
        let values = durations.values();
        assert_eq!(values.buckets.len(), BUCKETS);
        let filled = values.buckets.iter().filter(|(_, count)| *count > 0);
        let filled: Vec<_> = filled.copied().collect();
        assert_eq!(filled, [(0.000_1, 1), (0.000_2, 2), (f64::INFINITY, 1)]);
        assert!(values.sum > 3600.0, "{}", values.sum);
    }
}
