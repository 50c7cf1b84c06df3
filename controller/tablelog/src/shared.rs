// SPDX-License-Identifier: Apache-2.0

//! The state that the writer and the readers of the tables share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::Notify;

use crate::feed::Feed;
use crate::log::{Retention, TableLog};

/// The state that the writer and the readers share.
///
/// Lock order: a feed's segments, then the log, then the feed's memo. A reader that waits for the
/// log while it holds the memo, behind a waiting writer and a reader that holds the log and needs
/// the memo, is a deadlock.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) epoch: u64,
    log: RwLock<TableLog>,
    feeds: RwLock<BTreeMap<Arc<str>, Arc<Feed>>>,
    is_closed: AtomicBool,
    pub(crate) raised: Arc<Notify>,
}

/// The state of one cluster's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The cluster's source has not delivered all of its objects, or the cluster's identity is awaited.
    Starting,
    /// The tables are served.
    Synced,
    /// The writer was dropped.
    Closed,
}

impl Shared {
    pub(crate) fn new(retention: Retention) -> Self {
        Self {
            epoch: random_epoch(),
            log: RwLock::new(TableLog::new(retention)),
            feeds: RwLock::default(),
            is_closed: AtomicBool::new(false),
            raised: Arc::default(),
        }
    }

    pub(crate) fn state(&self, feed: &Feed) -> State {
        if self.is_closed.load(Ordering::Acquire) {
            return State::Closed;
        }
        match feed.is_served() {
            true => State::Synced,
            false => State::Starting,
        }
    }

    /// Ends serving: the writer was dropped.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.wake_feeds();
    }

    fn wake_feeds(&self) {
        let feeds = self.feeds.read().unwrap_or_else(PoisonError::into_inner);
        for feed in feeds.values() {
            feed.wake();
        }
    }

    /// Wakes the tasks that wait for the sources to advance, whether or not a table changed.
    pub(crate) fn raise(&self) {
        self.raised.notify_waiters();
    }

    pub(crate) fn feed(&self, cluster: &Arc<str>) -> Arc<Feed> {
        let feeds = self.feeds.read().unwrap_or_else(PoisonError::into_inner);
        let known = feeds.get(cluster).cloned();
        drop(feeds);
        known.unwrap_or_else(|| {
            let mut feeds = self.feeds.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(feeds.entry(Arc::clone(cluster)).or_default())
        })
    }

    /// Locks the log for reading. Readers change nothing, so a panic leaves the log intact.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, TableLog> {
        self.log.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, TableLog> {
        self.log.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A random epoch, never 0. The standard library's random state differs between two starts.
fn random_epoch() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new()
        .hash_one(std::time::SystemTime::now())
        .max(1)
}
