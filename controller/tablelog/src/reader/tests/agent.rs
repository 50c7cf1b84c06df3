// SPDX-License-Identifier: Apache-2.0

//! A test agent that checks each transition against its Commit.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_model::{NodeKey, NodeTable};
use portolan_proto::buckets::{bucket_hashes, bucket_of};
use portolan_proto::convert::{
    apply_patch, decode_key, decode_lists, decode_node, decode_record, encode_key,
};
use portolan_proto::v1;
use prost::bytes::Bytes;

use super::super::*;
use crate::feed::Delivery;
use crate::testing::decode;

pub(super) fn all(mut delivery: Delivery) -> Vec<Bytes> {
    std::iter::from_fn(|| delivery.next_chunk()).collect()
}

/// An agent that applies encoded transitions.
#[derive(Debug, Clone, Default)]
pub(super) struct Agent {
    /// The epoch and revision of the last Commit.
    pub(super) at: Option<(u64, u64)>,
    pub(super) table: NodeTable,
}

impl Agent {
    pub(super) fn have(&self) -> Have {
        let (epoch, revision) = self.at.unwrap_or_default();
        Have {
            epoch,
            revision,
            hashes: self.at.map(|_| TableHashes {
                records: self.table.records_hash(),
                own: self.table.own_hash(),
            }),
            source_versions: Vec::new(),
            since: None,
        }
    }

    /// Begins a stream. With `buckets`, the hashes of that many buckets are sent unless the agent
    /// gets a transition at once.
    pub(super) fn connect(&mut self, tables: &TableReader, node: &NodeKey, buckets: Option<u32>) {
        let (feed, scope) = (tables.feed(&node.cluster), Scope::from(node));
        let first = tables.first(&feed, &scope, &self.have());
        let delivery = match (first, buckets) {
            (First::Snapshot | First::Ask(_) | First::Wait(_), Some(count)) => {
                let hashes = self.have().hashes;
                hashes.and_then(|of| tables.buckets(&feed, node, of, &self.buckets(count)))
            }
            (First::Deliver(delivery, _), _) => Some(delivery),
            _ => None,
        };
        let delivery = delivery.unwrap_or_else(|| tables.snapshot(&feed, &scope));
        self.take_delivery(tables, node, delivery);
    }

    pub(super) fn buckets(&self, count: u32) -> Vec<[u8; 8]> {
        let records: Vec<_> = self.table.records.values().collect();
        let keys: Vec<_> = records.iter().map(|r| encode_key(&r.key)).collect();
        let hashes = records.iter().map(|r| r.content_hash());
        let hashes = bucket_hashes(keys.iter().zip(hashes), count);
        hashes.as_chunks().0.to_vec()
    }

    /// Takes transitions until there are no more; returns their number.
    pub(super) fn follow(&mut self, tables: &TableReader, node: &NodeKey) -> usize {
        let (feed, scope) = (tables.feed(&node.cluster), Scope::from(node));
        let mut transitions = 0;
        loop {
            let delivery = match tables.next(&feed, &scope, self.at.unwrap().1) {
                Next::Nothing => return transitions,
                Next::Deliver(delivery) => delivery,
                Next::Snapshot => tables.snapshot(&feed, &scope),
            };
            self.take_delivery(tables, node, delivery);
            transitions += 1;
        }
    }

    pub(super) fn take_delivery(
        &mut self,
        tables: &TableReader,
        node: &NodeKey,
        delivery: Delivery,
    ) {
        let revision = delivery.revision;
        let (frames, items) = (delivery.frames(), delivery.items());
        let decoded = decode(all(delivery));
        assert!(
            decoded.len() <= frames.max(1) + 3,
            "{frames} frames, {decoded:?}"
        );
        let mut staged = Staged::of(decoded, &node.cluster);
        assert_eq!(staged.items, items);
        let commit = staged.commit.take().unwrap();
        if commit.snapshot {
            self.table = NodeTable::default();
        }
        let had_own = self.table.own_hash();
        staged.apply(&mut self.table);
        assert_eq!(commit.revision, revision);
        assert_eq!(
            self.table.records_hash().to_bytes()[..],
            commit.records_hash
        );
        if commit.own_hash.is_empty() {
            assert_eq!(had_own, self.table.own_hash());
        } else {
            assert_eq!(self.table.own_hash().to_bytes()[..], commit.own_hash);
        }
        self.at = Some((tables.epoch(), revision));
    }
}

#[derive(Default)]
struct Staged {
    put: Vec<Arc<portolan_model::Record>>,
    delete: Vec<portolan_model::RecordKey>,
    patch: Vec<v1::RecordPatch>,
    replace: Option<(Vec<u32>, u32)>,
    lists: Vec<(
        portolan_model::RecordKey,
        Option<Arc<portolan_model::NodeOverlay>>,
    )>,
    replace_own: bool,
    info: Option<portolan_model::NodeInfo>,
    commit: Option<v1::Commit>,
    items: usize,
}

impl Staged {
    fn of(frames: impl IntoIterator<Item = v1::Frame>, cluster: &Arc<str>) -> Self {
        let mut staged = Self::default();
        for frame in frames {
            assert_eq!(staged.commit, None);
            match frame.frame.unwrap() {
                v1::frame::Frame::Records(records) => staged.records(records, cluster),
                v1::frame::Frame::Own(own) => staged.own(own, cluster),
                v1::frame::Frame::Commit(commit) => staged.commit = Some(commit),
                other => panic!("{other:?}"),
            }
        }
        let mut seen = BTreeSet::new();
        let puts = staged.put.iter().map(|record| record.key.clone());
        let patches = staged
            .patch
            .iter()
            .map(|p| decode_key(p.key.as_ref().unwrap(), cluster).unwrap());
        for key in puts.chain(patches).chain(staged.delete.iter().cloned()) {
            assert!(seen.insert(key.clone()), "{key:?} twice");
        }
        staged
    }

    fn records(&mut self, records: v1::Records, cluster: &Arc<str>) {
        self.items += records.put.len() + records.delete.len() + records.patch.len();
        let decode = |record| decode_record(&record, cluster).unwrap().record.into();
        self.put.extend(records.put.into_iter().map(decode));
        let keys = records.delete.iter();
        self.delete
            .extend(keys.map(|key| decode_key(key, cluster).unwrap()));
        self.patch.extend(records.patch);
        if records.bucket_count > 0 {
            self.replace = Some((records.replace_buckets, records.bucket_count));
        }
    }

    fn own(&mut self, own: v1::Own, cluster: &Arc<str>) {
        self.items += own.put.len() + own.delete.len();
        self.replace_own |= own.replace;
        for lists in own.put {
            let decoded = decode_lists(&lists, cluster).unwrap();
            self.lists.push((decoded.key, Some(decoded.lists.into())));
        }
        for key in own.delete {
            self.lists.push((decode_key(&key, cluster).unwrap(), None));
        }
        self.info = own
            .node
            .map(|node| decode_node(&node).unwrap().node)
            .or(self.info.take());
    }

    fn apply(self, table: &mut NodeTable) {
        if let Some((buckets, count)) = self.replace {
            let stays = |key: &portolan_model::RecordKey| {
                !buckets.contains(&bucket_of(&encode_key(key), count))
            };
            let records = std::mem::take(&mut table.records).into_iter();
            table.records = records.filter(|(key, _)| stays(key)).collect();
        }
        for patch in self.patch {
            let cluster = table.records.keys().next().unwrap().cluster.clone();
            let key = decode_key(patch.key.as_ref().unwrap(), &cluster).unwrap();
            let base = &table.records[&key];
            assert_eq!(base.content_hash().to_bytes()[..], patch.base);
            let patched = apply_patch(base, &patch).unwrap();
            assert_eq!(patched.content_hash().to_bytes()[..], patch.hash);
            table.records.insert(key, patched.into());
        }
        for record in self.put {
            table.records.insert(record.key.clone(), record);
        }
        for key in self.delete {
            table.records.remove(&key);
        }
        if self.replace_own {
            table.lists.clear();
            table.node = portolan_model::NodeInfo::default();
        }
        for (key, lists) in self.lists {
            match lists {
                Some(lists) => table.lists.insert(key, lists),
                None => table.lists.remove(&key),
            };
        }
        table.node = self.info.unwrap_or(std::mem::take(&mut table.node));
    }
}
