// SPDX-License-Identifier: Apache-2.0

//! The kernel's IPVS, ipset, nftables and conntrack over netlink, in batches.
//!
//! Owns the codecs and a blocking socket that packs thousands of requests into a send without
//! asking for an acknowledgement of each; the kernel still reports every failure by its sequence
//! number. The choice and order of requests, and the treatment of failures, are left to callers.

#![deny(unsafe_code)]

pub mod announce;
pub mod announced;
pub mod conntrack;
mod errno;
pub mod ipset;
pub mod ipvs;
pub mod neighbour;
pub mod nftables;
pub mod route;
mod socket;
mod sys;
mod wire;

pub use errno::Errno;
pub use socket::SocketError;
pub use wire::Malformed;

/// The index of a network interface.
///
/// # Errors
/// `ENODEV` without one of this name.
pub fn interface_index(name: &str) -> Result<u32, Errno> {
    sys::interface_index(name)
}

/// The name of a network interface; `None` without one of this index.
#[must_use]
pub fn interface_name(index: u32) -> Option<String> {
    sys::interface_name(index)
}
