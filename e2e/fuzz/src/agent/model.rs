// SPDX-License-Identifier: Apache-2.0

//! A reference model of the agent's table: all values sent, summed anew each time.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use portolan_model::{ByRecord, ContentHash, NodeInfo, NodeOverlay, NodeTable, Record, SetHash};
use portolan_proto::convert::{decode_hash, decode_key, decode_lists, decode_node, decode_record};
use portolan_proto::v1;

/// All values sent to an agent, staged and in force.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) epoch: u64,
    /// The epoch and revision of the last Commit; `None` if it was dropped, or there was none.
    pub(super) position: Option<(u64, u64)>,
    records: Side<Record>,
    lists: Side<NodeOverlay>,
    node: Option<Sent<NodeInfo>>,
    staged_node: Option<Sent<NodeInfo>>,
    /// Messages outside the model were used: it knows no hashes until the next snapshot without
    /// them.
    unsure: bool,
    staged_unsure: bool,
}

/// The hash of a value as sent last, and its last good version.
#[derive(Debug, Clone)]
struct Sent<T> {
    hash: ContentHash,
    good: Option<T>,
}

#[derive(Debug)]
struct Side<T> {
    sent: BTreeMap<v1::RecordKey, Sent<T>>,
    staged: BTreeMap<v1::RecordKey, Option<Sent<T>>>,
}

impl<T> Default for Side<T> {
    fn default() -> Self {
        let (sent, staged) = Default::default();
        Self { sent, staged }
    }
}

impl<T: Clone + PartialEq + Debug> Side<T> {
    fn put(&mut self, key: Option<&v1::RecordKey>, hash: &[u8], good: Option<T>) {
        let hash = decode_hash(hash).unwrap_or(ContentHash(0));
        let key = key.cloned().unwrap_or_default();
        self.staged.insert(key, Some(Sent { hash, good }));
    }

    /// The values after a Commit.
    fn after(&self, snapshot: bool) -> BTreeMap<v1::RecordKey, Sent<T>> {
        let mut next = if snapshot {
            BTreeMap::new()
        } else {
            self.sent.clone()
        };
        for (key, staged) in &self.staged {
            match staged {
                None => drop(next.remove(key)),
                Some(Sent { hash, good }) => {
                    let last = self.sent.get(key).and_then(|last| last.good.clone());
                    let sent = Sent {
                        hash: *hash,
                        good: good.clone().or(last),
                    };
                    next.insert(key.clone(), sent);
                }
            }
        }
        next
    }

    /// Returns `true` if no staged value was refused.
    fn all_good(&self) -> bool {
        let mut put = self.staged.values().flatten();
        put.all(|sent| sent.good.is_some())
    }

    fn sum(sent: &BTreeMap<v1::RecordKey, Sent<T>>) -> SetHash {
        sent.values().map(|sent| sent.hash).collect()
    }

    fn assert_is(&self, table: &ByRecord<T>) {
        let cluster: Arc<str> = "".into();
        let good = self.sent.iter().filter_map(|(key, sent)| {
            let good = sent.good.as_ref()?;
            let key = decode_key(key, &cluster).expect("a good value has a good key");
            Some((key, good))
        });
        let good: BTreeMap<_, _> = good.collect();
        let table: BTreeMap<_, _> = table.iter().map(|(k, v)| (k.clone(), &**v)).collect();
        assert_eq!(table, good);
    }
}

/// The information about a node of which nothing is known.
fn unknown() -> Sent<NodeInfo> {
    let info = NodeInfo::default();
    Sent {
        hash: info.content_hash(),
        good: Some(info),
    }
}

impl Model {
    pub(super) fn records(&mut self, records: &v1::Records) {
        let news = !records.replace_buckets.is_empty() || !records.patch.is_empty();
        self.staged_unsure |= news;
        let cluster: Arc<str> = "".into();
        for put in &records.put {
            let good = decode_record(put, &cluster).ok();
            let good = good.map(|decoded| decoded.record);
            self.records.put(put.key.as_ref(), &put.hash, good);
        }
        for key in &records.delete {
            self.records.staged.insert(key.clone(), None);
        }
    }

    pub(super) fn own(&mut self, own: &v1::Own) {
        // The own part of another node, for relays.
        if !own.of_node.is_empty() {
            return;
        }
        self.staged_unsure |= own.replace;
        let cluster: Arc<str> = "".into();
        for put in &own.put {
            let good = decode_lists(put, &cluster).ok();
            let good = good.map(|decoded| decoded.lists);
            self.lists.put(put.key.as_ref(), &put.hash, good);
        }
        for key in &own.delete {
            self.lists.staged.insert(key.clone(), None);
        }
        if let Some(node) = &own.node {
            let decoded = decode_node(node).ok();
            let stated = || decode_hash(&node.hash).unwrap_or(ContentHash(0));
            self.staged_node = Some(Sent {
                hash: decoded.as_ref().map_or_else(stated, |decoded| decoded.hash),
                good: decoded.map(|decoded| decoded.node),
            });
        }
    }

    /// Marks the transition as one with messages outside the model.
    pub(super) fn unsure(&mut self) {
        self.staged_unsure = true;
    }

    /// Returns `true` if the model knows the agent's expected table.
    pub(super) fn is_sure(&self) -> bool {
        !self.unsure && !self.staged_unsure
    }

    pub(super) fn drop_staged(&mut self) {
        self.records.staged.clear();
        self.lists.staged.clear();
        self.staged_node = None;
        self.staged_unsure = false;
    }

    /// Completes a Commit with the hashes that a controller would state. Returns false if no
    /// controller could send it. A one-byte `own_hash` asks for a Commit that is the same for all
    /// nodes.
    pub(super) fn state(&self, commit: &mut v1::Commit) -> bool {
        let node = self.node_after(commit.snapshot);
        let records = Side::sum(&self.records.after(commit.snapshot));
        let mut own = Side::sum(&self.lists.after(commit.snapshot));
        own.insert(node.hash);
        commit.records_hash = records.to_bytes().into();
        if commit.own_hash.len() == 1 {
            commit.own_hash.clear();
            return !commit.snapshot && self.position.is_some() && own == self.sums().1;
        }
        commit.own_hash = own.to_bytes().into();
        true
    }

    fn node(&self) -> Sent<NodeInfo> {
        self.node.clone().unwrap_or_else(unknown)
    }

    fn node_after(&self, snapshot: bool) -> Sent<NodeInfo> {
        match &self.staged_node {
            Some(Sent { hash, good }) => Sent {
                hash: *hash,
                good: good.clone().or(self.node().good),
            },
            None if snapshot => unknown(),
            None => self.node(),
        }
    }

    /// Applies a Commit that the agent accepted.
    pub(super) fn commit(&mut self, commit: &v1::Commit) {
        let snapshot = commit.snapshot;
        // The last good version of a refused value stays, and the model may not know it either.
        let is_node_good = self
            .staged_node
            .as_ref()
            .is_none_or(|sent| sent.good.is_some());
        let is_whole = snapshot && self.records.all_good() && self.lists.all_good() && is_node_good;
        self.unsure = self.staged_unsure || (self.unsure && !is_whole);
        self.node = Some(self.node_after(snapshot));
        self.records.sent = self.records.after(snapshot);
        self.lists.sent = self.lists.after(snapshot);
        self.position = Some((self.epoch, commit.revision));
        self.drop_staged();
    }

    /// The hashes of the values in force: of the records, and of the node's own part.
    pub(super) fn sums(&self) -> (SetHash, SetHash) {
        let mut own = Side::sum(&self.lists.sent);
        own.insert(self.node().hash);
        (Side::sum(&self.records.sent), own)
    }

    pub(super) fn assert_is(&self, table: &NodeTable) {
        assert_eq!(Some(&table.node), self.node().good.as_ref());
        self.records.assert_is(&table.records);
        self.lists.assert_is(&table.lists);
    }
}
