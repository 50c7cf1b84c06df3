// SPDX-License-Identifier: Apache-2.0

//! Streams each node's table to its agent.
//!
//! A session is a cursor into the log of tables. It pulls the changes since its cursor when its
//! agent can take more, so a slow agent costs no memory and receives each record at most once, at
//! its newest value. [`Registry`] holds the state of each node's agent.

#![forbid(unsafe_code)]

mod guard;
mod health;
mod registry;
mod served;
mod service;
mod session;
mod standing;

pub use guard::{Caller, NodeStreams};
pub use registry::{
    AllProgrammed, BackendState, BalancerHealth, ConvergenceSeconds, Counters, HeldTable,
    NodeHealth, NodeStatus, RecentChange, RecordProblem, Registry, Unconfirmed,
};
pub use served::ServedClusters;
pub use service::TablesServer;
pub use session::ServeConfig;
pub use standing::{ChangedRecord, Standing};

/// Prefix of relay names in lists of nodes. Node names contain no slash, so the two never collide.
pub const RELAY: &str = "relay/";
