//! What every cluster's records and every node's own lists are, and when each last changed.
//!
//! Pure: no I/O, no clock. Revisions are counted over all clusters: each [`TableLog::apply`] that
//! changes anything is one. A cluster's *head* is the last revision that changed anything of it,
//! and it is the head that agents are told, so that two agents with equal tables name the same
//! revision. An agent has revision R programmed if it has programmed R or its cluster's head.

mod batch;
mod cluster;
mod journal;
mod prepared;
mod retention;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::{NodeKey, NodeTable};
use portolan_select::TableDelta;

pub use batch::{Batch, Changes};
use cluster::Cluster;
pub use prepared::Prepared;
pub use retention::Retention;

/// The tables of all nodes, with what is needed to tell what changed since any recent revision.
#[derive(Debug, Default)]
pub struct TableLog {
    retention: Retention,
    revision: u64,
    clusters: BTreeMap<Arc<str>, Cluster>,
}

impl TableLog {
    /// An empty log that remembers what is gone for so long.
    #[must_use]
    pub fn new(retention: Retention) -> Self {
        Self {
            retention,
            ..Self::default()
        }
    }

    /// Applies one transition and returns the revision that it made; the last one if the delta
    /// says nothing new.
    pub fn apply(&mut self, delta: &TableDelta) -> u64 {
        self.apply_prepared(Prepared::from(delta))
    }

    /// As [`Self::apply`], with the encoding done before.
    pub fn apply_prepared(&mut self, prepared: Prepared) -> u64 {
        let revision = self.revision + 1;
        let mut changed = BTreeSet::new();
        for (key, item) in prepared.records {
            let cluster = Arc::clone(&key.cluster);
            if self.cluster(&cluster).put_record(revision, key, item) {
                changed.insert(cluster);
            }
        }
        for (node, key, item) in prepared.lists {
            if self
                .cluster(&node.cluster)
                .put_lists(revision, &node.name, key, item)
            {
                changed.insert(node.cluster);
            }
        }
        for (node, info) in prepared.nodes {
            if self
                .cluster(&node.cluster)
                .put_node(revision, &node.name, info)
            {
                changed.insert(node.cluster);
            }
        }
        if !changed.is_empty() {
            self.revision = revision;
        }
        for name in &changed {
            self.cluster(name).finish(revision);
        }
        self.revision
    }

    /// What a node must be sent that has the table of revision `cursor`; each record at most once.
    /// `None` if that is not known any more, or was never a revision: it needs a snapshot.
    #[must_use]
    pub fn since(&self, node: &NodeKey, cursor: u64) -> Option<Batch> {
        if cursor > self.revision {
            return None;
        }
        match self.clusters.get(&node.cluster) {
            Some(cluster) => cluster.since(&node.name, cursor),
            None => Some(Batch::nothing()),
        }
    }

    /// All that a node must have. A node that nothing is known of has no lists and no zone.
    #[must_use]
    pub fn snapshot(&self, node: &NodeKey) -> Batch {
        match self.clusters.get(&node.cluster) {
            Some(cluster) => cluster.snapshot(&node.name),
            None => Batch {
                snapshot: true,
                ..Batch::nothing()
            },
        }
    }

    /// A batch that says that a node's table is what it is, and changes nothing.
    #[must_use]
    pub fn unchanged(&self, node: &NodeKey) -> Batch {
        self.clusters
            .get(&node.cluster)
            .map_or_else(Batch::nothing, |cluster| cluster.unchanged(&node.name))
    }

    /// A node's table, for people and tests.
    #[must_use]
    pub fn table(&self, node: &NodeKey) -> NodeTable {
        self.clusters
            .get(&node.cluster)
            .map(|cluster| cluster.table(&node.name))
            .unwrap_or_default()
    }

    /// The last revision that changed anything of a cluster; 0 if none did.
    #[must_use]
    pub fn head(&self, cluster: &str) -> u64 {
        self.clusters.get(cluster).map_or(0, Cluster::head)
    }

    /// The last revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn cluster(&mut self, name: &Arc<str>) -> &mut Cluster {
        let retention = self.retention;
        self.clusters
            .entry(Arc::clone(name))
            .or_insert_with(|| Cluster::new(retention))
    }
}

#[cfg(test)]
mod tests;
