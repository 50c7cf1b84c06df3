// SPDX-License-Identifier: Apache-2.0

//! The sockets of a table: opened first, then lists are swapped, then what is left over is closed.

mod sockets;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use portolan_dns::ConfigError;
use portolan_model::{Families, Family, NodeTable, Protocol, RecordKey};
use portolan_nftables::{WayKey, Ways};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::inside::Inside;
use crate::limits::Limits;
use crate::listen::Listen;
use crate::metrics::Metrics;
use crate::names::Names;
use crate::parts::{endpoints, facts};
use crate::places::{Listed, Loopback, Places, own};
use crate::service::Service;
use crate::shared::Shared;
use crate::way::Way;

/// Where clients are.
#[derive(Debug)]
pub enum Clients {
    /// In namespaces of their own, with names in a zone.
    Inside {
        /// The namespaces.
        inside: Inside,
        /// The zone of names, such as `cluster.local`.
        zone: String,
    },
    /// On the loopback device of this machine.
    Loopback {
        /// The first port that needs no right.
        unprivileged: u16,
    },
    /// At a proxy port of their own, that asks for a way by name.
    Asked,
}

/// Settings of a [`Proxy`].
#[derive(Debug)]
pub struct ProxyConfig {
    /// Where clients are.
    pub clients: Clients,
    /// The families that are served.
    pub families: Families,
    /// Time that connections to an endpoint that is gone are kept, if the Service does not say.
    pub drain: Duration,
    /// Metrics.
    pub metrics: Metrics,
}

/// The outcome of one application of a table.
#[derive(Debug, Default)]
pub struct Applied {
    /// Errors, each with its record if it belongs to one.
    pub errors: Vec<(Option<RecordKey>, String)>,
    /// Changed listeners and lists.
    pub changed: usize,
    /// Whether a later attempt may mend an error.
    pub again: bool,
}

/// The ways that are served now.
pub(crate) type Serving = Arc<RwLock<HashMap<WayKey, Arc<Way>>>>;

/// Serves the ways of a table by sockets of this process. Dropped, it ends all connections.
#[derive(Debug)]
pub struct Proxy {
    mode: Mode,
    families: Families,
    drain: Duration,
    pub(crate) shared: Shared,
    pub(crate) serving: Serving,
    pub(crate) table: watch::Sender<Arc<NodeTable>>,
    services: HashMap<RecordKey, Arc<Service>>,
    listeners: BTreeMap<Listen, Listener>,
    listed: watch::Sender<Option<Vec<Listed>>>,
}

#[derive(Debug)]
enum Mode {
    Inside {
        inside: Inside,
        names: Names,
        /// The addresses that are routed to the namespace.
        routed: BTreeSet<IpAddr>,
        /// The listeners of the name server, once they are there.
        server: Vec<Listener>,
    },
    Loopback(Loopback),
    Asked,
}

/// A task that listens, and the way that it listens for.
#[derive(Debug)]
struct Listener {
    way: Option<WayKey>,
    task: AbortHandle,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ending.cancel();
    }
}

impl Proxy {
    /// Serves nothing yet.
    ///
    /// # Errors
    /// If the zone is no domain name.
    pub fn new(config: ProxyConfig) -> Result<Self, ConfigError> {
        let mode = match config.clients {
            Clients::Inside { inside, zone } => Mode::Inside {
                inside,
                names: Names::new(&zone)?,
                routed: BTreeSet::new(),
                server: Vec::new(),
            },
            Clients::Loopback { unprivileged } => Mode::Loopback(Loopback::new(unprivileged)),
            Clients::Asked => Mode::Asked,
        };
        Ok(Self {
            mode,
            families: config.families,
            drain: config.drain,
            shared: Shared {
                limits: Limits::of_process(),
                metrics: config.metrics,
                ending: CancellationToken::new(),
            },
            serving: Serving::default(),
            table: watch::Sender::default(),
            services: HashMap::new(),
            listeners: BTreeMap::new(),
            listed: watch::Sender::default(),
        })
    }

    /// The metrics.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Returns a receiver of the ways that are served, with their addresses, from the first table on.
    #[must_use]
    pub fn listed(&self) -> watch::Receiver<Option<Vec<Listed>>> {
        self.listed.subscribe()
    }

    /// Numbers of ways and of their endpoints.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let ways = self.serving.read().unwrap_or_else(PoisonError::into_inner);
        (ways.len(), ways.values().map(|way| way.endpoints()).sum())
    }

    /// Serves a table. With `keep`, what it lacks stays: it may be older than what is served.
    pub async fn apply(&mut self, table: &Arc<NodeTable>, keep: bool) -> Applied {
        let mut applied = Applied::default();
        let ways = self.ways(table, &mut applied);
        let (places, listed) = match &mut self.mode {
            Mode::Inside { .. } => (own(&ways), Vec::new()),
            Mode::Loopback(loopback) => loopback.places(&ways),
            Mode::Asked => (Places::new(), Vec::new()),
        };
        let before = std::mem::take(&mut self.services);
        self.services = table
            .records
            .keys()
            .map(|key| {
                let new = || Arc::new(Service::new(key.clone()));
                let service = before.get(key).map_or_else(new, Arc::clone);
                (key.clone(), service)
            })
            .collect();
        let wanted = endpoints(&ways);
        // New endpoints may be chosen from now on, and old ones until the lists are swapped.
        for (key, service) in &self.services {
            let mut both = wanted.get(key).cloned().unwrap_or_default();
            both.extend(service.serving());
            service.serve(both, self.drain_of(table, key), Instant::now());
        }
        self.open(&ways, &places, &mut applied).await;
        if let Err(error) = self.name(table).await {
            applied
                .errors
                .push((None, format!("names cannot be answered: {error}")));
            applied.again = true;
        }
        self.swap(&ways, keep, &mut applied);
        for (key, service) in &self.services {
            let serving = wanted.get(key).cloned().unwrap_or_default();
            service.serve(serving, self.drain_of(table, key), Instant::now());
        }
        if !keep {
            self.close(&ways, &places, &mut applied).await;
            let gone = before
                .iter()
                .filter(|(key, _)| !self.services.contains_key(*key));
            for (key, service) in gone {
                let drain = self.drain_of(&self.table.borrow(), key);
                service.serve(BTreeSet::new(), drain, Instant::now());
            }
        }
        self.table.send_replace(Arc::clone(table));
        self.listed.send_if_modified(|now| {
            let differs = now.as_ref() != Some(&listed);
            *now = Some(listed);
            differs
        });
        applied
    }

    /// The ways of a table, with the errors of those that cannot be served.
    fn ways(&self, table: &NodeTable, applied: &mut Applied) -> Ways {
        let mut ways = Ways::new(table, &facts(table));
        for refused in &ways.refused {
            let record = Some(refused.record().clone());
            applied.errors.push((record, refused.to_string()));
        }
        for record in table
            .records
            .values()
            .filter(|r| r.key.protocol == Protocol::Sctp)
        {
            let error = "SCTP is not served by --dataplane userspace".to_owned();
            applied.errors.push((Some(record.key.clone()), error));
        }
        let families = self.families;
        ways.ways.retain(|key, _| {
            families.contains(Family::of(key.address)) && key.protocol != Protocol::Sctp
        });
        ways
    }

    /// Time that connections of a record's endpoints are kept. A datagram's sender does not mind another endpoint.
    fn drain_of(&self, table: &NodeTable, key: &RecordKey) -> Duration {
        let record = table.records.get(key);
        let own = record.and_then(|record| record.drain_seconds);
        match key.protocol {
            Protocol::Tcp => own.map_or(self.drain, |s| Duration::from_secs(s.into())),
            _ => Duration::ZERO,
        }
    }
}
