// SPDX-License-Identifier: Apache-2.0

//! etcd as the store of a fleet: connections, keys of objects, reads at one revision, watches, and writes by
//! compare-and-swap.
//!
//! Knows nothing about the values.

#![forbid(unsafe_code)]

mod access;
mod args;
mod client;
mod error;
mod key;
mod write;

pub use access::{Access, Connection, User};
pub use args::EtcdArgs;
pub use client::{Change, Client, Listing, News, Pair, Watch};
pub use error::EtcdError;
pub use key::{KeyError, Name, Prefix, PrefixError, Range};
pub use write::{MAX_BYTES, MAX_OPERATIONS, Outcome, Write};
