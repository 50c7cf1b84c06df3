//! Which nodes the source has, and which agents have none.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use portolan_model::NodeKey;
use tokio::time::{Instant, timeout_at};

use super::{Nodes, Registry};
use crate::RELAY;

/// How many deleted nodes are remembered.
const MAX_DELETED: usize = 10_000;

/// Whether a node's agent is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeStanding {
    /// It is, as far as its node goes.
    Served,
    /// The source had the node and has it no longer.
    Deleted,
    /// The source has all its nodes told, and this one is not among them.
    Unknown,
}

/// What the source says of nodes.
#[derive(Debug, Default)]
pub(super) struct SourceNodes {
    present: HashSet<NodeKey>,
    /// Whether agents of nodes that are not among those present are refused.
    refuses_others: bool,
    /// Those that it had and has no longer, with their place in the order of deletion.
    deleted: BTreeMap<NodeKey, u64>,
    last_deletion: u64,
}

impl SourceNodes {
    fn delete(&mut self, node: &NodeKey) {
        if self.deleted.len() >= MAX_DELETED {
            // Of a full memory the older half goes.
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
        } else if self.refuses_others
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

    /// Ends the streams of a node's agent.
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
    /// The source has this node.
    pub fn node_present(&self, node: &NodeKey) {
        let mut nodes = self.lock();
        nodes.known.deleted.remove(node);
        let is_new = nodes.known.present.insert(node.clone());
        drop(nodes);
        if is_new {
            self.arrivals.notify_waiters();
        }
    }

    /// The source had this node and has it no longer. Its stream ends, and it gets no other, where
    /// agents must show who they are: whatever was given to that node is void.
    pub fn node_deleted(&self, node: &NodeKey) {
        let mut nodes = self.lock();
        nodes.known.delete(node);
        nodes.end_streams(node);
    }

    /// From now on only agents of nodes that the source has are served; to be said when the source
    /// has told of all that it has. Streams of others end.
    pub fn refuse_unknown_nodes(&self) {
        let mut nodes = self.lock();
        nodes.known.refuses_others = true;
        let all = nodes.entries.keys().chain(nodes.side_streams.keys());
        for stranger in all.filter(|node| !nodes.is_served(node)) {
            nodes.end_streams(stranger);
        }
    }

    pub(crate) fn standing(&self, node: &NodeKey) -> NodeStanding {
        self.lock().known.standing(node)
    }

    /// Whether agents of nodes that the source does not have are refused.
    pub(crate) fn refuses_unknown_nodes(&self) -> bool {
        self.lock().known.refuses_others
    }

    /// As [`standing`](Self::standing), but for a node that is not known waits so long for it: one
    /// that has just joined may be known to its agent before it is to us.
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
