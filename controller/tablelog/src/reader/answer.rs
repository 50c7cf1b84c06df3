//! Questions and answers between a stream and the tables.

use crate::feed::Delivery;
use crate::log::TableHashes;

/// The table that an agent states to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Have {
    /// The epoch of `revision`; 0 if it has none.
    pub epoch: u64,
    /// The revision of its last Commit.
    pub revision: u64,
    /// The hashes of its table, if it has one.
    pub hashes: Option<TableHashes>,
    /// How far the sources of that table were; empty if unknown.
    pub source_versions: Vec<u64>,
}

/// The first transition of a stream.
#[derive(Debug)]
pub enum First {
    /// A transition, and how it makes the agent's table equal.
    Deliver(Delivery, How),
    /// The agent is asked for the hashes of this many buckets.
    Ask(u32),
    /// As [`Ask`](Self::Ask), but another agent with the same records was asked already. The
    /// question is put again after [`ANSWERED_WITHIN`](crate::ANSWERED_WITHIN).
    Wait(u32),
    /// The agent's table is newer.
    Behind,
    /// A snapshot, when it is the agent's turn.
    Snapshot,
}

/// How an agent's table becomes equal without a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It is equal already, also if another controller sent it.
    Equal,
    /// The differences are sent.
    Resume,
    /// The buckets that differ are sent, as told by another agent with the same records.
    Buckets,
}

/// The next transition of a stream.
#[derive(Debug)]
pub enum Next {
    /// Nothing before something changes.
    Nothing,
    /// A transition.
    Deliver(Delivery),
    /// A snapshot, when it is the agent's turn.
    Snapshot,
}
