// SPDX-License-Identifier: Apache-2.0

//! The identity of a cluster that tables belong to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::feed::Feed;
use crate::shared::Shared;

/// The identity, shared by the writer and the readers.
#[derive(Debug, Default)]
pub(crate) struct KnownIdentity {
    id: OnceLock<Arc<str>>,
    /// Whether the tables are withheld until the identity is known, or known to be unobtainable.
    awaited: AtomicBool,
}

impl KnownIdentity {
    pub(crate) fn id(&self) -> Option<&Arc<str>> {
        self.id.get()
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
    }
}

/// A handle that sets a cluster's identity, once. The cluster's source is its one owner.
#[derive(Debug)]
pub struct ClusterIdentity {
    pub(crate) shared: Arc<Shared>,
    pub(crate) feed: Arc<Feed>,
}

impl ClusterIdentity {
    /// Withholds the tables until [`set`](Self::set) is called.
    pub fn awaited(&self) {
        self.feed.identity().awaited.store(true, Ordering::Release);
    }

    /// Sets the cluster's identity: agents whose nodes belong to another cluster are refused.
    /// `None` or an empty `id` means that the identity is unobtainable: all agents are accepted.
    ///
    /// # Errors
    /// Returns the identity that was set before, if it differs from `id`. It stays in force.
    pub fn set(&self, id: Option<&str>) -> Result<(), Arc<str>> {
        let identity = self.feed.identity();
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            let known = identity.id.get_or_init(|| id.into());
            if **known != *id {
                return Err(Arc::clone(known));
            }
        }
        if identity.awaited.swap(false, Ordering::AcqRel) {
            self.feed.wake();
            self.shared.raise();
        }
        Ok(())
    }
}
