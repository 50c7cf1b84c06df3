// SPDX-License-Identifier: Apache-2.0

//! The own parts of all nodes, for relays.

use std::sync::Arc;

use portolan_model::{ContentHash, RecordKey, SetHash, node_hash};

use super::{Cluster, Node};
use crate::log::{NodeItem, OwnChanges, TableHashes};
use crate::scope::Scope;

/// Changes of one node's own part.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeChanges {
    pub(crate) node: Arc<str>,
    pub(crate) own: OwnChanges,
    /// Whether `own` replaces the whole own part, for example because the deletions are not known
    /// any more.
    pub(crate) replace: bool,
}

impl Cluster {
    /// The hashes of the shared records and of the own parts of all nodes. A node with an empty own
    /// part is equivalent to an absent one.
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

    /// The own parts that a stream carries. In the stream of a node, the node's name is empty.
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

    /// The own parts of all nodes, sorted by node.
    pub(crate) fn own_of_all(&self) -> Vec<NodeChanges> {
        let busy = self.nodes.iter().filter(|(_, node)| !node.is_idle());
        sorted(busy.map(|(name, _)| self.whole(name)))
    }

    /// The changes of all own parts after `cursor`, sorted by node. `None` if some nodes have been
    /// forgotten, or `cursor` is after the head.
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

    /// The names of the known nodes.
    pub(crate) fn node_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.nodes.keys()
    }

    /// The keys of a node's lists.
    pub(crate) fn list_keys(&self, node: &str) -> impl Iterator<Item = &RecordKey> {
        let lists = self.nodes.get(node).into_iter();
        lists.flat_map(|node| node.lists.iter().map(|(key, _)| key))
    }

    /// The hash of a node's lists for one record, if it has any.
    pub(crate) fn list_hash(&self, node: &str, key: &RecordKey) -> Option<ContentHash> {
        self.nodes.get(node)?.lists.get(key).map(|item| item.hash)
    }

    /// The sum of the hashes of a node's lists, and the node's info.
    pub(crate) fn own_parts(&self, node: &str) -> (SetHash, NodeItem) {
        let own = self.nodes.get(node);
        own.map_or_else(Default::default, |own| (own.lists.hash(), own.info.clone()))
    }
}

/// Sorts by node, so that equal tables have equal bytes.
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
