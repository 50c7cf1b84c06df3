// SPDX-License-Identifier: Apache-2.0

//! A checked `LoadBalancer`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portolan_model::check::HealthPolicy;
use portolan_model::{Families, Family};

use crate::check::DeclaredCheck;
use crate::document::{AdministrativeState, Announce, SchedulerFlag, SchedulerName};
use crate::forwarding::{Forwarding, Persistence, Thresholds};
use crate::frontend::Frontend;
use crate::object::{ObjectName, Tags};

/// Virtual servers that share one list of backends. All defaults are filled in, and what its
/// fields say together makes sense (specification, sections 1.1 to 1.3 and 3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBalancer {
    /// Its name.
    pub name: ObjectName,
    /// Its labels and annotations.
    pub tags: Tags,
    /// Frontends that clients connect to, 1 to 256.
    pub frontends: Vec<Frontend>,
    /// The kernel's scheduler.
    pub scheduler: SchedulerName,
    /// The scheduler's flags, those by default included.
    pub scheduler_flags: BTreeSet<SchedulerFlag>,
    /// Whether every datagram of UDP frontends and marks is scheduled by itself.
    pub one_packet: bool,
    /// Clients that stay with their backend.
    pub persistence: Option<Persistence>,
    /// Forwarding of packets to a backend that has none of its own.
    pub forwarding: Forwarding,
    /// Whether backends see the director as their client.
    pub source_nat: bool,
    /// The servers, at most 4,096.
    pub backends: Vec<Backend>,
    /// The server that answers while there is no quorum.
    pub sorry_server: Option<SorryServer>,
    /// Health checks of the backends that have none of their own.
    pub checks: Vec<DeclaredCheck>,
    /// Rules about the health of all backends together.
    pub health: HealthPolicy,
    /// Time that the connections of a removed backend have to end; `None` for the agent's.
    pub drain_timeout: Option<Duration>,
    /// Programs that changes of state start.
    pub hooks: Hooks,
    /// When the addresses are announced.
    pub announce: Announce,
    /// Labels of the Nodes that serve it; all if empty.
    pub node_selector: BTreeMap<String, String>,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Its name, unique in the object.
    pub name: String,
    /// Its address, unicast.
    pub address: IpAddr,
    /// Its port; `None` for the frontend's, 0 for the client's.
    pub port: Option<u16>,
    /// Its share of new connections.
    pub weight: u16,
    /// Limits on its connections.
    pub thresholds: Thresholds,
    /// Forwarding of packets to it.
    pub forwarding: Forwarding,
    /// Its own checks, in place of the object's; none if empty.
    pub checks: Option<Vec<DeclaredCheck>>,
    /// Administrative state that the operator wants of it.
    pub administrative_state: AdministrativeState,
}

impl Backend {
    /// The name of a backend whose file names none: its address, and its port if it has one.
    #[must_use]
    pub fn default_name(address: IpAddr, port: Option<u16>) -> String {
        match port {
            Some(port) => SocketAddr::new(address, port).to_string(),
            None => address.to_string(),
        }
    }
}

/// The server that answers while there is no quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SorryServer {
    /// Its address, unicast.
    pub address: IpAddr,
    /// Its port; `None` for the frontend's.
    pub port: Option<u16>,
    /// Forwarding of packets to it.
    pub forwarding: Forwarding,
    /// Whether it stays in the virtual server with weight 0 while it is not needed.
    pub keep_idle: bool,
}

/// Programs that changes of state start: absolute path and arguments; empty for none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Started when the quorum is gained or lost.
    pub on_quorum: Vec<String>,
    /// Started when a backend comes up or goes down.
    pub on_backend: Vec<String>,
}

impl LoadBalancer {
    /// The families of all its frontends.
    #[must_use]
    pub fn families(&self) -> Families {
        families(&self.frontends)
    }

    /// Returns `true` if a server is behind the frontends of a family: of its own family and, by a
    /// tunnel, also of the other one if the object has no frontend of its own.
    #[must_use]
    pub fn serves(&self, address: IpAddr, forwarding: Forwarding, family: Family) -> bool {
        serves(self.families(), address, forwarding, family)
    }

    /// The checks of a backend.
    #[must_use]
    pub fn checks_of<'a>(&'a self, backend: &'a Backend) -> &'a [DeclaredCheck] {
        backend.checks.as_deref().unwrap_or(&self.checks)
    }

    /// Addresses of servers that are reached by a tunnel of the other family.
    pub fn of_mixed_families(&self) -> impl Iterator<Item = IpAddr> {
        let families = self.families();
        let servers = self
            .backends
            .iter()
            .map(|backend| (backend.address, backend.forwarding));
        let sorry = self
            .sorry_server
            .iter()
            .map(|sorry| (sorry.address, sorry.forwarding));
        servers
            .chain(sorry)
            .filter(move |(address, forwarding)| {
                matches!(forwarding, Forwarding::Tunnel(_))
                    && !families.contains(Family::of(*address))
            })
            .map(|(address, _)| address)
    }
}

/// The families of all frontends.
pub(crate) fn families(frontends: &[Frontend]) -> Families {
    frontends
        .iter()
        .flat_map(|frontend| frontend.packets.families().iter().collect::<Vec<_>>())
        .collect()
}

/// Returns `true` if a server is behind the frontends of a family, of an object that has `all`.
pub(crate) fn serves(
    all: Families,
    address: IpAddr,
    forwarding: Forwarding,
    family: Family,
) -> bool {
    let own = Family::of(address);
    let tunnelled = matches!(forwarding, Forwarding::Tunnel(_)) && !all.contains(own);
    all.contains(family) && (own == family || tunnelled)
}
