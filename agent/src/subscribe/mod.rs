//! The node's table, as the controller streams it.
//!
//! [`run`] keeps a stream open and publishes each committed table on a watch channel; whoever
//! programs it takes the newest only. A table stays in force until another takes its place: losing
//! the controller changes nothing on the node.

mod client;
mod guard;
mod held;
mod latency;
mod outbox;
mod pin;
mod saver;
mod staging;
mod stats;
mod store;
mod stream;
mod subscription;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::{NodeTable, RecordKey};
use tonic::transport::Uri;

pub use portolan_subscription::{HoldConfig, Security, TlsClient};

pub use client::run;
pub use held::{HeldTable, Holding};
pub use pin::{ClusterPin, PinStatus, WrongCluster, forget};
pub use staging::{Committed, Saved, Staging, StagingError, Taken};
pub use stats::Stats;
pub use store::set_aside;

/// Whom to ask for which table.
#[derive(Debug, Clone)]
pub struct SubscribeConfig {
    /// The controllers, as `http://host:port`, with TLS too; any of them will do, and a name stands
    /// for all its addresses. At least one.
    pub endpoints: Vec<Uri>,
    /// How a controller shows that it is one, and we that we are this node.
    pub security: Security,
    /// The node's cluster; empty for a single one.
    pub cluster: String,
    /// The node's name.
    pub node: String,
    /// The cluster that the node belongs to by the controllers' word.
    pub pin: ClusterPin,
    /// This agent's version, for people.
    pub agent_version: String,
    /// Where the last good table is kept; `None` for nowhere.
    pub state_dir: Option<PathBuf>,
    /// For how long a controller may be looked for before the table on disk is programmed: the
    /// kernel may have a newer one. If there is no controller, it is programmed at once.
    pub disk_patience: Duration,
    /// Which tables are held back.
    pub hold: HoldConfig,
    /// How long a controller may say nothing before its first Commit, if there are others to ask.
    pub first_commit_timeout: Duration,
}

/// What [`SubscribeConfig::first_commit_timeout`] is, if nothing speaks against it.
pub const FIRST_COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// What [`SubscribeConfig::disk_patience`] is, if nothing speaks against it. Longer than it takes a busy
/// machine to connect: what was programmed in the last seconds before an agent was killed is not on
/// disk yet, and would be changed back until the controller's table comes.
pub const DISK_PATIENCE: Duration = Duration::from_secs(10);

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
    /// Whether it is that of an earlier run, from disk. The kernel may have been programmed with a
    /// newer one since, so it deletes nothing until a controller has sent one.
    pub is_from_disk: bool,
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
