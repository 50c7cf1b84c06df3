// SPDX-License-Identifier: Apache-2.0

//! Fields of a load balancer's record beyond a Service's, and the health of its backends on one node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Destination;
use crate::check::{Check, HealthPolicy, InitialState};
use crate::ipvs::{ForwardingMethod, RealServerConfig, Thresholds};

/// Fields that the record of a load balancer's frontend has beyond that of a Service port.
///
/// Only agents with backends of their own choice read it, so it travels as JSON in one field of the
/// protocol ([`Balancing::to_json`]): a check has too many fields to be spelled out twice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Balancing {
    /// Persistence of clients, or `None`.
    pub persistence: Option<Persistence>,
    /// Settings of backends, each once.
    pub profiles: Vec<Profile>,
    /// The index of its profile for each destination of the record, in their order.
    pub profile_of: Vec<u16>,
    /// The server for clients while there is no quorum.
    pub sorry_server: Option<SorryServer>,
    /// Rules about the health of all backends together.
    pub health: HealthPolicy,
    /// The group of nodes that serve it ([`group_name`](crate::group_name)); all nodes if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Arc<str>>,
}

/// Persistence of clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Persistence {
    /// Time for which a client stays with its backend, in seconds, 1 to 2,678,400.
    pub timeout_seconds: u32,
    /// Addresses with the same leading bits are one client, 1 to 32.
    pub ipv4_prefix_length: u8,
    /// Addresses with the same leading bits are one client, 1 to 128.
    pub ipv6_prefix_length: u8,
    /// Engine that tells clients apart in place of their address, 1 to 15 bytes.
    pub engine: Option<Arc<str>>,
}

/// Settings of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Profile {
    /// Forwarding method of packets to it.
    pub forwarding: ForwardingMethod,
    /// Limits of its connections.
    pub thresholds: Thresholds,
    /// Its checks, all of which must pass; without one it is healthy.
    pub checks: Vec<Arc<Check>>,
    /// The operator's word about it.
    pub administrative_state: AdministrativeState,
}

/// An operator's word about a backend, whatever its checks say.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum AdministrativeState {
    /// It serves while it is healthy.
    #[default]
    Enabled,
    /// It keeps its connections and gets no new ones.
    Drain,
    /// It is drained, and then not a real server any more.
    Disabled,
}

/// The server for clients while there is no quorum.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SorryServer {
    /// Address and port.
    pub address: SocketAddr,
    /// Forwarding method of packets to it.
    pub forwarding: ForwardingMethod,
    /// Whether it stays a real server, of weight 0, while there is quorum.
    pub keep_idle: bool,
}

impl Balancing {
    /// The JSON form, equal for equal values.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        // No map has keys that JSON cannot have, and writing to memory does not fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads [`Self::to_json`]; unknown fields are ignored.
    ///
    /// # Errors
    /// If a field is missing or has another form.
    pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The settings of a destination, given by its position in the record.
    #[must_use]
    pub fn profile(&self, index: usize) -> Option<&Profile> {
        let profile = *self.profile_of.get(index)?;
        self.profiles.get(usize::from(profile))
    }

    /// Returns `true` if every one of `count` destinations has a profile.
    #[must_use]
    pub fn fits(&self, count: usize) -> bool {
        self.profile_of.len() == count && (0..count).all(|index| self.profile(index).is_some())
    }
}

impl Profile {
    /// The configuration of a real server with a weight.
    #[must_use]
    pub fn real_server(&self, weight: u32) -> RealServerConfig {
        RealServerConfig {
            weight,
            forwarding: self.forwarding,
            thresholds: self.thresholds,
        }
    }

    /// Weight of a destination that no check has judged.
    #[must_use]
    pub fn initial_weight(&self, destination: Destination, health: &HealthPolicy) -> u32 {
        let serves = self.checks.is_empty() || health.initial_state == InitialState::Up;
        if serves { destination.weight } else { 0 }
    }
}

/// State of a real server that follows from the health of its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Standing {
    /// It has this weight; with 0 it takes no new connections.
    Weight(u32),
    /// It is drained, and then there is none: the backend is disabled.
    Disabled,
    /// There is none, and connections break: the backend has failed.
    Failed,
}

impl Standing {
    /// Weight of the real server; `None` if there is to be none.
    #[must_use]
    pub fn weight(self) -> Option<u32> {
        match self {
            Self::Weight(weight) => Some(weight),
            Self::Disabled | Self::Failed => None,
        }
    }
}

/// Health of a record's backends as this node sees them. It is this node's alone: neither sent nor hashed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RecordHealth {
    /// The backends that their checks have judged, or an operator.
    pub backends: BTreeMap<SocketAddr, Standing>,
    /// Backends whose administrative state an operator has set by command: that of the record does not count.
    pub commanded: BTreeSet<SocketAddr>,
    /// Whether the sorry server serves; `None` while that is unknown, and then the kernel keeps what it has.
    pub is_sorry: Option<bool>,
    /// Whether too little weight is healthy. Connections still go to what there is, unless the sorry server
    /// serves.
    pub lacks_quorum: bool,
}
