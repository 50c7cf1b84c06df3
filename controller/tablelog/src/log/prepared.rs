// SPDX-License-Identifier: Apache-2.0

//! A delta with everything encoded and hashed: the part of publishing that needs no lock.

use std::sync::Arc;

use portolan_model::{ContentHash, NodeInfo, NodeKey, NodeOverlay, Record, RecordKey};
use portolan_proto::buckets::bucket_of;
use portolan_proto::convert::{encode_key, encode_lists, encode_node, encode_record};
use portolan_proto::encoded::encode;
use portolan_select::TableDelta;
use prost::bytes::Bytes;

use super::buckets::MOST_BUCKETS;

/// A [`TableDelta`], encoded.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) records: Vec<(RecordKey, Option<Item<Record>>)>,
    pub(crate) lists: Vec<(NodeKey, RecordKey, Option<Item<NodeOverlay>>)>,
    pub(crate) nodes: Vec<(NodeKey, NodeItem)>,
}

/// The info of a node, decoded and encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeItem {
    /// The fields that this version understands.
    pub(crate) info: NodeInfo,
    /// The hash of all fields.
    pub(crate) hash: ContentHash,
    pub(crate) encoded: Bytes,
}

impl Default for NodeItem {
    /// The item of a node without info.
    fn default() -> Self {
        Self::from(NodeInfo::default())
    }
}

impl From<NodeInfo> for NodeItem {
    fn from(info: NodeInfo) -> Self {
        let hash = info.content_hash();
        Self {
            encoded: encode(&encode_node(&info, hash)),
            info,
            hash,
        }
    }
}

impl NodeItem {
    /// Returns `true` if the info is empty.
    pub(crate) fn is_default(&self) -> bool {
        self.hash == NodeInfo::default().content_hash()
    }
}

/// A value, decoded and encoded.
#[derive(Debug, Clone)]
pub(crate) struct Item<T> {
    pub(crate) value: Arc<T>,
    pub(crate) hash: ContentHash,
    pub(crate) encoded: Bytes,
    /// The bucket of a record, out of [`MOST_BUCKETS`]; 0 for lists, which have no buckets.
    pub(crate) bucket: u16,
    /// Whether `value` has all of `encoded`. A relay may get fields that it does not understand
    /// from a newer controller.
    pub(crate) is_whole: bool,
}

impl From<&TableDelta> for Prepared {
    fn from(delta: &TableDelta) -> Self {
        let records = delta.records.iter();
        let lists = delta.lists.iter();
        let nodes = delta.nodes.iter();
        Self {
            records: records
                .map(|(key, record)| (key.clone(), record.as_ref().map(record_item)))
                .collect(),
            lists: lists
                .flat_map(|(node, lists)| lists.iter().map(move |(key, lists)| (node, key, lists)))
                .map(|(node, key, lists)| {
                    // Empty lists are equivalent to none, and absent in the agent's hash.
                    let lists = lists.as_ref().filter(|lists| !lists.is_default());
                    let item = lists.map(|lists| lists_item(key, lists));
                    (node.clone(), key.clone(), item)
                })
                .collect(),
            nodes: nodes
                .map(|(node, info)| (node.clone(), info.clone().into()))
                .collect(),
        }
    }
}

fn record_item(record: &Arc<Record>) -> Item<Record> {
    let hash = record.content_hash();
    Item {
        value: Arc::clone(record),
        hash,
        encoded: encode(&encode_record(record, hash)),
        bucket: bucket(&record.key),
        is_whole: true,
    }
}

fn lists_item(key: &RecordKey, lists: &Arc<NodeOverlay>) -> Item<NodeOverlay> {
    let hash = lists.content_hash(key);
    Item {
        value: Arc::clone(lists),
        hash,
        encoded: encode(&encode_lists(key, lists, hash)),
        bucket: 0,
        is_whole: true,
    }
}

/// The bucket of a record, out of [`MOST_BUCKETS`].
pub(crate) fn bucket(key: &RecordKey) -> u16 {
    let bucket = bucket_of(&encode_key(key), MOST_BUCKETS);
    u16::try_from(bucket).unwrap_or_default()
}
