// SPDX-License-Identifier: Apache-2.0

//! Bounds on the deletions that a log remembers.

/// Bounds on the tombstones and idle nodes of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The number of deleted records that each cluster keeps at least. As many as there are live
    /// records are kept in any case: up to that number, deletions are cheaper than a snapshot.
    pub record_tombstones: usize,
    /// The number of deleted lists that each node keeps at most, as there are many nodes. An agent
    /// that missed more gets all of its node's lists, which are few.
    pub list_tombstones: usize,
    /// The number of nodes with an empty own part that each cluster keeps at least. As many as
    /// there are other nodes are kept in any case.
    pub idle_nodes: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            record_tombstones: 1_000,
            list_tombstones: 8,
            idle_nodes: 1_000,
        }
    }
}
