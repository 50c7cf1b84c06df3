//! What a relay counts, for metrics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Grown by [`run`](crate::run), read by whoever likes.
#[derive(Debug, Default)]
pub struct Stats {
    /// Whether there is a stream now.
    pub connected: AtomicBool,
    /// Streams that were opened; all but the first are reconnects.
    pub streams: AtomicU64,
    /// Attempts that came to no stream.
    pub connect_failures: AtomicU64,
    /// Transitions that came whole.
    pub commits: AtomicU64,
    /// Those of them that were snapshots.
    pub snapshots: AtomicU64,
    /// Transitions that were dropped because they did not fit their hashes, or could not be read:
    /// each is a fault of one of the two sides.
    pub mismatches: AtomicU64,
    /// Records and lists that cannot be passed on. Goes up and down.
    pub left_out: AtomicU64,
    /// How many records the tables that are held now would delete; 0 if none are. Goes up and down.
    pub deletions_held: AtomicU64,
}

impl Stats {
    /// One more.
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// So many now.
    pub(crate) fn set(gauge: &AtomicU64, value: usize) {
        gauge.store(value as u64, Ordering::Relaxed);
    }
}
