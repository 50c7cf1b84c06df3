// SPDX-License-Identifier: Apache-2.0

//! The state that the writer and the readers of the tables share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::Notify;

use crate::feed::Feed;
use crate::identity::KnownIdentity;
use crate::log::{Retention, TableLog};
use crate::sources::StatedVersions;

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
    state: AtomicU8,
    pub(crate) raised: Arc<Notify>,
    pub(crate) identity: KnownIdentity,
    pub(crate) stated: StatedVersions,
}

/// The state of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Some source has not delivered all of its objects, or the cluster's identity is awaited.
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
            state: AtomicU8::new(State::Starting as u8),
            raised: Arc::default(),
            identity: KnownIdentity::default(),
            stated: StatedVersions::default(),
        }
    }

    pub(crate) fn state(&self) -> State {
        let state = self.state.load(Ordering::Acquire);
        if state == State::Synced as u8 && self.identity.is_awaited() {
            return State::Starting;
        }
        match state {
            0 => State::Starting,
            1 => State::Synced,
            _ => State::Closed,
        }
    }

    pub(crate) fn enter(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
        self.wake_feeds();
    }

    pub(crate) fn wake_feeds(&self) {
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
