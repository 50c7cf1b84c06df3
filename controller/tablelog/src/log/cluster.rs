//! One cluster: its shared records and its nodes.

mod all;
mod changed;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use portolan_model::{ContentHash, NodeInfo, NodeOverlay, NodeTable, Record, RecordKey, SetHash};
use portolan_proto::convert::encode_key;
use portolan_proto::encoded::encode;
use prost::bytes::Bytes;

use super::buckets::Buckets;
use super::journal::{Journal, Replaced};
use super::prepared::{Item, NodeItem};
use super::{Changes, OwnChanges, Retention, TableHashes};

pub(crate) use all::NodeChanges;
pub use changed::{Differences, TablePart};

/// Of how many revisions it is known what triggered them: more than a live stream falls behind.
const TRIGGERS_OF: usize = 64;

/// How many triggers a Commit tells at most.
const MAX_TRIGGERS: usize = 64;

/// The tables of one cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    retention: Retention,
    head: u64,
    records: Journal<Record>,
    buckets: Buckets,
    /// Not sorted: one is looked up some times for each agent that comes.
    nodes: HashMap<Arc<str>, Node>,
    /// The nodes that have nothing of their own, by the revision since when.
    idle: BTreeSet<(u64, Arc<str>)>,
    /// Idle nodes of this revision and older may be forgotten already.
    idle_floor: u64,
    /// What triggered the last revisions.
    triggers: VecDeque<(u64, Box<[u64]>)>,
}

/// What one node has of its own.
#[derive(Debug)]
struct Node {
    lists: Journal<NodeOverlay>,
    info: NodeItem,
    info_changed: u64,
    idle_since: Option<u64>,
    /// What it adds to the hash of all nodes, once a relay has asked for that.
    named: OnceLock<ContentHash>,
}

impl Cluster {
    pub(super) fn new(retention: Retention) -> Self {
        Self {
            retention,
            head: 0,
            records: Journal::new(0),
            buckets: Buckets::default(),
            nodes: HashMap::new(),
            idle: BTreeSet::new(),
            idle_floor: 0,
            triggers: VecDeque::new(),
        }
    }

    pub(super) fn put_record(
        &mut self,
        revision: u64,
        key: RecordKey,
        item: Option<Item<Record>>,
    ) -> Option<Replaced<Record>> {
        let new = item.clone();
        let replaced = self.records.put(revision, key, item)?;
        if let Some(old) = &replaced.0 {
            self.buckets.remove(old);
        }
        if let Some(new) = &new {
            self.buckets.insert(new);
        }
        Some(replaced)
    }

    pub(super) fn put_lists(
        &mut self,
        revision: u64,
        node: &Arc<str>,
        key: RecordKey,
        item: Option<Item<NodeOverlay>>,
    ) -> bool {
        let retained = self.retention.list_tombstones;
        self.change_node(revision, node, |node| {
            let changed = node.lists.put(revision, key, item).is_some();
            node.lists.compact(retained);
            changed
        })
    }

    pub(super) fn put_node(&mut self, revision: u64, node: &Arc<str>, info: NodeItem) -> bool {
        self.change_node(revision, node, |node| {
            if node.info.hash == info.hash {
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
        if changed {
            node.named.take();
        }
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
    pub(super) fn finish(&mut self, revision: u64, triggered: &[u64]) {
        self.head = revision;
        self.triggers.push_back((revision, triggered.into()));
        if self.triggers.len() > TRIGGERS_OF {
            self.triggers.pop_front();
        }
        // Up to as many as there are values, telling what is gone is no dearer than a snapshot.
        let most = self.retention.record_tombstones.max(self.records.len());
        self.records.compact(most);
        let busy = self.nodes.len() - self.idle.len();
        while self.idle.len() > self.retention.idle_nodes.max(busy) {
            if let Some((since, name)) = self.idle.pop_first() {
                self.idle_floor = since;
                self.nodes.remove(&name);
            }
        }
    }

    /// The last revision that changed anything here; 0 if none did.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// The shared records.
    pub(crate) fn records(&self) -> &Journal<Record> {
        &self.records
    }

    pub(crate) fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// All records of some buckets, sorted, of so many.
    pub(crate) fn of_buckets(&self, buckets: &[u32], count: u32) -> Vec<Bytes> {
        let wanted = |bucket: u16| buckets.binary_search(&(u32::from(bucket) % count)).is_ok();
        let records = self.records.iter().filter(|(_, item)| wanted(item.bucket));
        records.map(|(_, item)| item.encoded.clone()).collect()
    }

    /// When the changes after `cursor` were triggered, in milliseconds of Unix time; the first of
    /// them if there are many.
    pub(crate) fn triggers_since(&self, cursor: u64) -> Vec<u64> {
        let since = self
            .triggers
            .iter()
            .filter(|(revision, _)| *revision > cursor);
        let times = since.flat_map(|(_, times)| times.iter().copied());
        times.take(MAX_TRIGGERS).collect()
    }

    /// What changed of the records after `from`, with these patches in place of the records that
    /// they make; `None` if that is not known.
    pub(crate) fn records_since(
        &self,
        from: u64,
        patches: &BTreeMap<RecordKey, Bytes>,
    ) -> Option<Changes> {
        if patches.is_empty() {
            return self.records.since(from);
        }
        let mut changes = Changes::default();
        for key in self.records.changed_since(from)? {
            match (patches.get(key), self.records.get(key)) {
                (Some(patch), _) => changes.patch.push(patch.clone()),
                (None, Some(item)) => changes.put.push(item.encoded.clone()),
                (None, None) => changes.delete.push(encode(&encode_key(key))),
            }
        }
        Some(changes)
    }

    pub(crate) fn hashes(&self, node: &str) -> TableHashes {
        let own = self.nodes.get(node).map(Node::hash);
        let nothing = || [NodeInfo::default().content_hash()].into_iter().collect();
        TableHashes {
            records: self.records.hash(),
            own: own.unwrap_or_else(nothing),
        }
    }

    /// What changed of a node's own after `cursor`; `None` if that is not known any more, or
    /// `cursor` never was a revision here.
    pub(crate) fn own_since(&self, node: &str, cursor: u64) -> Option<OwnChanges> {
        if cursor > self.head {
            return None;
        }
        let Some(own) = self.nodes.get(node) else {
            return (cursor >= self.idle_floor).then(OwnChanges::default);
        };
        let info = (own.info_changed > cursor).then(|| own.info.encoded.clone());
        Some(OwnChanges {
            lists: own.lists.since(cursor)?,
            info,
        })
    }

    /// As [`own_since`](Self::own_since), or all that is the node's own if that is not known, and
    /// whether it is all. `None` if `cursor` never was a revision here.
    pub(crate) fn own_after(&self, node: &str, cursor: u64) -> Option<(OwnChanges, bool)> {
        if cursor > self.head {
            return None;
        }
        let since = self.own_since(node, cursor);
        Some(since.map_or_else(|| (self.own(node), true), |own| (own, false)))
    }

    /// All that is a node's own.
    pub(crate) fn own(&self, node: &str) -> OwnChanges {
        let own = self.nodes.get(node);
        OwnChanges {
            lists: own.map(|own| own.lists.all()).unwrap_or_default(),
            info: own.map(|own| own.info.encoded.clone()),
        }
    }

    /// As [`own`](Self::own), and that it is all; nothing if it is equal to what the node has.
    pub(crate) fn own_unless(&self, node: &str, has: SetHash) -> (OwnChanges, bool) {
        if self.hashes(node).own == has {
            return (OwnChanges::default(), false);
        }
        (self.own(node), true)
    }

    pub(crate) fn table(&self, node: &str) -> NodeTable {
        let own = self.nodes.get(node);
        NodeTable {
            node: own.map(|own| own.info.info.clone()).unwrap_or_default(),
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
            info: NodeItem::default(),
            info_changed: floor,
            idle_since: None,
            named: OnceLock::new(),
        }
    }

    fn is_idle(&self) -> bool {
        self.lists.is_empty() && self.info.is_default()
    }

    fn hash(&self) -> SetHash {
        let mut hash = self.lists.hash();
        hash.insert(self.info.hash);
        hash
    }
}
