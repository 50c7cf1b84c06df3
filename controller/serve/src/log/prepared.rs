//! A delta with everything encoded and hashed: the part of publishing that needs no lock.

use std::sync::Arc;

use portolan_model::{ContentHash, NodeInfo, NodeKey, NodeLists, Record, RecordKey};
use portolan_proto::convert::{encode_lists, encode_record};
use portolan_proto::encoded::encode;
use portolan_select::TableDelta;
use prost::bytes::Bytes;

/// A [`TableDelta`], encoded.
#[derive(Debug)]
pub struct Prepared {
    pub(super) records: Vec<(RecordKey, Option<Item<Record>>)>,
    pub(super) lists: Vec<(NodeKey, RecordKey, Option<Item<NodeLists>>)>,
    pub(super) nodes: Vec<(NodeKey, NodeInfo)>,
}

/// A value as it is kept and as it is sent.
#[derive(Debug)]
pub(super) struct Item<T> {
    pub(super) value: Arc<T>,
    pub(super) hash: ContentHash,
    pub(super) encoded: Bytes,
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
                .map(|(node, info)| (node.clone(), info.clone()))
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
    }
}

fn lists_item(key: &RecordKey, lists: &Arc<NodeLists>) -> Item<NodeLists> {
    let hash = lists.content_hash(key);
    Item {
        value: Arc::clone(lists),
        hash,
        encoded: encode(&encode_lists(key, lists, hash)),
    }
}
