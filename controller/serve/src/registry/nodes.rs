// SPDX-License-Identifier: Apache-2.0

//! Nodes that the source reports, and the standing of agents whose node is missing.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use portolan_model::NodeKey;
use tokio::time::{Instant, timeout_at};

use super::{Nodes, Registry};
use crate::RELAY;

/// Maximum number of deleted nodes kept.
const MAX_DELETED: usize = 10_000;

/// Admission of a node's agent, as far as its node decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeStanding {
    /// The node is present, the name is a relay's, or unknown nodes are still served.
    Served,
    /// The source has deleted the node.
    Deleted,
    /// The source has listed all its nodes, and this one is not among them.
    Unknown,
}

/// Nodes as reported by the source.
#[derive(Debug, Default)]
pub(super) struct SourceNodes {
    present: HashSet<NodeKey>,
    /// Clusters in which agents of nodes that are not present are refused.
    refuses_others: BTreeSet<Arc<str>>,
    /// Deleted nodes, with their place in the order of deletion.
    deleted: BTreeMap<NodeKey, u64>,
    last_deletion: u64,
}

impl SourceNodes {
    fn delete(&mut self, node: &NodeKey) {
        if self.deleted.len() >= MAX_DELETED {
            // At capacity, the older half is dropped.
            let half = self.last_deletion - MAX_DELETED as u64 / 2;
            self.deleted.retain(|_, deletion| *deletion > half);
        }
        self.last_deletion += 1;
        self.deleted.insert(node.clone(), self.last_deletion);
        self.present.remove(node);
    }

    pub(super) fn standing(&self, node: &NodeKey) -> NodeStanding {
        if self.deleted.contains_key(node) {
            NodeStanding::Deleted
        } else if self.refuses_others.contains(&node.cluster)
            && !self.present.contains(node)
            && !node.name.starts_with(RELAY)
        {
            NodeStanding::Unknown
        } else {
            NodeStanding::Served
        }
    }
}

impl Nodes {
    pub(super) fn is_served(&self, node: &NodeKey) -> bool {
        self.known.standing(node) == NodeStanding::Served
    }

    /// Ends both streams of a node's agent.
    fn end_streams(&self, node: &NodeKey) {
        if let Some(entry) = self.entries.get(node) {
            entry.node_deleted();
        }
        if let Some(beside) = self.side_streams.get(node) {
            beside.delete();
        }
    }
}

impl Registry {
    /// Records that the source has a node.
    pub fn node_present(&self, node: &NodeKey) {
        let mut nodes = self.lock();
        nodes.known.deleted.remove(node);
        let is_new = nodes.known.present.insert(node.clone());
        drop(nodes);
        if is_new {
            self.arrivals.notify_waiters();
        }
    }

    /// Records that the source has deleted a node. Where agents are authenticated, its streams end
    /// and new ones are refused: credentials issued to the node are void.
    pub fn node_deleted(&self, node: &NodeKey) {
        let mut nodes = self.lock();
        nodes.known.delete(node);
        nodes.end_streams(node);
    }

    /// Refuses agents of nodes that a cluster's source does not have, and ends their streams. Must
    /// be called only after the source has reported all its nodes.
    pub fn refuse_unknown_nodes(&self, cluster: &Arc<str>) {
        let mut nodes = self.lock();
        nodes.known.refuses_others.insert(Arc::clone(cluster));
        let all = nodes.entries.keys().chain(nodes.side_streams.keys());
        for stranger in all.filter(|node| !nodes.is_served(node)) {
            nodes.end_streams(stranger);
        }
    }

    /// Ends all streams of a cluster that is not served any more, and forgets its nodes. To be called
    /// after [`ServedClusters::remove`](crate::ServedClusters::remove).
    pub fn cluster_withdrawn(&self, cluster: &str) {
        let mut nodes = self.lock();
        let known = &mut nodes.known;
        known.refuses_others.remove(cluster);
        known.present.retain(|node| *node.cluster != *cluster);
        known.deleted.retain(|node, _| *node.cluster != *cluster);
        let all = nodes.entries.keys().chain(nodes.side_streams.keys());
        for node in all.filter(|node| *node.cluster == *cluster) {
            nodes.end_streams(node);
        }
    }

    pub(crate) fn standing(&self, node: &NodeKey) -> NodeStanding {
        self.lock().known.standing(node)
    }

    /// Returns `true` if agents of nodes that the source does not have are refused in any cluster.
    pub(crate) fn refuses_unknown_nodes(&self) -> bool {
        !self.lock().known.refuses_others.is_empty()
    }

    /// Same as [`standing`](Self::standing), but waits up to `patience` for an unknown node: the
    /// agent of a node that has just joined may connect before the source reports the node.
    pub(crate) async fn standing_within(&self, node: &NodeKey, patience: Duration) -> NodeStanding {
        let deadline = Instant::now() + patience;
        loop {
            let arrival = self.arrivals.notified();
            let standing = self.standing(node);
            if standing != NodeStanding::Unknown {
                return standing;
            }
            if timeout_at(deadline, arrival).await.is_err() {
                return standing;
            }
        }
    }
}
