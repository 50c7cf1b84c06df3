// SPDX-License-Identifier: Apache-2.0

//! Listeners of health check node ports.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use portolan_dataplane::NodePortAddresses;
use portolan_model::Family;
use portolan_runtime::{Connections, listen_one_family, serve_http};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{HealthCheck, ServiceKey, answer};
use crate::health::Health;

/// Addresses to listen on in a family.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ListenOn {
    /// All addresses, by one socket.
    All,
    /// These addresses.
    Addresses(BTreeSet<IpAddr>),
}

impl ListenOn {
    fn addresses(&self, family: Family) -> Vec<IpAddr> {
        match (self, family) {
            (Self::All, Family::V4) => vec![Ipv4Addr::UNSPECIFIED.into()],
            (Self::All, Family::V6) => vec![Ipv6Addr::UNSPECIFIED.into()],
            (Self::Addresses(addresses), _) => addresses.iter().copied().collect(),
        }
    }
}

/// Numbers of endpoints by Service and family.
type Counts = Arc<RwLock<BTreeMap<(ServiceKey, Family), usize>>>;

/// The listeners.
#[derive(Debug)]
pub struct HealthChecks {
    families: Vec<Family>,
    node_ports: NodePortAddresses,
    health: Health,
    counts: Counts,
    /// Connections of all ports together: a node may have many ports.
    connections: Connections,
    listening: BTreeMap<SocketAddr, Listening>,
    /// Addresses that cannot be bound, with the logged reason.
    failed: BTreeMap<SocketAddr, String>,
    failed_count: Gauge,
}

#[derive(Debug)]
struct Listening {
    service: ServiceKey,
    stop: CancellationToken,
    /// Ends when the port is closed.
    serving: JoinHandle<()>,
}

impl HealthChecks {
    /// Creates the listeners' owner without any listener, and adds its metric to a registry.
    #[must_use]
    pub fn register(
        families: Vec<Family>,
        node_ports: NodePortAddresses,
        health: Health,
        registry: &mut Registry,
    ) -> Self {
        let this = Self {
            families,
            node_ports,
            health,
            counts: Counts::default(),
            connections: Connections::default(),
            listening: BTreeMap::new(),
            failed: BTreeMap::new(),
            failed_count: Gauge::default(),
        };
        registry.register(
            "health_check_listen_failures_current",
            "Health check node ports that cannot be listened on",
            this.failed_count.clone(),
        );
        this
    }

    /// Listens for exactly these Services, on the node's addresses that accept node ports. Addresses that
    /// cannot be bound are retried by the next call.
    pub async fn apply(
        &mut self,
        wanted: &BTreeMap<ServiceKey, HealthCheck>,
        node_port_addresses: &BTreeSet<IpAddr>,
    ) {
        let on = |family: Family| {
            if self.node_ports.accepts_all(family) {
                return ListenOn::All;
            }
            let of_family = |ip: &&IpAddr| Family::of(**ip) == family;
            let addresses = node_port_addresses.iter().filter(of_family);
            ListenOn::Addresses(addresses.copied().collect())
        };
        let on = self.families.iter().map(|family| (*family, on(*family)));
        let on = on.collect();
        self.apply_on(wanted, &on).await;
    }

    async fn apply_on(
        &mut self,
        wanted: &BTreeMap<ServiceKey, HealthCheck>,
        on: &BTreeMap<Family, ListenOn>,
    ) {
        let mut listeners: BTreeMap<SocketAddr, (&ServiceKey, Family)> = BTreeMap::new();
        let mut counts = BTreeMap::new();
        for (service, check) in wanted {
            for (family, endpoints) in &check.endpoints {
                counts.insert((service.clone(), *family), *endpoints);
                let addresses = on.get(family).map(|on| on.addresses(*family));
                for address in addresses.unwrap_or_default() {
                    let at = SocketAddr::new(address, check.port);
                    listeners.entry(at).or_insert((service, *family));
                }
            }
        }
        *self.counts.write().unwrap_or_else(PoisonError::into_inner) = counts;
        self.close_others(&listeners).await;
        self.open_missing(&listeners);
    }

    async fn close_others(&mut self, wanted: &BTreeMap<SocketAddr, (&ServiceKey, Family)>) {
        let stays = |at: &SocketAddr, listening: &mut Listening| {
            let is_wanted = |(service, _): &(&ServiceKey, Family)| **service == listening.service;
            // A listener that has ended is opened again.
            !listening.serving.is_finished() && wanted.get(at).is_some_and(is_wanted)
        };
        for (_, others) in self.listening.extract_if(.., |at, l| !stays(at, l)) {
            others.stop.cancel();
            // The port is free in any case.
            let _ = others.serving.await;
        }
    }

    fn open_missing(&mut self, wanted: &BTreeMap<SocketAddr, (&ServiceKey, Family)>) {
        self.failed.retain(|at, _| wanted.contains_key(at));
        for (at, (service, family)) in wanted {
            if self.listening.contains_key(at) {
                continue;
            }
            match self.open(*at, service, *family) {
                Ok(listening) => {
                    self.failed.remove(at);
                    self.listening.insert(*at, listening);
                }
                Err(error) => {
                    let reason = error.to_string();
                    if self.failed.get(at) != Some(&reason) {
                        tracing::error!(%service, address = %at, %error,
                            "cannot listen on the health check node port: retrying");
                        self.failed.insert(*at, reason);
                    }
                }
            }
        }
        let failed = i64::try_from(self.failed.len()).unwrap_or(i64::MAX);
        self.failed_count.set(failed);
    }

    fn open(&self, at: SocketAddr, service: &ServiceKey, family: Family) -> io::Result<Listening> {
        let listener = listen_one_family(at)?;
        let asked = CheckedService {
            counts: Arc::clone(&self.counts),
            health: self.health.clone(),
            key: (service.clone(), family),
        };
        let router = Router::new().fallback(respond).with_state(asked);
        let stop = CancellationToken::new();
        let connections = self.connections.clone();
        let serving = tokio::spawn(serve_http(listener, router, connections, stop.clone()));
        Ok(Listening {
            service: service.clone(),
            stop,
            serving,
        })
    }
}

impl Drop for HealthChecks {
    fn drop(&mut self) {
        for listening in self.listening.values() {
            listening.stop.cancel();
        }
    }
}

/// The Service of a listener.
#[derive(Debug, Clone)]
struct CheckedService {
    counts: Counts,
    health: Health,
    key: (ServiceKey, Family),
}

/// Answers any path and method.
async fn respond(State(asked): State<CheckedService>) -> Response {
    let count = {
        let counts = asked.counts.read().unwrap_or_else(PoisonError::into_inner);
        counts.get(&asked.key).copied()
    };
    match count {
        Some(endpoints) => answer::answer(&asked.key.0, endpoints, asked.health.now().healthy()),
        None => answer::gone(),
    }
}

#[cfg(test)]
mod tests;
