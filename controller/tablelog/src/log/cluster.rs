// SPDX-License-Identifier: Apache-2.0

//! The shared records and the nodes of one cluster.

mod all;
mod changed;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use portolan_model::{
    ContentHash, Destination, NodeInfo, NodeOverlay, NodeTable, Protocol, Record, RecordKey,
    SetHash,
};
use portolan_proto::convert::encode_key;
use portolan_proto::encoded::encode;
use prost::bytes::Bytes;

use super::buckets::Buckets;
use super::journal::{Journal, Replaced};
use super::prepared::{Item, NodeItem};
use super::{Changes, OwnChanges, Retention, TableHashes};
use crate::scope::Scope;

pub(crate) use all::NodeChanges;
pub use changed::{Differences, TablePart};

/// The number of revisions whose trigger times are kept: more than a live stream falls behind.
const TRIGGERS_OF: usize = 64;

/// The most trigger times in a Commit.
const MAX_TRIGGERS: usize = 64;

/// The tables of one cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    retention: Retention,
    head: u64,
    source_versions: Vec<u64>,
    records: Journal<Record>,
    buckets: Buckets,
    /// The nodes, unsorted for fast lookups: each agent that connects needs several.
    nodes: HashMap<Arc<str>, Node>,
    /// The nodes with an empty own part, by the revision that emptied it.
    idle: BTreeSet<(u64, Arc<str>)>,
    /// Idle nodes of this revision and older may be forgotten already.
    idle_floor: u64,
    /// The trigger times of the last revisions.
    triggers: VecDeque<(u64, Box<[u64]>)>,
}

/// The own part of one node.
#[derive(Debug)]
struct Node {
    lists: Journal<NodeOverlay>,
    info: NodeItem,
    info_changed: u64,
    idle_since: Option<u64>,
    /// The node's term in the hash of all nodes; computed for the first relay that needs it.
    named: OnceLock<ContentHash>,
}

impl Cluster {
    pub(super) fn new(retention: Retention) -> Self {
        Self {
            retention,
            head: 0,
            source_versions: Vec::new(),
            records: Journal::new(0),
            buckets: Buckets::default(),
            nodes: HashMap::new(),
            idle: BTreeSet::new(),
            idle_floor: 0,
            triggers: VecDeque::new(),
        }
    }

    /// Takes the higher of each component. A different number of components means another source:
    /// its versions replace the known ones.
    pub(super) fn raise(&mut self, versions: &[u64]) {
        if versions.len() == self.source_versions.len() {
            for (ours, theirs) in self.source_versions.iter_mut().zip(versions) {
                *ours = (*ours).max(*theirs);
            }
        } else {
            self.source_versions = versions.to_vec();
        }
    }

    /// Forgets the versions of a source that is gone.
    pub(super) fn forget_versions(&mut self) {
        self.source_versions.clear();
    }

    /// The versions of the cluster's source; empty if it has none.
    pub(crate) fn source_versions(&self) -> &[u64] {
        &self.source_versions
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
        // Up to one deletion per value, deletions cost no more than a snapshot.
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

    /// The last revision that changed this cluster; 0 if none did.
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

    /// All records in `buckets` (sorted) out of `count`, in order of their keys.
    pub(crate) fn of_buckets(&self, buckets: &[u32], count: u32) -> Vec<Bytes> {
        let wanted = |bucket: u16| buckets.binary_search(&(u32::from(bucket) % count)).is_ok();
        let records = self.records.iter().filter(|(_, item)| wanted(item.bucket));
        records.map(|(_, item)| item.encoded.clone()).collect()
    }

    /// The trigger times of the changes after `cursor`, in milliseconds of Unix time; the first
    /// [`MAX_TRIGGERS`] of them.
    pub(crate) fn triggers_since(&self, cursor: u64) -> Vec<u64> {
        let since = self
            .triggers
            .iter()
            .filter(|(revision, _)| *revision > cursor);
        let times = since.flat_map(|(_, times)| times.iter().copied());
        times.take(MAX_TRIGGERS).collect()
    }

    /// The changes of the records after `from`, with `patches` in place of the records of their
    /// keys; `None` if some changes have been dropped.
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

    /// The changes of a node's own part after `cursor`; `None` if some have been dropped, or
    /// `cursor` is after the head.
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

    /// As [`own_since`](Self::own_since), or the whole own part if changes have been dropped; and
    /// whether it is the whole. `None` if `cursor` is after the head.
    pub(crate) fn own_after(&self, node: &str, cursor: u64) -> Option<(OwnChanges, bool)> {
        if cursor > self.head {
            return None;
        }
        let since = self.own_since(node, cursor);
        Some(since.map_or_else(|| (self.own(node), true), |own| (own, false)))
    }

    /// The whole own part of a node.
    pub(crate) fn own(&self, node: &str) -> OwnChanges {
        let own = self.nodes.get(node);
        OwnChanges {
            lists: own.map(|own| own.lists.all()).unwrap_or_default(),
            info: own.map(|own| own.info.encoded.clone()),
        }
    }

    /// The whole own part and `true`; no changes and `false` if the agent's own part, with the hash
    /// `has`, is equal.
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
            ..NodeTable::default()
        }
    }

    /// Returns `true` if some list of a Service, named by namespace and name, has such a
    /// destination.
    pub(crate) fn has_destination(
        &self,
        scope: &Scope,
        service: (&str, &str),
        is: impl Fn(&Destination) -> bool,
    ) -> bool {
        let first = RecordKey {
            cluster: Arc::clone(scope.cluster()),
            namespace: service.0.into(),
            service: service.1.into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        let is_of = |key: &RecordKey| (&*key.namespace, &*key.service) == service;
        let in_lists = |own: &Node| {
            let lists = own.lists.range(Bound::Included(&first), Bound::Unbounded);
            let mut lists = lists.take_while(|(key, _)| is_of(key));
            lists.any(|(_, item)| item.value.cluster.iter().chain(&item.value.local).any(&is))
        };
        let records = self
            .records
            .range(Bound::Included(&first), Bound::Unbounded);
        let mut records = records.take_while(|(key, _)| is_of(key));
        records.any(|(_, item)| item.value.destinations.iter().any(&is))
            || match scope {
                Scope::Node(node) => self.nodes.get(&node.name).is_some_and(in_lists),
                Scope::AllNodes(_) => self.nodes.values().any(in_lists),
            }
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> (usize, usize) {
        (self.records.tombstones(), self.nodes.len())
    }
}

impl Node {
    /// A node whose changes up to the revision `floor` are not known: it may have been forgotten.
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
