// SPDX-License-Identifier: Apache-2.0

//! The `portolan.v1` protocol: generated code, and conversions to and from the model.
//!
//! Input from the wire is untrusted: decoding never panics, and names the field that it refuses. Encoding is canonical: equal content gives equal bytes.

#![forbid(unsafe_code)]

pub mod buckets;
pub mod convert;
pub mod encoded;
pub mod limits;
pub mod reason;
#[cfg(test)]
mod vectors;

/// The generated messages, client and server.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes,
    clippy::too_many_lines,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("portolan.v1");
}

/// The encoded `FileDescriptorSet` of `portolan.v1`, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The same of `portolan.v1.Federation`.
pub const FEDERATION_DESCRIPTORS: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/federation.bin"));

/// The message of [`Reason::AgentAhead`](reason::Reason::AgentAhead). Agents older than that reason
/// compare it, so it stays as it is.
pub const BEHIND_THE_AGENT: &str = "source: behind the agent";

/// Metadata that names the controller's cluster, in the refusal of an agent of another one.
pub const CLUSTER_ID: &str = "portolan-cluster-id";

/// The highest version of the protocol that this crate speaks.
pub const VERSION: u32 = 1;
