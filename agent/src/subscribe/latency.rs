// SPDX-License-Identifier: Apache-2.0

//! The time from the trigger of a change until the kernel has it.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::histogram::Histogram;

use super::{Committed, Report};

/// The number of changes that may wait to be programmed. A kernel that refuses all of them is reported
/// elsewhere.
const MAX_WAITING: usize = 1_024;

/// An empty `kubeproxy_network_programming_duration_seconds`, with kube-proxy's buckets: 0.25 and
/// 0.5 s, each second to a minute, every 5 s to two minutes, every 30 s to five.
pub(super) fn histogram() -> Histogram {
    let seconds = (1..60).chain((60..120).step_by(5));
    let seconds = seconds.chain((120..=300).step_by(30)).map(f64::from);
    Histogram::new([0.25, 0.5].into_iter().chain(seconds))
}

/// The changes of one stream that the kernel does not have yet.
#[derive(Debug, Default)]
pub(super) struct Latency {
    epoch: u64,
    /// In order of their revisions, with when they were triggered, in milliseconds of Unix time.
    waiting: VecDeque<(u64, Vec<u64>)>,
}

impl Latency {
    /// Records a received change.
    pub(super) fn committed(&mut self, committed: &Committed) {
        self.epoch = committed.epoch;
        if committed.snapshot || committed.trigger_times_ms.is_empty() {
            return;
        }
        let change = (committed.revision, committed.trigger_times_ms.clone());
        self.waiting.push_back(change);
        if self.waiting.len() > MAX_WAITING {
            self.waiting.pop_front();
        }
    }

    /// Records that the kernel has a table. Returns the latency of each change up to that table.
    pub(super) fn reported(&mut self, report: &Report, now: SystemTime) -> Vec<Duration> {
        if report.epoch != self.epoch {
            return Vec::new();
        }
        let passed = self
            .waiting
            .partition_point(|(revision, _)| *revision <= report.revision);
        let triggers = self
            .waiting
            .drain(..passed)
            .flat_map(|(_, triggers)| triggers);
        let since = |ms| {
            let triggered = UNIX_EPOCH.checked_add(Duration::from_millis(ms));
            // The clocks of two machines differ: a time in the future counts as now.
            triggered.and_then(|at| now.duration_since(at).ok())
        };
        triggers.map(|ms| since(ms).unwrap_or_default()).collect()
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::SetHash;

    use super::*;

    fn committed(revision: u64, snapshot: bool, trigger_times_ms: &[u64]) -> Committed {
        Committed {
            epoch: 1,
            revision,
            snapshot,
            table: Default::default(),
            records_hash: SetHash(0),
            own_hash: SetHash(0),
            trigger_times_ms: trigger_times_ms.to_vec(),
            refused: vec![],
        }
    }

    fn report(epoch: u64, revision: u64) -> Report {
        Report {
            epoch,
            revision,
            duration: Duration::ZERO,
            errors: vec![],
            checked: 0,
        }
    }

    #[test]
    fn changes_are_measured_once() {
        let now = UNIX_EPOCH + Duration::from_millis(5_000);
        let mut latency = Latency::default();
        latency.committed(&committed(1, true, &[1]));
        latency.committed(&committed(2, false, &[4_000, 4_500]));
        latency.committed(&committed(3, false, &[9_000]));
        latency.committed(&committed(4, false, &[4_999]));
        assert!(latency.reported(&report(9, 4), now).is_empty());
        assert!(latency.reported(&report(1, 1), now).is_empty());
        let ms = Duration::from_millis;
        // One trigger is in the future.
        let expected = [ms(1_000), ms(500), ms(0)];
        assert_eq!(latency.reported(&report(1, 3), now), expected);
        assert!(latency.reported(&report(1, 3), now).is_empty());
        assert_eq!(latency.reported(&report(1, 7), now), [ms(1)]);
    }

    #[test]
    fn waiting_changes_are_bounded() {
        let mut latency = Latency::default();
        for revision in 1..10_000 {
            latency.committed(&committed(revision, false, &[1]));
        }
        assert_eq!(latency.waiting.len(), MAX_WAITING);
    }

    #[test]
    fn the_buckets_are_kube_proxys() {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register("x", "x", histogram());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let bounds = text.lines().filter(|line| line.contains("le=")).count();
        assert_eq!(bounds, 2 + 59 + 12 + 7 + 1);
        for bound in [
            "0.25", "0.5", "1.0", "59.0", "60.0", "115.0", "120.0", "300.0", "+Inf",
        ] {
            assert!(text.contains(&format!("le=\"{bound}\"")), "{bound}");
        }
    }
}
