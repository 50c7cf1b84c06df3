//! What the streams of one cluster share: whatever is made for one is kept for the others.

mod delivery;
mod memo;
mod segments;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::wire::Chunks;
pub use delivery::Delivery;
pub(crate) use delivery::{commit, full_commit};
pub use memo::ANSWERED_WITHIN;
pub(crate) use memo::{Memo, Question};
pub(crate) use segments::Segments;

/// One cluster's streams.
#[derive(Debug, Default)]
pub struct Feed {
    /// The revision that streams were last woken for.
    head: AtomicU64,
    woken: Arc<Notify>,
    transition: RwLock<Option<Arc<Transition>>>,
    memo: Mutex<Memo>,
    segments: Mutex<Segments>,
}

/// The newest transition, made when it was published: what nearly all streams send next.
#[derive(Debug)]
pub(crate) struct Transition {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// For all nodes but those of `own`.
    pub(crate) shared: Arc<Chunks>,
    pub(crate) own: BTreeMap<Arc<str>, Delivery>,
}

impl Feed {
    /// A transition was published. Without a transition, streams make out themselves what changed.
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

    /// Completes at the next [`wake`](Self::wake) from now on.
    pub fn woken(&self) -> OwnedNotified {
        Arc::clone(&self.woken).notified_owned()
    }

    /// Whether streams at `cursor` have something to send.
    pub(crate) fn is_ahead(&self, cursor: u64) -> bool {
        self.head.load(Ordering::Acquire) > cursor
    }

    /// What a node is sent whose cursor is at the beginning of the newest transition.
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

    /// Held while segments are made, so that all who want a snapshot wait for the same work.
    pub(crate) fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
