// SPDX-License-Identifier: Apache-2.0

//! Counts of the engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portolan_health::Outcome;
use portolan_model::check::Probe;

/// Upper bounds of the buckets of [`Histogram`], in milliseconds; the last bucket has none.
pub const BUCKETS: [u64; 11] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000];

/// Histogram of times: a count for each of [`BUCKETS`], and one for longer times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Times of each bucket alone, smaller ones not included.
    pub buckets: [u64; BUCKETS.len() + 1],
    /// Sum of all times.
    pub sum: Duration,
}

impl Histogram {
    fn note(&mut self, time: Duration) {
        let within = |bound: &u64| time <= Duration::from_millis(*bound);
        let bucket = BUCKETS.iter().position(within).unwrap_or(BUCKETS.len());
        self.buckets[bucket] += 1;
        self.sum += time;
    }

    /// Number of times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// Result of a probe, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResultKind {
    /// It passed.
    Pass,
    /// It failed.
    Fail,
    /// The fault was this machine's.
    NoVerdict,
    /// The backend gave its word, or no news.
    Word,
}

impl ResultKind {
    /// The value of the label `result`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NoVerdict => "no_verdict",
            Self::Word => "word",
        }
    }
}

impl From<&Outcome> for ResultKind {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Pass { .. } => Self::Pass,
            Outcome::Fail(_) => Self::Fail,
            Outcome::NoVerdict(_) => Self::NoVerdict,
            Outcome::Word(_) => Self::Word,
        }
    }
}

/// The value of the label `kind`.
#[must_use]
pub fn kind(probe: &Probe) -> &'static str {
    match probe {
        Probe::Tcp(_) => "tcp",
        Probe::Tls(_) => "tls",
        Probe::Http(_) => "http",
        Probe::Udp(_) => "udp",
        Probe::Dns(_) => "dns",
        Probe::Grpc(_) => "grpc",
        Probe::Icmp => "icmp",
        Probe::Exec(_) => "exec",
        Probe::Agent(_) => "agent",
        Probe::File(_) => "file",
    }
}

/// Counts of the engine since it started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Probes by kind and result. A probe that several load balancers share counts once.
    pub checks: BTreeMap<(&'static str, ResultKind), u64>,
    /// Durations of probes by kind.
    pub durations: BTreeMap<&'static str, Histogram>,
    /// Delays of probes: from the time at which one was due to its start.
    pub lateness: Histogram,
    /// Times at which a backend came up.
    pub rises: u64,
    /// Times at which a backend went down.
    pub falls: u64,
    /// Probes that run now.
    pub running: u64,
}

/// Counts that the engine and the metrics share.
#[derive(Debug, Clone, Default)]
pub(super) struct Shared(Arc<Mutex<Counts>>);

impl Shared {
    pub(super) fn read(&self) -> Counts {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn write(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn started(&self, late: Duration) {
        self.write(|counts| {
            counts.lateness.note(late);
            counts.running += 1;
        });
    }

    pub(super) fn ended(&self, probe: &Probe, outcome: &Outcome, took: Duration) {
        let kind = kind(probe);
        self.write(|counts| {
            *counts.checks.entry((kind, outcome.into())).or_default() += 1;
            counts.durations.entry(kind).or_default().note(took);
            counts.running -= 1;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_one_bucket() {
        let mut histogram = Histogram::default();
        for millis in [0, 1, 2, 5_000, 5_001] {
            histogram.note(Duration::from_millis(millis));
        }
        assert_eq!(histogram.buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((histogram.count(), histogram.sum.as_millis()), (5, 10_004));
    }
}
