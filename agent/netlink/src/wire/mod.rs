// SPDX-License-Identifier: Apache-2.0

//! Netlink messages and attributes as bytes (kernel: `include/uapi/linux/netlink.h`).
//!
//! Pure: [`Writer`] builds messages, [`Messages`] and [`Attributes`] read them. Readers accept any
//! bytes and never panic. The meaning of attributes is left to the codecs.

mod read;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use read::{Attribute, Attributes, Messages, array};
pub(crate) use write::{Header, Writer};

/// The length of `struct nlmsghdr`.
pub(crate) const HEADER_LEN: usize = 16;
/// The length of `struct nlattr`.
const ATTRIBUTE_LEN: usize = 4;

/// `NLMSG_NOOP`: the kernel does nothing with it, but acknowledges it if asked to.
pub(crate) const NOOP: u16 = 1;
/// `NLMSG_ERROR`: a refusal, or with the error 0 an acknowledgement.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
pub(crate) const DONE: u16 = 3;

/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 0x0001;
/// `NLM_F_ACK`.
pub(crate) const ACK: u16 = 0x0004;
/// `NLM_F_DUMP_INTR`, in replies: the state changed while it was dumped.
pub(crate) const DUMP_INTERRUPTED: u16 = 0x0010;
/// `NLM_F_EXCL`, in requests that create.
pub(crate) const EXCLUSIVE: u16 = 0x0200;
/// `NLM_F_DUMP`, in requests that read.
pub(crate) const DUMP: u16 = 0x0300;

/// `NLA_F_NESTED`.
pub(crate) const NESTED: u16 = 0x8000;
/// `NLA_F_NET_BYTEORDER`.
pub(crate) const NET_BYTE_ORDER: u16 = 0x4000;

/// Fault in bytes that the kernel sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A message or attribute ends before its length.
    #[error("a netlink message or attribute is truncated")]
    Truncated,
    /// An attribute has another length than its type.
    #[error("netlink attribute {kind} has {len} bytes, which is not the length of its type")]
    Length {
        /// The attribute's number.
        kind: u16,
        /// The length of its payload in bytes.
        len: usize,
    },
    /// An attribute that such a message always has is not there.
    #[error("netlink attribute {kind} is missing")]
    Missing {
        /// The attribute's number.
        kind: u16,
    },
    /// An attribute has a value that its type does not allow.
    #[error("netlink attribute {kind} has an impossible value")]
    Value {
        /// The attribute's number.
        kind: u16,
    },
}

/// Lengths are padded to four bytes.
const fn padded(len: usize) -> usize {
    len.saturating_add(3) & !3
}
