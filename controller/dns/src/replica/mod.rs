// SPDX-License-Identifier: Apache-2.0

//! Copies of a zone on other hosts: an agent answers from what the controller streams to it, and
//! from its disk when there is no controller.
//!
//! The stream carries the input of the records, reduced to the relevant fields: a Service with its
//! slices is one item, sent whole when its records change. A copy computes the same records from
//! it. Copies with equal items have equal [`digest`]s, so that an agent that reconnects is sent
//! nothing if nothing changed.

mod decode;
mod encode;
mod feed;
mod file;
mod follow;
mod serve;
#[cfg(test)]
mod tests;

/// The generated messages and the client.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes,
    reason = "generated code"
)]
pub mod pb {
    tonic::include_proto!("portolan.dns.v1");
}

pub use encode::digest;
pub use file::{load, save};
pub use follow::{Follower, FrameError};
pub use serve::{ClusterFeeds, NamesService};

/// The encoded `FileDescriptorSet` of `portolan.dns.v1`, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/names.bin"));
