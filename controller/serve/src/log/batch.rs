//! What one agent is sent in one transition.

use portolan_model::{NodeInfo, SetHash};
use portolan_proto::v1;
use prost::bytes::Bytes;

/// One transition of one node's table, encoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The revision that the node's table then has.
    pub revision: u64,
    /// Whether this is the whole table, not a change.
    pub snapshot: bool,
    /// Shared records.
    pub records: Changes,
    /// The node's own lists.
    pub own: Changes,
    /// What is known of the node, if that changed.
    pub node: Option<v1::NodeInfo>,
    /// The hash of all shared records after this.
    pub records_hash: SetHash,
    /// The hash of all that is the node's own after this.
    pub own_hash: SetHash,
}

/// Changes of records or of lists, encoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// New values, each a `Record` or a `NodeLists`.
    pub put: Vec<Bytes>,
    /// What is gone, each a `RecordKey`.
    pub delete: Vec<Bytes>,
}

impl Batch {
    /// Nothing, for a node of a cluster that never had anything.
    pub(super) fn nothing() -> Self {
        Self {
            revision: 0,
            snapshot: false,
            records: Changes::default(),
            own: Changes::default(),
            node: None,
            records_hash: SetHash::default(),
            own_hash: [NodeInfo::default().content_hash()].into_iter().collect(),
        }
    }
}

impl Changes {
    /// How many records or lists change.
    #[must_use]
    pub fn len(&self) -> usize {
        self.put.len() + self.delete.len()
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
