// SPDX-License-Identifier: Apache-2.0

//! The log of tables: published once, read by each stream from its cursor.
//!
//! The crate is pure: no sockets and no tasks. A [`Publisher`] appends transitions to a log that
//! keeps the newest value of each record and the revision of its last change. [`TableReader`]
//! returns the next transition for a stream at any cursor, as frames that all streams share. A
//! relay publishes through a [`Forwarder`], which keeps the encoded bytes of the controller behind
//! it.

#![forbid(unsafe_code)]

mod debounce;
mod feed;
mod forward;
mod identity;
mod log;
mod origin;
mod published;
mod publisher;
mod reader;
mod scope;
mod shared;
mod since;
mod sources;
#[cfg(any(test, feature = "testing"))]
#[allow(
    clippy::unwrap_used,
    missing_debug_implementations,
    missing_docs,
    reason = "for tests"
)]
pub mod testing;
mod update;
mod wire;

pub use debounce::Debounce;
pub use feed::{ANSWERED_WITHIN, Delivery, Feed};
pub use forward::{Committed, ForwardError, Forwarder, Lost};
pub use identity::ClusterIdentity;
pub use log::{Differences, Prepared, Retention, TableHashes, TablePart};
pub use origin::{ClusterOrigin, Origin};
pub use published::{Outcome, Published};
pub use publisher::Publisher;
pub use reader::{First, Have, How, Next, TableReader};
pub use scope::Scope;
pub use shared::State;
pub use sources::{Doubts, SourceDoubts};
pub use update::{PublishObserver, Update};
pub use wire::single;
