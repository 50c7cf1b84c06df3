// SPDX-License-Identifier: Apache-2.0

//! Writes of the table to disk: soon after it changed, but not at every change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{debug, warn};

use super::store::Store;
use super::{Saved, Stats};

/// The time for which changes are gathered.
const GATHER: Duration = Duration::from_secs(3);

/// The pause after a failed write, unless the table changes before.
const RETRY: Duration = Duration::from_secs(60);

/// Writes tables, one at a time, in the background.
#[derive(Debug)]
pub(crate) struct Saver {
    /// `None` if tables are not kept.
    store: Option<Arc<Store>>,
    stats: Arc<Stats>,
    due: Option<Instant>,
    /// Start of the last write.
    begun: Option<Instant>,
    writing: Option<JoinHandle<()>>,
    /// Whether the last write failed.
    failed: Arc<AtomicBool>,
}

impl Saver {
    pub(crate) fn new(store: Option<Arc<Store>>, stats: Arc<Stats>) -> Self {
        Self {
            store,
            stats,
            due: None,
            begun: None,
            writing: None,
            failed: Arc::default(),
        }
    }

    pub(crate) fn store(&self) -> Option<Arc<Store>> {
        self.store.clone()
    }

    /// Records a change of the table.
    pub(crate) fn changed(&mut self, now: Instant) {
        if self.store.is_some() {
            self.due.get_or_insert(now + GATHER);
        }
    }

    /// Time of the next write, if the table has changed or the last write failed.
    pub(crate) fn due(&self) -> Option<Instant> {
        let retry = || self.begun.map(|begun| begun + RETRY);
        let has_failed = self.failed.load(Ordering::Relaxed);
        self.due.or_else(|| has_failed.then(retry).flatten())
    }

    /// Begins to write the table; puts it off while the last one is being written.
    pub(crate) fn begin(&mut self, table: impl FnOnce() -> Saved, now: Instant) {
        if self.writing.as_ref().is_some_and(|w| !w.is_finished()) {
            self.due = Some(now + GATHER);
            return;
        }
        self.due = None;
        let Some(store) = self.store.clone() else {
            return;
        };
        self.begun = Some(now);
        let (saved, stats) = (table(), Arc::clone(&self.stats));
        let failed = Arc::clone(&self.failed);
        let write = move || match store.write(&saved) {
            Ok(()) => {
                failed.store(false, Ordering::Relaxed);
                Stats::count(&stats.table_writes);
                debug!("table written to disk");
            }
            Err(error) => {
                Stats::count(&stats.table_write_failures);
                if !failed.swap(true, Ordering::Relaxed) {
                    warn!(directory = %store.directory.display(), %error,
                        "the table cannot be written to disk: an agent that starts without a \
                         controller will not have it (logged once)");
                }
            }
        };
        self.writing = Some(spawn_blocking(write));
    }

    /// Waits until nothing is being written. A caller that waits no longer leaves the write to the next one.
    pub(crate) async fn settle(&mut self) {
        if let Some(writing) = &mut self.writing {
            // The task does not panic and is never aborted.
            let _ = writing.await;
            self.writing = None;
        }
    }

    /// Has a write hang.
    #[cfg(test)]
    pub(super) fn hang(&mut self) {
        self.writing = Some(tokio::spawn(std::future::pending()));
    }
}
