// SPDX-License-Identifier: Apache-2.0

//! Writes for the cluster of an edge, on their way from the centre.
//!
//! The centre keeps a [`WorkOutbox`] for each stream, the edge a [`WorkInbox`]. Both begin empty with the stream, so
//! that the first change brings all work, and later ones what differs.

mod inbox;
mod outbox;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_federate::imports::ImportName;
use portolan_mcs::{WantedSlice, Write, WriteKind};
use portolan_model::ContentHash;
use portolan_proto::v1;

pub use inbox::{RefusedItem, WorkError, WorkInbox};
pub use outbox::{LeftOut, WorkChange, WorkOutbox};

/// Keeps the hashes of items apart from any other use of BLAKE3.
const ITEM_KEY: &[u8; 32] = b"portolan.v1 work of an edge(key)";

/// The largest item, in bytes: an EndpointSlice of 100 endpoints, or an import with 256 ports and 32 KiB of
/// annotations, has less.
pub const MAX_ITEM_BYTES: usize = 512 << 10;
/// The most ServiceExports and ServiceImports that are to be written at a time.
pub const MAX_WRITES: usize = 1_000;
/// The most EndpointSlices of imports of a cluster.
pub const MAX_SLICES: usize = 10_000;
/// The most bytes of all EndpointSlices of imports.
pub const MAX_SLICE_BYTES: usize = 32 << 20;
/// The most bytes of all items, those before a commit too.
const MAX_BYTES: usize = 64 << 20;
/// The most bytes of ServiceExports and ServiceImports that are to be written at a time: what EndpointSlices and the ids
/// of items that are gone leave.
const MAX_WRITE_BYTES: usize = MAX_BYTES - MAX_SLICE_BYTES - (4 << 20);

/// All EndpointSlices of imports, by name.
pub type WantedSlices = BTreeMap<ImportName, WantedSlice>;

/// All writes for a cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EdgeWork {
    /// True if the sender leads.
    pub leading: bool,
    /// Writes of ServiceExports and ServiceImports, in order.
    pub writes: Arc<Vec<Write>>,
    /// The EndpointSlices of imports; `None` if none is written or deleted.
    pub slices: Option<Arc<WantedSlices>>,
}

fn hash_of(bytes: &[u8]) -> ContentHash {
    let hash = blake3::keyed_hash(ITEM_KEY, bytes);
    let mut first = [0; 16];
    let (half, _) = hash.as_bytes().split_at(16);
    first.copy_from_slice(half);
    ContentHash(u128::from_be_bytes(first))
}

fn id_of(kind: WriteKind, name: &ImportName) -> v1::ObjectId {
    let kind = match kind {
        WriteKind::ServiceExport => v1::ObjectKind::ServiceExport,
        WriteKind::ServiceImport => v1::ObjectKind::ServiceImport,
        WriteKind::EndpointSlice => v1::ObjectKind::EndpointSlice,
    };
    v1::ObjectId {
        kind: kind.into(),
        namespace: (*name.namespace).to_owned(),
        name: (*name.name).to_owned(),
    }
}
