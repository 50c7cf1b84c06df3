// SPDX-License-Identifier: Apache-2.0

//! The source of a relay: another controller.
//!
//! [`run`] keeps a stream open to one of several controllers, asks for the tables of all nodes, and
//! publishes them as they come. The last tables are served without a controller. A relay holds
//! deletions back that are too many, as agents do: to its agents they would be a change like any
//! other.

#![forbid(unsafe_code)]

mod acks;
mod doubts;
mod pace;
mod relay;
mod spans;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use portolan_serve::Registry;
use portolan_subscription::{GuardConfig, Security, StreamStats};
use portolan_tablelog::{ClusterIdentity, Forwarder, SourceDoubts};
use tonic::transport::Uri;

pub use relay::run;

/// The controllers, and the identity of the relay.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The controllers, as `http://host:port`, with TLS too. A name stands for all its addresses. At
    /// least one.
    pub upstreams: Vec<Uri>,
    /// The identity of both sides.
    pub security: Security,
    /// The cluster; empty for a single one.
    pub cluster: String,
    /// The relay's name.
    pub name: String,
    /// This program's version, for people.
    pub version: String,
    /// Limits of the deletion guard.
    pub guard: GuardConfig,
    /// Time for which a controller may say nothing before its first Commit; six times as long if it is the only one.
    pub first_commit_timeout: Duration,
    /// Number of cores of the relay's own streams, at least 1.
    pub cores: u32,
}

/// The receivers of tables.
#[derive(Debug)]
pub struct Outlets {
    /// Publishes.
    pub forwarder: Forwarder,
    /// Sets the identity of the upstream's cluster, for the relay's agents too.
    pub identity: ClusterIdentity,
    /// Doubts of the relay's agents about the versions of the sources, which the upstream answers.
    pub doubts: SourceDoubts,
    /// The relay's own agents.
    pub sessions: Arc<Registry>,
    /// Counts.
    pub stats: Arc<Stats>,
}

/// Counts of a relay, for metrics.
#[derive(Debug, Default)]
pub struct Stats {
    /// The stream.
    pub stream: Arc<StreamStats>,
    /// Records and lists that cannot be passed on. Goes up and down.
    pub left_out: AtomicU64,
}
