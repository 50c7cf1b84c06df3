// SPDX-License-Identifier: Apache-2.0

//! Counts of readings, as metrics.

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Counts of readings, and the time of the last one without a problem.
#[derive(Debug, Clone, Default)]
pub struct ReadCounts {
    reload: Family<ResultLabel, Counter>,
    last_success: Gauge<f64, AtomicU64>,
}

/// The result of a reading.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl ResultLabel {
    fn of(is_good: bool) -> Self {
        let result = if is_good { "success" } else { "failure" };
        Self { result }
    }
}

impl ReadCounts {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        // Prometheus sees no growth in a counter that appears with 1.
        for is_good in [true, false] {
            let label = ResultLabel::of(is_good);
            self.reload.get_or_create(&label).inc_by(0);
        }
        registry.register(
            "reload",
            "Readings of the files that found a change or were asked for, by result: failure if a part is unusable",
            self.reload.clone(),
        );
        registry.register(
            "config_last_success_timestamp_seconds",
            "Time of the last reading of the files without a failure, in seconds of Unix time; 0 before the first",
            self.last_success.clone(),
        );
    }

    /// Notes a reading. `is_news` if it found a change, or was asked for.
    pub(super) fn note(&self, is_good: bool, is_news: bool) {
        if is_news {
            self.reload.get_or_create(&ResultLabel::of(is_good)).inc();
        }
        if is_good {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            self.last_success.set(now.unwrap_or_default().as_secs_f64());
        }
    }
}
