//! Streams each node's table to its agent.
//!
//! A session is no more than a cursor into the log of tables: it pulls what changed since when its
//! agent can take more, so a slow agent costs nothing and receives each record at most once, at its
//! newest value. [`Registry`] knows what each node has.

#![forbid(unsafe_code)]

mod guard;
mod registry;
mod service;
mod session;
mod standing;

pub use registry::{
    ConvergenceSeconds, Counters, HeldTable, NodeStatus, RecordProblem, Registry, Unconfirmed,
};
pub use service::TablesServer;
pub use session::ServeConfig;
pub use standing::{ChangedRecord, Standing};

/// Before the name of a relay where nodes are listed: no node's name has a slash.
pub const RELAY: &str = "relay/";
