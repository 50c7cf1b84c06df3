// SPDX-License-Identifier: Apache-2.0

//! The node's table, as the controller streams it.
//!
//! [`run`] keeps a stream open and publishes each committed table on a watch channel, whose reader
//! programs the newest only. A table stays in force until another takes its place: losing the
//! controller changes nothing on the node.

mod guard;
mod health;
mod held;
mod in_force;
mod latency;
mod outbox;
mod pin;
mod saver;
mod staging;
mod stats;
mod store;
mod subscription;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::{NodeTable, RecordKey};

pub use portolan_subscription::{
    Endpoints, FIRST_COMMIT_TIMEOUT, GuardConfig, HeldDeletions, Security, TlsClient,
};

pub use health::BackendHealth;
pub use held::HeldView;
pub(crate) use in_force::TableInForce;
pub use pin::{ClusterPin, PinStatus, WrongCluster, forget};
pub(crate) use saver::Saver;
pub use staging::{Committed, PatchError, Saved, Staging, StagingError, Taken};
pub use stats::Stats;
pub(crate) use store::Store;
pub use store::set_aside;
pub(crate) use subscription::load;
pub use subscription::run;

/// The table to subscribe to, and the controllers.
#[derive(Debug, Clone)]
pub struct SubscribeConfig {
    /// The controllers. A name stands for all its addresses.
    pub endpoints: Endpoints,
    /// The identity of both sides.
    pub security: Security,
    /// The node's cluster; empty for a single one.
    pub cluster: String,
    /// The node's name.
    pub node: String,
    /// The cluster that the node belongs to, as stated by the controllers.
    pub pin: ClusterPin,
    /// This agent's version, for people.
    pub agent_version: String,
    /// The directory of the last good table; `None` to keep none.
    pub state_dir: Option<PathBuf>,
    /// Time to find a controller before the table on disk is programmed, as the kernel may have a
    /// newer one. If there is no controller, the table is programmed at once.
    pub disk_patience: Duration,
    /// Limits of the deletion guard.
    pub guard: GuardConfig,
    /// Time that a controller may be silent before its first Commit; six times as long if it is the only one.
    pub first_commit_timeout: Duration,
    /// Health of load balancers' backends, to be reported; `None` if nothing is checked.
    pub backends: Option<BackendHealth>,
}

/// The usual [`SubscribeConfig::disk_patience`]. Longer than a busy machine takes to connect: changes
/// of the last seconds before an agent was killed are not on disk yet, and would be undone until the
/// controller's table comes.
pub const DISK_PATIENCE: Duration = Duration::from_secs(10);

/// A table that is in force, until the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribed {
    /// The controller's epoch that `revision` belongs to.
    pub epoch: u64,
    /// The table's revision.
    pub revision: u64,
    /// The table.
    pub table: Arc<NodeTable>,
    /// Arrival of its Commit.
    pub received_at: Instant,
    /// Trigger times of its changes, in milliseconds of Unix time: the last-change-trigger-time of
    /// each EndpointSlice that has one. Empty for a snapshot and for a table of another source.
    pub trigger_times_ms: Vec<u64>,
    /// Whether the table is from disk, of an earlier run. The kernel may have been programmed with
    /// a newer one since, so nothing is deleted until a controller has sent a table.
    pub is_from_disk: bool,
    /// Number of the health in the table, which grows with each other one; 0 without health.
    pub checked: u64,
}

impl Subscribed {
    /// A table of this epoch and revision, received now.
    #[must_use]
    pub(crate) fn new((epoch, revision): (u64, u64), table: Arc<NodeTable>) -> Self {
        Self {
            epoch,
            revision,
            table,
            received_at: Instant::now(),
            trigger_times_ms: Vec::new(),
            is_from_disk: false,
            checked: 0,
        }
    }
}

/// The state of a table in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The epoch of the table that was programmed.
    pub epoch: u64,
    /// The revision of the table that was programmed.
    pub revision: u64,
    /// From the arrival of its Commit until the kernel had it.
    pub duration: Duration,
    /// The kernel's errors, each with its record if it concerns one.
    pub errors: Vec<(Option<RecordKey>, String)>,
    /// Number of the health in the table that was tried last.
    pub checked: u64,
}

#[cfg(test)]
mod tests;
