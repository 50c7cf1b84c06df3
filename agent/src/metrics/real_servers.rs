// SPDX-License-Identifier: Apache-2.0

//! Metrics of load balancers' real servers, for `--backend-metrics`, as IPVS has them.
//!
//! The kernel is read when metrics are scraped, and at no other time. A counter begins anew with its real server, which
//! Prometheus takes for the reset that it is.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portolan_dataplane::{DataplaneError, SomeUsage, Usage, read_some_usage};
use portolan_model::Record;
use portolan_model::ipvs::VirtualServerKey;
use portolan_runtime::Scrape;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::registry::Registry;

use crate::status::Status;

/// Shortest time between two readings of the kernel: more scrapes get the same numbers.
const PAUSE: Duration = Duration::from_secs(5);
/// Connections for each bucket of the kernel's table from which on searches are long.
const CROWD: u64 = 2;

type Read = dyn Fn(&[VirtualServerKey], usize) -> Result<SomeUsage, DataplaneError> + Send + Sync;

/// Tells the use of real servers when metrics are scraped.
pub struct RealServerCollector {
    status: Status,
    /// Most real servers.
    limit: usize,
    read: Box<Read>,
    state: Mutex<State>,
}

/// The last reading.
#[derive(Debug, Default)]
struct State {
    read_at: Option<Instant>,
    is_broken: bool,
    is_crowded: bool,
    is_truncated: bool,
    /// Buckets of the connection table; `None` before the first reading.
    buckets: Option<u32>,
    servers: Vec<RealServer>,
}

/// A real server of a virtual server.
#[derive(Debug)]
struct RealServer {
    labels: ServerLabels,
    usage: Usage,
    /// The weight of the configuration; a sorry server has none.
    configured: Option<u32>,
}

#[derive(Debug, Clone, EncodeLabelSet)]
struct ServerLabels {
    namespace: Arc<str>,
    name: Arc<str>,
    frontend: Arc<str>,
    virtual_server: Arc<str>,
    backend: Arc<str>,
}

#[derive(Debug, EncodeLabelSet)]
struct DirectionLabels {
    #[prometheus(flatten)]
    server: ServerLabels,
    direction: &'static str,
}

#[derive(Debug, EncodeLabelSet)]
struct StateLabels {
    #[prometheus(flatten)]
    server: ServerLabels,
    state: &'static str,
}

impl State {
    fn take(&mut self, balanced: &[(VirtualServerKey, Arc<Record>)], read: SomeUsage) {
        let SomeUsage {
            mut usage,
            is_truncated,
            buckets,
        } = read;
        self.is_truncated = is_truncated;
        self.buckets = Some(buckets);
        self.servers.clear();
        for (key, record) in balanced {
            let servers = usage.remove(key).unwrap_or_default();
            self.servers.extend(real_servers(key, record, servers));
        }
        self.warn_of_crowd(buckets);
    }

    /// Warns once when the table gets crowded. Connections of others are not known, so there may be more.
    fn warn_of_crowd(&mut self, buckets: u32) {
        let connections: u64 = self.servers.iter().map(entries).sum();
        let most = CROWD * u64::from(buckets);
        // It ends well below, or a number about there would be logged again and again.
        let most = if self.is_crowded { most / 2 } else { most };
        let is_crowded = buckets > 0 && connections > most;
        if is_crowded && !self.is_crowded {
            tracing::warn!(
                connections,
                buckets,
                "IPVS has more than {CROWD} connections for each bucket of its table, which makes each packet slower: \
                 load the module ip_vs with a larger conn_tab_bits"
            );
        }
        self.is_crowded = is_crowded;
    }
}

/// Entries of the connection table. A client of a persistent virtual server has one besides its connections.
fn entries(server: &RealServer) -> u64 {
    let connections = server.usage.connections;
    let all = [
        connections.active,
        connections.inactive,
        connections.persistent,
    ];
    all.into_iter().map(u64::from).sum()
}

/// The real servers of one virtual server.
fn real_servers(
    key: &VirtualServerKey,
    record: &Record,
    servers: BTreeMap<SocketAddr, Usage>,
) -> impl Iterator<Item = RealServer> {
    let destinations = record.destinations.iter();
    let configured: BTreeMap<SocketAddr, u32> = destinations
        .map(|destination| (destination.address, destination.weight))
        .collect();
    // `TCP/192.0.2.10:80`, or `FWM/7/IPv4`.
    let virtual_server: Arc<str> = key.to_string().replace(' ', "/").into();
    let (namespace, name) = (&record.key.namespace, &record.key.service);
    let labels = move |address: SocketAddr| ServerLabels {
        namespace: Arc::clone(namespace),
        name: Arc::clone(name),
        frontend: Arc::clone(&record.key.port),
        virtual_server: Arc::clone(&virtual_server),
        backend: address.to_string().into(),
    };
    servers.into_iter().map(move |(address, usage)| RealServer {
        labels: labels(address),
        usage,
        configured: configured.get(&address).copied(),
    })
}

impl fmt::Debug for RealServerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RealServerCollector")
            .finish_non_exhaustive()
    }
}

impl RealServerCollector {
    /// Adds metrics of at most `limit` real servers of this process's kernel to a registry; none if it is 0.
    pub fn register(status: &Status, limit: u32, registry: &mut Registry) {
        if limit > 0 {
            let this = Self::with(status.clone(), limit, read_some_usage);
            registry.register_collector(Box::new(this));
        }
    }

    fn with(
        status: Status,
        limit: u32,
        read: impl Fn(&[VirtualServerKey], usize) -> Result<SomeUsage, DataplaneError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            status,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            read: Box::new(read),
            state: Mutex::default(),
        }
    }

    /// One real server with counts, and no kernel.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        let this = Self::with(Status::default(), 1, |_, _| Ok(SomeUsage::default()));
        let labels = ServerLabels {
            namespace: "default".into(),
            name: "web".into(),
            frontend: "http".into(),
            virtual_server: "TCP/192.0.2.10:80".into(),
            backend: "10.0.0.11:8080".into(),
        };
        let server = RealServer {
            labels,
            usage: Usage::default(),
            configured: Some(1),
        };
        *this.state.lock().unwrap() = State {
            buckets: Some(4096),
            servers: vec![server],
            ..State::default()
        };
        this
    }

    fn update(&self, state: &mut State) {
        if state.read_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        let Some(balanced) = self.status.balanced_servers() else {
            // Other dataplanes have no real servers. One that has taken the place of IPVS leaves none of before.
            if state.read_at.is_some() {
                *state = State::default();
            }
            return;
        };
        state.read_at = Some(Instant::now());
        let keys: Vec<VirtualServerKey> = balanced.iter().map(|(key, _)| *key).collect();
        match (self.read)(&keys, self.limit) {
            Ok(read) => {
                state.take(&balanced, read);
                state.is_broken = false;
            }
            Err(error) => {
                if !state.is_broken {
                    tracing::warn!(%error, "the counters of real servers cannot be read");
                }
                state.is_broken = true;
                // Connections of another time would be taken for those of now.
                state.servers.clear();
            }
        }
    }
}

impl Collector for RealServerCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.update(&mut state);
        let mut scrape = Scrape::new(encoder);
        count(&mut scrape, &state.servers)?;
        gauge(&mut scrape, &state.servers)?;
        scrape.gauge(
            "backend_metrics_truncated",
            "Whether real servers of load balancers may be beyond --backend-metrics, which have no metrics of use",
            i64::from(state.is_truncated),
        )?;
        let Some(buckets) = state.buckets else {
            return Ok(());
        };
        scrape.gauge(
            "ipvs_connection_table_buckets",
            "Buckets of the kernel's table of IPVS connections; with --backend-metrics",
            i64::from(buckets),
        )
    }
}

/// The counters.
fn count(scrape: &mut Scrape<'_>, servers: &[RealServer]) -> fmt::Result {
    scrape.counters(
        "real_server_connections",
        "Connections to a real server of a load balancer, as IPVS counts them; with --backend-metrics",
        servers
            .iter()
            .map(|server| (server.labels.clone(), server.usage.total_connections)),
    )?;
    scrape.counters(
        "real_server_packets",
        "Packets from and to clients of a real server of a load balancer; with --backend-metrics",
        both_ways(servers, |usage| (usage.packets_in, usage.packets_out)),
    )?;
    scrape.counters(
        "real_server_bytes",
        "Bytes from and to clients of a real server of a load balancer; with --backend-metrics",
        both_ways(servers, |usage| (usage.bytes_in, usage.bytes_out)),
    )
}

/// One number for each direction.
fn both_ways(
    servers: &[RealServer],
    of: impl Fn(&Usage) -> (u64, u64),
) -> impl Iterator<Item = (DirectionLabels, u64)> {
    servers.iter().flat_map(move |each| {
        let (inward, outward) = of(&each.usage);
        [("in", inward), ("out", outward)].map(|(direction, count)| {
            let server = each.labels.clone();
            (DirectionLabels { server, direction }, count)
        })
    })
}

/// The gauges.
fn gauge(scrape: &mut Scrape<'_>, servers: &[RealServer]) -> fmt::Result {
    let connections = servers.iter().flat_map(|each| {
        let connections = each.usage.connections;
        let by_state = [
            ("active", connections.active),
            ("inactive", connections.inactive),
            ("persistent", connections.persistent),
        ];
        by_state.map(|(state, count)| {
            let server = each.labels.clone();
            (StateLabels { server, state }, i64::from(count))
        })
    });
    scrape.gauges(
        "real_server_connections_current",
        "Entries of a real server of a load balancer in IPVS's table of connections; with --backend-metrics",
        connections,
    )?;
    let weights = servers
        .iter()
        .map(|server| (server.labels.clone(), i64::from(server.usage.weight)));
    scrape.gauges(
        "real_server_weight",
        "Weight that IPVS gives a real server of a load balancer; with --backend-metrics",
        weights,
    )?;
    let configured = servers.iter().filter_map(|server| {
        let weight = server.configured?;
        Some((server.labels.clone(), i64::from(weight)))
    });
    scrape.gauges(
        "real_server_weight_configured",
        "Weight that the table gives a real server of a load balancer; with --backend-metrics",
        configured,
    )
}

#[cfg(test)]
mod tests;
