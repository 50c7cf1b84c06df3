// SPDX-License-Identifier: Apache-2.0

//! The objects of a cluster between its edge controller and the centre.
//!
//! The edge keeps an [`Outbox`] of what its cluster has, the centre a [`Partition`] of what it has received. Both
//! compare by the hashes of buckets of objects, so that a stream that begins again brings only what differs. The other
//! way goes what the edge is to write into its cluster, [`work`], and what it needs of other clusters to serve imports,
//! [`plans`].
//!
//! Pure: no sockets, no clock, no tasks.

#![forbid(unsafe_code)]

mod ledger;
mod outbox;
mod partition;
pub mod plans;
mod split;
#[cfg(test)]
mod tests;
pub mod wire;
pub mod work;

pub use ledger::BadHashes;
pub use outbox::{MAX_OBJECT_BYTES, Outbox, StreamId, TooLarge, Transition};
pub use partition::{Limits, Partition, PartitionError, Received};
