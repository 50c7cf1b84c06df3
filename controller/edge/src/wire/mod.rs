// SPDX-License-Identifier: Apache-2.0

//! Conversions of objects to and from messages.
//!
//! The cluster is not on the wire: it is that of the sender's certificate. Encoding is canonical. Decoding checks the
//! bounds that the sources keep, and names the field that it refuses.

mod decode;
mod encode;
mod error;
mod import;

pub(crate) use decode::{affinity, decode_ip, name, number, protocol, scheduler};
pub use decode::{decode, decode_id};
pub use encode::{encode, encode_id, encode_kind};
pub(crate) use encode::{encode_ip, encode_ips, encode_protocol};
pub use error::WireError;
