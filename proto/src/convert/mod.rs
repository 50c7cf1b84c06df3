// SPDX-License-Identifier: Apache-2.0

//! Conversions of messages to and from the model.
//!
//! The cluster is not on the wire: it is the stream's. Invariants of the model that
//! messages cannot express (order, no duplicates) are checked here, so that users of the model can rely
//! on them.

mod destinations;
mod error;
mod frontend;
mod key;
mod lists;
mod network;
mod node;
mod patch;
mod record;

use portolan_model::{ContentHash, SetHash};

pub use error::{DecodeError, DecodeErrorKind};
pub use key::{decode_key, encode_key};
pub use lists::{DecodedLists, decode_lists, encode_lists};
pub use node::{DecodedNode, decode_node, encode_node};
pub use patch::{apply_patch, make_patch};
pub use record::{DecodedRecord, decode_record, encode_record};

/// The hash of a record, of a node's lists or of facts about a node.
///
/// # Errors
/// If it has not 16 bytes.
pub fn decode_hash(bytes: &[u8]) -> Result<ContentHash, DecodeError> {
    ContentHash::from_bytes(bytes).ok_or_else(|| DecodeError::length("hash", 16, bytes.len()))
}

/// The hash of a table's part that `field` names.
///
/// # Errors
/// If it has not 16 bytes.
pub fn decode_set_hash(field: &'static str, bytes: &[u8]) -> Result<SetHash, DecodeError> {
    SetHash::from_bytes(bytes).ok_or_else(|| DecodeError::length(field, 16, bytes.len()))
}

#[cfg(test)]
mod tests;
