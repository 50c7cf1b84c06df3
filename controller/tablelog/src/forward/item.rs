// SPDX-License-Identifier: Apache-2.0

//! Values received from another controller, with their bytes unchanged.

use std::sync::Arc;

use portolan_model::{ContentHash, NodeInfo, NodeOverlay, Record, RecordKey};
use portolan_proto::convert::{
    decode_hash, decode_key, decode_lists, decode_node, decode_record, encode_record,
};
use portolan_proto::encoded::encode;
use portolan_proto::v1;
use prost::Message;
use prost::bytes::Bytes;

use super::ForwardError;
use crate::log::{Item, NodeItem, bucket};

/// A received key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Known(RecordKey),
    /// An encoded key that this version cannot decode.
    Foreign(Bytes),
}

/// A received value; without an item if its key is foreign.
pub(super) struct Value<T> {
    pub(super) key: Key,
    pub(super) hash: ContentHash,
    pub(super) item: Option<Item<T>>,
}

/// Decodes a `RecordKey`.
pub(super) fn key(bytes: &Bytes, cluster: &Arc<str>) -> Result<Key, ForwardError> {
    let key = v1::RecordKey::decode(bytes.clone()).map_err(ForwardError::unreadable)?;
    Ok(key_of(Some(key), cluster))
}

fn key_of(key: Option<v1::RecordKey>, cluster: &Arc<str>) -> Key {
    let key = key.unwrap_or_default();
    decode_key(&key, cluster).map_or_else(|_| Key::Foreign(encode(&key)), Key::Known)
}

/// Decodes a `Record`. Fields that this version does not understand are forwarded.
pub(super) fn record(bytes: Bytes, cluster: &Arc<str>) -> Result<Value<Record>, ForwardError> {
    let message = v1::Record::decode(bytes.clone()).map_err(ForwardError::unreadable)?;
    let hash = decode_hash(&message.hash)?;
    let key = key_of(message.key.clone(), cluster);
    let item = match &key {
        Key::Foreign(_) => None,
        Key::Known(known) => {
            let decoded = decode_record(&message, cluster).map(|decoded| decoded.record);
            let is_whole = |record| encode(&encode_record(record, hash)) == bytes;
            Some(Item {
                is_whole: decoded.as_ref().is_ok_and(is_whole),
                value: Arc::new(decoded.unwrap_or_else(|_| Record::new(known.clone()))),
                hash,
                encoded: bytes,
                bucket: bucket(known),
            })
        }
    };
    Ok(Value { key, hash, item })
}

/// Decodes a `NodeOverlay`, as [`record`] does.
pub(super) fn lists(bytes: Bytes, cluster: &Arc<str>) -> Result<Value<NodeOverlay>, ForwardError> {
    let message = v1::NodeLists::decode(bytes.clone()).map_err(ForwardError::unreadable)?;
    let hash = decode_hash(&message.hash)?;
    let key = key_of(message.key.clone(), cluster);
    let item = match &key {
        Key::Foreign(_) => None,
        Key::Known(_) => {
            let decoded = decode_lists(&message, cluster);
            Some(Item {
                is_whole: decoded.is_ok(),
                value: Arc::new(decoded.map(|decoded| decoded.lists).unwrap_or_default()),
                hash,
                encoded: bytes,
                bucket: 0,
            })
        }
    };
    Ok(Value { key, hash, item })
}

/// Decodes a `NodeInfo`, as [`record`] does. An invalid one is forwarded if it states its hash:
/// each agent decides whether it can take it.
pub(super) fn node_item(bytes: Bytes, node: &Arc<str>) -> Result<NodeItem, ForwardError> {
    let message = v1::NodeInfo::decode(bytes.clone()).map_err(ForwardError::unreadable)?;
    let (info, hash) = match decode_node(&message) {
        Ok(decoded) => (decoded.node, decoded.hash),
        Err(reason) => {
            let hash = decode_hash(&message.hash).map_err(|_| ForwardError::Node {
                node: Arc::clone(node),
                reason,
            })?;
            (NodeInfo::default(), hash)
        }
    };
    Ok(NodeItem {
        info,
        hash,
        encoded: bytes,
    })
}
