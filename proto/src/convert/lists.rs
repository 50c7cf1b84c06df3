// SPDX-License-Identifier: Apache-2.0

//! Overlays of nodes.

use std::sync::Arc;

use portolan_model::{ContentHash, NodeOverlay, RecordKey};

use super::destinations::{
    decode_addresses, decode_destinations, encode_addresses, encode_destinations,
};
use super::key::required_key;
use super::network::{decode_families, encode_families};
use super::{DecodeError, decode_hash, encode_key};
use crate::v1;

/// A node's lists for one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedLists {
    /// The record.
    pub key: RecordKey,
    /// The lists themselves.
    pub lists: NodeOverlay,
    /// Their hash as the sender stated it.
    pub hash: ContentHash,
}

/// Lists with their key and hash.
#[must_use]
pub fn encode_lists(key: &RecordKey, lists: &NodeOverlay, hash: ContentHash) -> v1::NodeLists {
    v1::NodeLists {
        key: Some(encode_key(key)),
        hash: hash.to_bytes().into(),
        cluster: encode_destinations(&lists.cluster),
        local: encode_destinations(&lists.local),
        own: encode_addresses(lists.own.iter().copied()),
        terminating: encode_families(lists.terminating),
    }
}

/// Decodes a node's lists.
///
/// # Errors
/// If they break a rule of the protocol: the lists are refused as a whole.
pub fn decode_lists(from: &v1::NodeLists, cluster: &Arc<str>) -> Result<DecodedLists, DecodeError> {
    Ok(DecodedLists {
        key: required_key(from.key.as_ref(), cluster)?,
        hash: decode_hash(&from.hash)?,
        lists: NodeOverlay {
            cluster: decode_destinations(from.cluster.as_ref(), 1)?,
            local: decode_destinations(from.local.as_ref(), 1)?,
            own: decode_addresses(from.own.as_ref(), 1)?,
            terminating: decode_families(&from.terminating),
        },
    })
}
