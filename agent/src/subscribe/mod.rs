//! The node's table, as the controller streams it.
//!
//! [`run`] keeps a stream open and publishes each committed table on a watch channel; whoever
//! programs it takes the newest only. A table stays in force until another takes its place: losing
//! the controller changes nothing on the node.

mod client;
mod outbox;
mod reconnect;
mod security;
mod staging;
mod stats;
mod stream;

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::{NodeTable, RecordKey};
use tonic::transport::Uri;

pub use client::run;
pub use security::{Security, TlsClient};
pub use staging::{Committed, Saved, Staging, StagingError, Taken};
pub use stats::Stats;

/// Whom to ask for which table.
#[derive(Debug, Clone)]
pub struct SubscribeConfig {
    /// The controllers, as `http://host:port`, with TLS too; any of them will do. At least one.
    pub endpoints: Vec<Uri>,
    /// How a controller shows that it is one, and we that we are this node.
    pub security: Security,
    /// The node's cluster; empty for a single one.
    pub cluster: String,
    /// The node's name.
    pub node: String,
    /// This agent's version, for people.
    pub agent_version: String,
}

/// A table that is in force, until the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribed {
    /// The controller's epoch that `revision` belongs to.
    pub epoch: u64,
    /// The revision that the table is of.
    pub revision: u64,
    /// The table.
    pub table: Arc<NodeTable>,
    /// When its Commit arrived.
    pub received_at: Instant,
    /// When what it changes was triggered, in milliseconds of Unix time: of each EndpointSlice with
    /// one, its last-change-trigger-time. Empty of a table that came whole, or from elsewhere.
    pub trigger_times_ms: Vec<u64>,
}

/// What became of a table in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The epoch of the table that was programmed.
    pub epoch: u64,
    /// The revision of the table that was programmed.
    pub revision: u64,
    /// From the arrival of its Commit until the kernel had it.
    pub duration: Duration,
    /// What the kernel refused, and for which record if it was for one.
    pub errors: Vec<(Option<RecordKey>, String)>,
}

#[cfg(test)]
mod tests;
