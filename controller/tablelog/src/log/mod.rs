// SPDX-License-Identifier: Apache-2.0

//! The records of every cluster and the own lists of every node, each with its last change.
//!
//! The log is pure: no I/O, no clock. Revisions are counted over all clusters: each
//! [`TableLog::apply`] that changes anything makes one. A cluster's *head* is the last revision
//! that changed anything of the cluster. Agents get the head, so that two agents with equal tables
//! name the same revision. An agent has programmed revision R if it has programmed R or its
//! cluster's head.

mod buckets;
mod changes;
mod cluster;
mod journal;
mod order;
mod prepared;
mod retention;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::Record;

use crate::Origin;

pub use changes::TableHashes;
pub(crate) use changes::{Changes, OwnChanges};
pub(crate) use cluster::{Cluster, NodeChanges};
pub use cluster::{Differences, TablePart};
pub(crate) use journal::Journal;
pub use prepared::Prepared;
pub(crate) use prepared::{Item, NodeItem, bucket};
pub use retention::Retention;

/// The number of destinations above which a change of a record may be sent as a patch.
const PATCH_FROM: usize = 32;

/// The tables of all nodes, with the changes since any recent revision.
#[derive(Debug)]
pub(crate) struct TableLog {
    retention: Retention,
    revision: u64,
    clusters: BTreeMap<Arc<str>, Cluster>,
    /// The empty tables of a cluster that is not in `clusters`.
    nothing: Cluster,
}

/// The effect of one transition.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// The revision of the transition; the last revision if it changed nothing.
    pub(crate) revision: u64,
    pub(crate) clusters: BTreeMap<Arc<str>, ClusterApplied>,
}

/// The effect of one transition on one cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterApplied {
    /// The cluster's head before the transition.
    pub(crate) from: u64,
    /// The nodes whose own part changed.
    pub(crate) nodes: BTreeSet<Arc<str>>,
    /// The old values of the large records that were replaced.
    pub(crate) replaced: Vec<Item<Record>>,
}

impl Default for TableLog {
    fn default() -> Self {
        Self::new(Retention::default())
    }
}

impl TableLog {
    /// An empty log that keeps deletions within the bounds of `retention`.
    pub(crate) fn new(retention: Retention) -> Self {
        Self {
            retention,
            revision: 0,
            clusters: BTreeMap::new(),
            nothing: Cluster::new(retention),
        }
    }

    /// Applies one transition.
    pub(crate) fn apply(&mut self, prepared: Prepared, origin: &Origin) -> Applied {
        for (name, origin) in &origin.clusters {
            if !origin.source_versions.is_empty() {
                self.cluster(name).raise(&origin.source_versions);
            }
        }
        let revision = self.revision + 1;
        let mut applied = Applied::default();
        for (key, item) in prepared.records {
            let cluster = self.cluster(&key.cluster);
            let (name, from, is_put) = (Arc::clone(&key.cluster), cluster.head(), item.is_some());
            if let Some(replaced) = cluster.put_record(revision, key, item) {
                let applied = applied.cluster(name, from);
                let large = |old: &Item<Record>| old.value.destinations.len() > PATCH_FROM;
                applied
                    .replaced
                    .extend(replaced.0.filter(|old| is_put && large(old)));
            }
        }
        for (node, key, item) in prepared.lists {
            let cluster = self.cluster(&node.cluster);
            let from = cluster.head();
            if cluster.put_lists(revision, &node.name, key, item) {
                applied.cluster(node.cluster, from).nodes.insert(node.name);
            }
        }
        for (node, info) in prepared.nodes {
            let cluster = self.cluster(&node.cluster);
            let from = cluster.head();
            if cluster.put_node(revision, &node.name, info) {
                applied.cluster(node.cluster, from).nodes.insert(node.name);
            }
        }
        if !applied.clusters.is_empty() {
            self.revision = revision;
        }
        for name in applied.clusters.keys() {
            let times = origin.clusters.get(name);
            let times = times.map_or(&[][..], |origin| &origin.trigger_times_ms);
            self.cluster(name).finish(revision, times);
        }
        applied.revision = self.revision;
        applied
    }

    /// Forgets the versions of a cluster's source, which is gone.
    pub(crate) fn forget_versions(&mut self, cluster: &str) {
        if let Some(cluster) = self.clusters.get_mut(cluster) {
            cluster.forget_versions();
        }
    }

    /// The tables of a cluster.
    pub(crate) fn of(&self, cluster: &str) -> &Cluster {
        self.clusters.get(cluster).unwrap_or(&self.nothing)
    }

    fn cluster(&mut self, name: &Arc<str>) -> &mut Cluster {
        let retention = self.retention;
        self.clusters
            .entry(Arc::clone(name))
            .or_insert_with(|| Cluster::new(retention))
    }
}

impl Applied {
    fn cluster(&mut self, name: Arc<str>, from: u64) -> &mut ClusterApplied {
        let cluster = self.clusters.entry(name).or_default();
        cluster.from = from;
        cluster
    }
}

#[cfg(test)]
mod tests;
