// SPDX-License-Identifier: Apache-2.0

//! Counts of the table's source, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan_subscription::StreamStats;
use prometheus_client::metrics::histogram::Histogram;

use super::latency::histogram;

/// Updated by [`run`](super::run), read by metrics.
#[derive(Debug)]
pub struct Stats {
    /// The stream.
    pub stream: Arc<StreamStats>,
    /// Number of records of the table in force that are refused, or taken in part. A gauge.
    pub refused_records: AtomicU64,
    /// Times that the table was written to disk.
    pub table_writes: AtomicU64,
    /// Times that it could not be.
    pub table_write_failures: AtomicU64,
    /// Files of tables that were of no use when the agent started.
    pub table_files_set_aside: AtomicU64,
    /// Attempts to read the table from disk that failed.
    pub table_read_failures: AtomicU64,
    /// From the trigger of a change until the kernel had it, in seconds: kube-proxy's
    /// `network_programming_duration_seconds`. Changes in a snapshot do not count.
    pub network_programming: Histogram,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            stream: Arc::default(),
            refused_records: AtomicU64::default(),
            table_writes: AtomicU64::default(),
            table_write_failures: AtomicU64::default(),
            table_files_set_aside: AtomicU64::default(),
            table_read_failures: AtomicU64::default(),
            network_programming: histogram(),
        }
    }
}

impl Stats {
    /// Adds one.
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets a gauge.
    pub(super) fn set(gauge: &AtomicU64, value: usize) {
        gauge.store(value as u64, Ordering::Relaxed);
    }
}
