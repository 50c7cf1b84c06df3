//! The source of a relay: another controller.
//!
//! [`run`] keeps a stream open to one of several controllers, asks for what all nodes have, and
//! publishes it as it comes. The last good tables are served on while there is no controller. A
//! relay holds back what comes first on a stream and deletes too much, as agents do: to its agents
//! it would be a change like any other.

#![forbid(unsafe_code)]

mod acks;
mod guard;
mod pace;
mod run;
mod stats;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use portolan_serve::Registry;
use portolan_subscription::{HoldConfig, Security};
use portolan_tablelog::Forwarder;
use tonic::transport::Uri;

pub use run::run;
pub use stats::Stats;

/// Whom to ask, as whom.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The controllers, as `http://host:port`, with TLS too; any of them will do, and a name stands
    /// for all its addresses. At least one.
    pub upstreams: Vec<Uri>,
    /// How a controller shows that it is one, and we that we are this relay.
    pub security: Security,
    /// The cluster; empty for a single one.
    pub cluster: String,
    /// The relay's name.
    pub name: String,
    /// This program's version, for people.
    pub version: String,
    /// Which tables are held back.
    pub hold: HoldConfig,
    /// How long a controller may say nothing before its first Commit, if there are others to ask.
    pub first_commit_timeout: Duration,
    /// How many cores our own streams have, at least 1.
    pub cores: u32,
}

/// What [`RelayConfig::first_commit_timeout`] is, if nothing speaks against it.
pub const FIRST_COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where what arrives goes to.
#[derive(Debug)]
pub struct Outlets {
    /// Publishes.
    pub forwarder: Forwarder,
    /// Our own agents.
    pub sessions: Arc<Registry>,
    /// What we count.
    pub stats: Arc<Stats>,
}
