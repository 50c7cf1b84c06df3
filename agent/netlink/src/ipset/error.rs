// SPDX-License-Identifier: Apache-2.0

//! Errors of sets.

use portolan_model::ipset::SetKind;

use super::EntryFault;
use crate::{Errno, SocketError};

/// Reason sets cannot be changed or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IpsetError {
    /// The kernel has no ipset: the module `ip_set` is not loaded, or missing.
    #[error("the kernel has no ipset")]
    NoIpset,
    /// The kernel speaks an older version of the protocol than 7, that of Linux 4.20.
    #[error("the kernel's ipset protocol has version {0}, 7 is needed")]
    Protocol(u8),
    /// The kernel lacks the type: its module (such as `ip_set_hash_ip`) is missing.
    #[error("the kernel has no sets of type {}: {errno}", kind.type_name())]
    NoType {
        /// The type.
        kind: SetKind,
        /// The kernel's error.
        errno: Errno,
    },
    /// A request has a name that is empty, longer than 31 bytes, or contains a NUL. Nothing was
    /// sent.
    #[error("ipset request {index}: {name:?} cannot be the name of a set")]
    Name {
        /// The request's index.
        index: usize,
        /// The name.
        name: String,
    },
    /// A request has an entry that cannot be one of its set. Nothing was sent.
    #[error("ipset request {index}, entry {entry}: {fault}")]
    Entry {
        /// The request's index.
        index: usize,
        /// The entry's index in the request.
        entry: usize,
        /// The reason it is refused.
        fault: EntryFault,
    },
    /// The socket failed. Unless the error states otherwise, the effect of a batch is unknown.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// A request of a batch, or one of its entries, that failed; all others are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("ipset request {index}, entry {entry:?}: {errno}")]
pub struct RequestError {
    /// The request's index in the slice given to [`Ipset::apply`](super::Ipset::apply).
    pub index: usize,
    /// The entry's index in the request; `None` if the request failed as a whole.
    pub entry: Option<usize>,
    /// The kernel's error; [`Request`](super::Request) lists the errors and their causes.
    pub errno: Errno,
}
