//! What the subscription counts, for metrics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use prometheus_client::metrics::histogram::Histogram;

use super::latency::histogram;

/// Grown by [`run`](super::run), read by whoever likes.
#[derive(Debug)]
pub struct Stats {
    /// Whether there is a stream now.
    pub connected: AtomicBool,
    /// Streams that were opened; all but the first are reconnects.
    pub streams: AtomicU64,
    /// Attempts that came to no stream.
    pub connect_failures: AtomicU64,
    /// Attempts and streams that ended because the controller is of another cluster.
    pub wrong_cluster: AtomicU64,
    /// Tables committed.
    pub commits: AtomicU64,
    /// Those of them that were snapshots.
    pub snapshots: AtomicU64,
    /// Commits that were dropped because the table had another hash than the controller's: each
    /// is a fault in one of the two.
    pub hash_mismatches: AtomicU64,
    /// How many records of the table in force are refused, or taken in part. Goes up and down.
    pub refused_records: AtomicU64,
    /// Tables that were held back because they would have deleted too much.
    pub tables_held: AtomicU64,
    /// How many records the table that is held now would delete; 0 if none is. Goes up and down.
    pub deletions_held: AtomicU64,
    /// Times that the table was written to disk.
    pub table_writes: AtomicU64,
    /// Times that it could not be.
    pub table_write_failures: AtomicU64,
    /// Files of tables that made no sense when the agent started.
    pub table_files_set_aside: AtomicU64,
    /// Frames of a kind that this version does not know.
    pub unknown_frames: AtomicU64,
    /// From what triggered a change until the kernel had it, in seconds: kube-proxy's
    /// `network_programming_duration_seconds`. Changes in a snapshot do not count.
    pub network_programming: Histogram,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            connected: AtomicBool::default(),
            streams: AtomicU64::default(),
            connect_failures: AtomicU64::default(),
            wrong_cluster: AtomicU64::default(),
            commits: AtomicU64::default(),
            snapshots: AtomicU64::default(),
            hash_mismatches: AtomicU64::default(),
            refused_records: AtomicU64::default(),
            tables_held: AtomicU64::default(),
            deletions_held: AtomicU64::default(),
            table_writes: AtomicU64::default(),
            table_write_failures: AtomicU64::default(),
            table_files_set_aside: AtomicU64::default(),
            unknown_frames: AtomicU64::default(),
            network_programming: histogram(),
        }
    }
}

impl Stats {
    /// One more.
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// So many now.
    pub(super) fn set(gauge: &AtomicU64, value: usize) {
        gauge.store(value as u64, Ordering::Relaxed);
    }
}
