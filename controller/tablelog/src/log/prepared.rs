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

/// What is known of a node, as it is kept and as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeItem {
    /// As far as this version understands it.
    pub(crate) info: NodeInfo,
    /// Of all of it.
    pub(crate) hash: ContentHash,
    pub(crate) encoded: Bytes,
}

impl Default for NodeItem {
    /// Of a node of which nothing is known.
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
    /// Whether nothing is known of the node.
    pub(crate) fn is_default(&self) -> bool {
        self.hash == NodeInfo::default().content_hash()
    }
}

/// A value as it is kept and as it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Item<T> {
    pub(crate) value: Arc<T>,
    pub(crate) hash: ContentHash,
    pub(crate) encoded: Bytes,
    /// The bucket of a record, of [`MOST_BUCKETS`]; lists are in none.
    pub(crate) bucket: u16,
    /// Whether `value` is all that `encoded` says: not of what a newer controller sent a relay.
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
                    // Lists that say nothing are as good as none, and absent in the agent's hash.
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

/// The bucket of a record, of [`MOST_BUCKETS`].
pub(crate) fn bucket(key: &RecordKey) -> u16 {
    let bucket = bucket_of(&encode_key(key), MOST_BUCKETS);
    u16::try_from(bucket).unwrap_or_default()
}
