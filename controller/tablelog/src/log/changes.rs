// SPDX-License-Identifier: Apache-2.0

//! Changes, encoded.

use portolan_model::SetHash;
use portolan_proto::encoded::size_in_frame;
use prost::bytes::Bytes;

/// Changes of records or of lists, encoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// New values, each a `Record` or a `NodeOverlay`.
    pub(crate) put: Vec<Bytes>,
    /// Deletions, each a `RecordKey`.
    pub(crate) delete: Vec<Bytes>,
    /// Changed destinations, each a `RecordPatch`.
    pub(crate) patch: Vec<Bytes>,
}

impl Changes {
    /// The approximate size in frames, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let all = [&self.put, &self.delete, &self.patch];
        all.into_iter().flatten().map(size_in_frame).sum()
    }
}

/// Changes of a node's own part.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OwnChanges {
    pub(crate) lists: Changes,
    /// The node's `NodeInfo`, if it changed.
    pub(crate) info: Option<Bytes>,
}

/// The hashes of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableHashes {
    /// The hash of all shared records.
    pub records: SetHash,
    /// The hash of the own part: of the node, or of all nodes for a relay.
    pub own: SetHash,
}
