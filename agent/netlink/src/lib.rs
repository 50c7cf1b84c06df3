// SPDX-License-Identifier: Apache-2.0

//! The kernel's IPVS, ipset, nftables and conntrack over netlink, in batches.
//!
//! Owns the codecs and a blocking socket that packs thousands of requests into a send without
//! asking for an acknowledgement of each; the kernel still reports every failure by its sequence
//! number. The choice and order of requests, and the treatment of failures, are left to callers.

#![deny(unsafe_code)]

pub mod conntrack;
mod errno;
pub mod ipset;
pub mod ipvs;
pub mod nftables;
pub mod route;
mod socket;
mod sys;
mod wire;

pub use errno::Errno;
pub use socket::SocketError;
pub use wire::Malformed;
