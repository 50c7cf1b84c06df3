//! What changed, encoded.

use portolan_model::SetHash;
use portolan_proto::encoded::size_in_frame;
use prost::bytes::Bytes;

/// Changes of records or of lists, encoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// New values, each a `Record` or a `NodeOverlay`.
    pub(crate) put: Vec<Bytes>,
    /// What is gone, each a `RecordKey`.
    pub(crate) delete: Vec<Bytes>,
    /// Changed destinations, each a `RecordPatch`.
    pub(crate) patch: Vec<Bytes>,
}

impl Changes {
    /// About how long they are in frames, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let all = [&self.put, &self.delete, &self.patch];
        all.into_iter().flatten().map(size_in_frame).sum()
    }
}

/// Changes of what is a node's own.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OwnChanges {
    pub(crate) lists: Changes,
    /// What is known of the node, a `NodeInfo`, if that changed.
    pub(crate) info: Option<Bytes>,
}

/// A node's table by its hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableHashes {
    /// Of all shared records.
    pub records: SetHash,
    /// Of all that is the node's own.
    pub own: SetHash,
}
