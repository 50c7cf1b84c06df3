//! One cluster: its shared records and its nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::{NodeInfo, NodeLists, NodeTable, Record, RecordKey, SetHash};
use portolan_proto::convert::encode_node;

use super::journal::Journal;
use super::prepared::Item;
use super::{Batch, Changes, Retention};

/// The tables of one cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    retention: Retention,
    head: u64,
    records: Journal<Record>,
    nodes: BTreeMap<Arc<str>, Node>,
    /// The nodes that have nothing of their own, by the revision since when.
    idle: BTreeSet<(u64, Arc<str>)>,
    /// Idle nodes of this revision and older may be forgotten already.
    idle_floor: u64,
}

/// What one node has of its own.
#[derive(Debug)]
struct Node {
    lists: Journal<NodeLists>,
    info: NodeInfo,
    info_changed: u64,
    idle_since: Option<u64>,
}

impl Cluster {
    pub(super) fn new(retention: Retention) -> Self {
        Self {
            retention,
            head: 0,
            records: Journal::new(0),
            nodes: BTreeMap::new(),
            idle: BTreeSet::new(),
            idle_floor: 0,
        }
    }

    pub(super) fn put_record(
        &mut self,
        revision: u64,
        key: RecordKey,
        item: Option<Item<Record>>,
    ) -> bool {
        self.records.put(revision, key, item)
    }

    pub(super) fn put_lists(
        &mut self,
        revision: u64,
        node: &Arc<str>,
        key: RecordKey,
        item: Option<Item<NodeLists>>,
    ) -> bool {
        let retained = self.retention.list_tombstones;
        self.change_node(revision, node, |node| {
            let changed = node.lists.put(revision, key, item);
            node.lists.compact(retained);
            changed
        })
    }

    pub(super) fn put_node(&mut self, revision: u64, node: &Arc<str>, info: NodeInfo) -> bool {
        self.change_node(revision, node, |node| {
            if node.info == info {
                return false;
            }
            node.info = info;
            node.info_changed = revision;
            true
        })
    }

    fn change_node(
        &mut self,
        revision: u64,
        name: &Arc<str>,
        change: impl FnOnce(&mut Node) -> bool,
    ) -> bool {
        let floor = self.idle_floor;
        let node = self
            .nodes
            .entry(Arc::clone(name))
            .or_insert_with(|| Node::new(floor));
        let changed = change(node);
        if changed && let Some(since) = node.idle_since.take() {
            self.idle.remove(&(since, Arc::clone(name)));
        }
        if node.is_idle() && node.idle_since.is_none() {
            if changed {
                node.idle_since = Some(revision);
                self.idle.insert((revision, Arc::clone(name)));
            } else {
                self.nodes.remove(name);
            }
        }
        changed
    }

    /// Ends a revision that changed something.
    pub(super) fn finish(&mut self, revision: u64) {
        self.head = revision;
        self.records.compact(self.retention.record_tombstones);
        let busy = self.nodes.len() - self.idle.len();
        while self.idle.len() > self.retention.idle_nodes.max(busy) {
            if let Some((since, name)) = self.idle.pop_first() {
                self.idle_floor = since;
                self.nodes.remove(&name);
            }
        }
    }

    pub(super) fn head(&self) -> u64 {
        self.head
    }

    pub(super) fn since(&self, node: &str, cursor: u64) -> Option<Batch> {
        let own = self.nodes.get(node);
        let lists = match own {
            Some(own) => own.lists.since(cursor)?,
            None if cursor < self.idle_floor => return None,
            None => Changes::default(),
        };
        let info = own.filter(|own| own.info_changed > cursor);
        Some(Batch {
            records: self.records.since(cursor)?,
            own: lists,
            node: info.map(|own| encode_node(&own.info)),
            ..self.unchanged(node)
        })
    }

    pub(super) fn snapshot(&self, node: &str) -> Batch {
        let own = self.nodes.get(node);
        Batch {
            snapshot: true,
            records: self.records.snapshot(),
            own: own.map(|own| own.lists.snapshot()).unwrap_or_default(),
            node: own.map(|own| encode_node(&own.info)),
            ..self.unchanged(node)
        }
    }

    pub(super) fn unchanged(&self, node: &str) -> Batch {
        let nothing = Batch::nothing();
        Batch {
            revision: self.head,
            records_hash: self.records.hash(),
            own_hash: self.nodes.get(node).map_or(nothing.own_hash, Node::hash),
            ..nothing
        }
    }

    pub(super) fn table(&self, node: &str) -> NodeTable {
        let own = self.nodes.get(node);
        NodeTable {
            node: own.map(|own| own.info.clone()).unwrap_or_default(),
            records: self.records.values(),
            lists: own.map(|own| own.lists.values()).unwrap_or_default(),
        }
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> (usize, usize) {
        (self.records.tombstones(), self.nodes.len())
    }
}

impl Node {
    /// A node of which nothing is known before the revision `floor`: it may have been forgotten.
    fn new(floor: u64) -> Self {
        Self {
            lists: Journal::new(floor),
            info: NodeInfo::default(),
            info_changed: floor,
            idle_since: None,
        }
    }

    fn is_idle(&self) -> bool {
        self.lists.is_empty() && self.info == NodeInfo::default()
    }

    fn hash(&self) -> SetHash {
        let mut hash = self.lists.hash();
        hash.insert(self.info.content_hash());
        hash
    }
}
