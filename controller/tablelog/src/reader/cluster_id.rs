//! Which cluster the tables are of.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::Tables;

/// The cluster's identity, once it is known.
#[derive(Debug, Default)]
pub(super) struct ClusterId {
    id: OnceLock<Arc<str>>,
    /// Whether nothing is served before the identity is known, or known not to be.
    awaited: AtomicBool,
}

impl ClusterId {
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
    }
}

impl Tables {
    /// The cluster's identity, if it is known.
    #[must_use]
    pub fn cluster_id(&self) -> Option<&Arc<str>> {
        self.shared.cluster_id.id.get()
    }

    /// Serves nothing before [`set_cluster_id`](Self::set_cluster_id) was called.
    pub fn await_cluster_id(&self) {
        self.shared
            .cluster_id
            .awaited
            .store(true, Ordering::Release);
    }

    /// Completes when the identity is known, or known not to be.
    pub async fn cluster_id_known(&self) {
        loop {
            let raised = self.raised();
            if !self.shared.cluster_id.is_awaited() {
                return;
            }
            raised.await;
        }
    }

    /// Says what the cluster's identity is: agents whose nodes belong to another one are refused.
    /// `None` or an empty one if it cannot be known: then all are taken.
    ///
    /// # Errors
    /// If it is another one than was said before, which is returned and stays.
    pub fn set_cluster_id(&self, id: Option<&str>) -> Result<(), Arc<str>> {
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            let known = self.shared.cluster_id.id.get_or_init(|| id.into());
            if **known != *id {
                return Err(Arc::clone(known));
            }
        }
        let awaited = &self.shared.cluster_id.awaited;
        if awaited.swap(false, Ordering::AcqRel) {
            self.wake_feeds();
            self.raise();
        }
        Ok(())
    }
}
