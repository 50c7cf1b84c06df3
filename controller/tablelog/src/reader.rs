// SPDX-License-Identifier: Apache-2.0

//! The readers' side of the tables: the next transition of each stream.

mod answer;
mod first;
mod next;

use std::sync::{Arc, RwLockReadGuard};

use portolan_model::{Destination, NodeKey, NodeTable};
use tokio::sync::futures::OwnedNotified;
use tokio::sync::watch;

use crate::feed::Feed;
use crate::log::{Differences, TableHashes, TableLog};
use crate::published::Published;
use crate::scope::Scope;
use crate::shared::{Shared, State};
pub use answer::{First, Have, How, Next};

/// Read access to the tables, for sessions and the admin server.
#[derive(Debug, Clone)]
pub struct TableReader {
    shared: Arc<Shared>,
    published: watch::Receiver<Published>,
}

impl TableReader {
    pub(crate) fn new(shared: Arc<Shared>, published: watch::Receiver<Published>) -> Self {
        Self { shared, published }
    }

    /// The epoch of all revisions of these tables: a random number, never 0.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// A receiver of the writer's progress. It ends when the [`Publisher`](crate::Publisher) is
    /// dropped.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<Published> {
        self.published.clone()
    }

    /// A copy of a node's table, for display.
    #[must_use]
    pub fn table(&self, node: &NodeKey) -> NodeTable {
        self.read().of(&node.cluster).table(&node.name)
    }

    /// The head of a cluster: the revision of its up-to-date agents.
    #[must_use]
    pub fn head(&self, cluster: &str) -> u64 {
        self.read().of(cluster).head()
    }

    /// Whether the tables of a feed's cluster are served.
    #[must_use]
    pub fn state(&self, feed: &Feed) -> State {
        self.shared.state(feed)
    }

    /// Completes when the sources advance after this call, whether or not a table changes.
    pub fn raised(&self) -> OwnedNotified {
        Arc::clone(&self.shared.raised).notified_owned()
    }

    /// The state that the streams of a cluster share.
    #[must_use]
    pub fn feed(&self, cluster: &Arc<str>) -> Arc<Feed> {
        self.shared.feed(cluster)
    }

    /// Completes when a cluster's identity is known, or known to be unobtainable.
    pub async fn cluster_id_known(&self, feed: &Feed) {
        loop {
            let raised = self.raised();
            if !feed.identity().is_awaited() {
                return;
            }
            raised.await;
        }
    }

    /// The head of a stream's cluster, and the hashes of the stream's table at that head.
    #[must_use]
    pub fn hashes(&self, scope: &Scope) -> (u64, TableHashes) {
        let log = self.read();
        let of = log.of(scope.cluster());
        (of.head(), of.hashes_of(scope))
    }

    /// The differences between a node's table at `cursor` and now, sorted. `None` if the log has
    /// dropped some of them.
    #[must_use]
    pub fn differences_since(&self, node: &NodeKey, cursor: u64) -> Option<Differences> {
        let log = self.read();
        log.of(&node.cluster).differences_since(&node.name, cursor)
    }

    /// Returns `true` if the newest tables of a scope have a destination of a Service for which
    /// `is` holds, in the list of any zone, family or policy.
    #[must_use]
    pub fn has_destination(
        &self,
        scope: &Scope,
        service: (&str, &str),
        is: impl Fn(&Destination) -> bool,
    ) -> bool {
        let log = self.read();
        let of = log.of(scope.cluster());
        of.has_destination(scope, service, is)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, TableLog> {
        self.shared.read()
    }
}

#[cfg(test)]
mod races;
#[cfg(test)]
mod tests;
