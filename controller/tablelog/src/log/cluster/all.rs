//! What all nodes have of their own, for relays.

use std::sync::Arc;

use portolan_model::{ContentHash, RecordKey, SetHash, node_hash};

use super::{Cluster, Node};
use crate::log::{NodeItem, OwnChanges, TableHashes};
use crate::scope::Scope;

/// What changed of one node's own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeChanges {
    pub(crate) node: Arc<str>,
    pub(crate) own: OwnChanges,
    /// Whether that is all that it has: it is not known any more what is gone.
    pub(crate) replace: bool,
}

impl Cluster {
    /// The hashes of the shared records and of all nodes. A node that has nothing of its own is as
    /// good as one that there is not.
    pub(crate) fn hashes_of_all(&self) -> TableHashes {
        let busy = self.nodes.iter().filter(|(_, node)| !node.is_idle());
        let named = busy.map(|(name, node)| node.named(name));
        TableHashes {
            records: self.records.hash(),
            own: named.collect(),
        }
    }

    /// The hashes of the table that a stream carries.
    pub(crate) fn hashes_of(&self, scope: &Scope) -> TableHashes {
        match scope {
            Scope::Node(node) => self.hashes(&node.name),
            Scope::AllNodes(_) => self.hashes_of_all(),
        }
    }

    /// The own parts that a stream carries. The stream's own node has no name in it.
    pub(crate) fn own_parts_of(&self, scope: &Scope) -> Vec<NodeChanges> {
        match scope {
            Scope::Node(node) => vec![NodeChanges {
                node: "".into(),
                own: self.own(&node.name),
                replace: false,
            }],
            Scope::AllNodes(_) => self.own_of_all(),
        }
    }

    /// All that nodes have of their own, sorted by node.
    pub(crate) fn own_of_all(&self) -> Vec<NodeChanges> {
        let busy = self.nodes.iter().filter(|(_, node)| !node.is_idle());
        sorted(busy.map(|(name, _)| self.whole(name)))
    }

    /// What changed of any node's own after `cursor`, sorted by node; `None` if that is not known
    /// any more, or `cursor` never was a revision here.
    pub(crate) fn own_of_all_since(&self, cursor: u64) -> Option<Vec<NodeChanges>> {
        if cursor > self.head || cursor < self.idle_floor {
            return None;
        }
        let changes = self.nodes.keys().map(|name| {
            let own = self.own_since(name, cursor);
            own.map_or_else(
                || self.whole(name),
                |own| NodeChanges {
                    node: Arc::clone(name),
                    own,
                    replace: false,
                },
            )
        });
        let is_news = |change: &NodeChanges| change.replace || change.own != OwnChanges::default();
        Some(sorted(changes.filter(is_news)))
    }

    fn whole(&self, name: &Arc<str>) -> NodeChanges {
        NodeChanges {
            node: Arc::clone(name),
            own: self.own(name),
            replace: true,
        }
    }

    /// The names of the nodes of which anything is known.
    pub(crate) fn node_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.nodes.keys()
    }

    /// The keys of a node's lists.
    pub(crate) fn list_keys(&self, node: &str) -> impl Iterator<Item = &RecordKey> {
        let lists = self.nodes.get(node).into_iter();
        lists.flat_map(|node| node.lists.iter().map(|(key, _)| key))
    }

    /// The hash of one of a node's lists, if it has that.
    pub(crate) fn list_hash(&self, node: &str, key: &RecordKey) -> Option<ContentHash> {
        self.nodes.get(node)?.lists.get(key).map(|item| item.hash)
    }

    /// The sum of the hashes of a node's lists, and what is known of the node.
    pub(crate) fn own_parts(&self, node: &str) -> (SetHash, NodeItem) {
        let own = self.nodes.get(node);
        own.map_or_else(Default::default, |own| (own.lists.hash(), own.info.clone()))
    }
}

/// Sorted by node, so that equal tables are told by equal bytes.
fn sorted(changes: impl Iterator<Item = NodeChanges>) -> Vec<NodeChanges> {
    let mut changes: Vec<_> = changes.collect();
    changes.sort_unstable_by(|one, other| one.node.cmp(&other.node));
    changes
}

impl Node {
    fn named(&self, name: &str) -> ContentHash {
        *self.named.get_or_init(|| node_hash(name, self.hash()))
    }
}
