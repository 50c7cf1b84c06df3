// SPDX-License-Identifier: Apache-2.0

//! The state that the streams of one cluster share: encoded transitions and snapshots.

mod delivery;
mod memo;
mod segments;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use crate::identity::KnownIdentity;
use crate::sources::StatedVersions;
use crate::wire::Chunks;
pub use delivery::Delivery;
pub(crate) use delivery::{commit, full_commit};
pub use memo::ANSWERED_WITHIN;
pub(crate) use memo::{Memo, Question};
pub(crate) use segments::Segments;

/// The shared state of one cluster's streams.
#[derive(Debug, Default)]
pub struct Feed {
    /// Whether the cluster's source has delivered all of its objects.
    is_synced: AtomicBool,
    identity: KnownIdentity,
    stated: StatedVersions,
    /// The revision of the last publication.
    head: AtomicU64,
    woken: Arc<Notify>,
    transition: RwLock<Option<Arc<Transition>>>,
    memo: Mutex<Memo>,
    segments: Mutex<Segments>,
}

/// The newest transition, encoded when it was published: nearly all streams send it next.
#[derive(Debug)]
pub(crate) struct Transition {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The transition of all nodes that are not in `own`.
    pub(crate) shared: Arc<Chunks>,
    pub(crate) own: BTreeMap<Arc<str>, Delivery>,
}

impl Feed {
    /// Begins serving the cluster. Returns whether it was not served before.
    pub(crate) fn set_synced(&self) -> bool {
        let is_new = !self.is_synced.swap(true, Ordering::AcqRel);
        self.wake();
        is_new
    }

    /// Sends nothing more of the cluster. Returns whether it was served before.
    pub(crate) fn withhold(&self) -> bool {
        self.is_synced.swap(false, Ordering::AcqRel)
    }

    /// Returns `true` if the cluster's tables are complete, and its identity is not awaited.
    pub(crate) fn is_served(&self) -> bool {
        self.is_synced.load(Ordering::Acquire) && !self.identity.is_awaited()
    }

    pub(crate) fn identity(&self) -> &KnownIdentity {
        &self.identity
    }

    pub(crate) fn stated(&self) -> &StatedVersions {
        &self.stated
    }

    /// The cluster's identity, if it is known.
    #[must_use]
    pub fn cluster_id(&self) -> Option<&Arc<str>> {
        self.identity.id()
    }

    /// Has the cluster's source state its newest versions, because an agent has a table of later
    /// versions than these. [`TableReader::raised`](crate::TableReader::raised) completes when it
    /// has.
    pub fn doubt_source(&self) {
        self.stated.doubt();
    }

    /// The newest versions of the cluster's source, in the order of
    /// [`ClusterOrigin::source_versions`](crate::ClusterOrigin::source_versions), if it stated them
    /// when it was asked at `since` or later.
    #[must_use]
    pub fn stated_versions(&self, since: Instant) -> Option<Vec<u64>> {
        self.stated.since(since)
    }

    /// Publishes a new head and wakes the streams. Without a transition, the streams collect the
    /// changes themselves.
    pub(crate) fn publish(&self, head: u64, transition: Option<Transition>) {
        let transition = transition.map(Arc::new);
        *self
            .transition
            .write()
            .unwrap_or_else(PoisonError::into_inner) = transition;
        self.head.store(head, Ordering::Release);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        self.woken.notify_waiters();
    }

    /// Completes at the next [`wake`](Self::wake) after this call.
    pub fn woken(&self) -> OwnedNotified {
        Arc::clone(&self.woken).notified_owned()
    }

    /// Returns `true` if the head is after `cursor`.
    pub(crate) fn is_ahead(&self, cursor: u64) -> bool {
        self.head.load(Ordering::Acquire) > cursor
    }

    /// The newest transition for a node; `None` if it does not begin at `cursor`.
    pub(crate) fn transition(&self, node: &str, cursor: u64) -> Option<Delivery> {
        let transition = self
            .transition
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let transition = transition
            .as_ref()
            .filter(|transition| transition.from == cursor)?;
        let own = transition.own.get(node).cloned();
        Some(own.unwrap_or_else(|| Delivery::shared(transition.to, Arc::clone(&transition.shared))))
    }

    pub(crate) fn memo(&self) -> MutexGuard<'_, Memo> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the segments. The lock is held while segments are encoded, so that all streams that
    /// need a snapshot wait for the same work.
    pub(crate) fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
