// SPDX-License-Identifier: Apache-2.0

//! The state that a stream presents to the tables, and the transitions that it gets.

use tokio::time::Instant;

use crate::feed::Delivery;
use crate::log::TableHashes;

/// The table that an agent claims to hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Have {
    /// The epoch of `revision`; 0 if the agent has none.
    pub epoch: u64,
    /// The revision of the agent's last Commit.
    pub revision: u64,
    /// The hashes of the agent's table, if it has one.
    pub hashes: Option<TableHashes>,
    /// The versions of the sources of that table; empty if unknown.
    pub source_versions: Vec<u64>,
    /// When the agent said so; `None` if unknown.
    pub since: Option<Instant>,
}

/// The first transition of a stream.
#[derive(Debug)]
pub enum First {
    /// A transition, and the kind of that transition.
    Deliver(Delivery, How),
    /// A request for the hashes of this many buckets.
    Ask(u32),
    /// As [`Ask`](Self::Ask), but another agent with the same records was asked already. The stream
    /// tries again after [`ANSWERED_WITHIN`](crate::ANSWERED_WITHIN).
    Wait(u32),
    /// The agent's table is newer than these tables.
    Behind,
    /// A snapshot, sent when it is the agent's turn.
    Snapshot,
}

/// The kind of a first transition without a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The table is equal already, even if another controller sent it.
    Equal,
    /// The differences since the agent's revision, or the whole own part of its node.
    Resume,
    /// The buckets that differ, from the hashes of another agent with the same records.
    Buckets,
}

/// The next transition of a stream.
#[derive(Debug)]
pub enum Next {
    /// None until the tables change.
    Nothing,
    /// A transition.
    Deliver(Delivery),
    /// A snapshot, sent when it is the agent's turn.
    Snapshot,
}
