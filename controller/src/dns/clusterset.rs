// SPDX-License-Identifier: Apache-2.0

//! Names of imported Services: a zone for each cluster that imports, its exports, and its copies at agents.
//!
//! The writer of tables notes changes and never waits: a task applies them to the zones.

mod noted;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use portolan_dns::replica::{ClusterFeeds, NamesService};
use portolan_dns::skydns::Layout;
use portolan_dns::{Bound, Metrics, Server, SharedZone, Zone, ZoneConfig, encode_lags};
use portolan_runtime::Vital;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::args::DnsArgs;
use super::{RETRY, ask, drained, etcd, make_directory, now_as_serial, write_files};
use crate::args::{Args, Source};
pub(crate) use noted::ClusterNames;
use noted::Noted;

/// DNS of imported Services that is on.
pub(crate) struct ClusterSetDns {
    zones: Zones,
    names: ClusterNames,
    feeds: ClusterFeeds,
    bound: Vec<(Bound, Server)>,
}

/// The zones by the name of their cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Zones(Arc<Mutex<BTreeMap<Arc<str>, Arc<SharedZone>>>>);

impl Zones {
    pub(super) fn get(&self, cluster: &str) -> Option<Arc<SharedZone>> {
        self.lock().get(cluster).cloned()
    }

    /// The largest lag of each way of exports. Nothing is exported of a zone that is not synced.
    fn lags(&self) -> BTreeMap<&'static str, Duration> {
        let zones: Vec<_> = self.lock().values().cloned().collect();
        let synced = zones.iter().filter(|zone| zone.read().is_synced());
        let mut largest = BTreeMap::new();
        for (way, lag) in synced.flat_map(|zone| zone.lags()) {
            let known: &mut Duration = largest.entry(way).or_default();
            *known = lag.max(*known);
        }
        largest
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<SharedZone>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Metrics of the lag of exports, over all zones.
impl Collector for Zones {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        encode_lags(encoder, self.lags())
    }
}

impl ClusterSetDns {
    /// Binds, and starts everything; `None` if there is no zone.
    ///
    /// # Errors
    /// If a flag cannot be used, or an address cannot be bound.
    pub(crate) async fn start(
        args: &Args,
        registry: &mut Registry,
        vital: &Vital,
    ) -> anyhow::Result<Option<Self>> {
        let dns = &args.dns;
        dns.validate(args.source)?;
        if args.source != Source::Clusters || !dns.is_clusterset_on() {
            return Ok(None);
        }
        let names = ClusterNames::default();
        let mut follower = Follower::new(dns, vital)?;
        let (zones, feeds) = (follower.zones.clone(), follower.feeds.clone());
        let metrics = Metrics::register(registry);
        registry.register_collector(Box::new(zones.clone()));
        let mut bound = Vec::new();
        for (cluster, address) in dns.clusterset_listeners() {
            // Answers are SERVFAIL until the cluster is known.
            let zone = follower.listener(&cluster.as_str().into())?;
            let listener = address.bind(&dns.server.socket_access()).await;
            let listener = listener.context("--dns-clusterset-listen")?;
            bound.push((listener, Server::new(zone).with_metrics(metrics.clone())));
        }
        let following = follower.run(names.clone());
        vital.spawn_endless("names of imports", following);
        Ok(Some(Self {
            zones,
            names,
            feeds,
            bound,
        }))
    }

    /// The writer's end.
    pub(crate) fn names(&self) -> ClusterNames {
        self.names.clone()
    }

    /// The service that streams the names to agents.
    pub(crate) fn replicas(&self) -> NamesService {
        NamesService::of_clusters(self.feeds.clone())
    }

    /// The routes of the admin server.
    pub(crate) fn routes(&self) -> Router {
        ask::cluster_routes(self.zones.clone())
    }

    /// Serves on the next bound address until a while after the token; `None` after the last one.
    pub(crate) fn next_listener(
        &mut self,
        token: &CancellationToken,
    ) -> Option<impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static> {
        let (bound, server) = self.bound.pop()?;
        Some(bound.serve(server, drained(token.clone())))
    }
}

/// Where the names of each cluster are written to.
#[derive(Debug, Clone)]
struct Exports {
    files: Option<(PathBuf, Duration)>,
    etcd: Option<etcd::Export>,
}

impl Exports {
    fn new(dns: &DnsArgs, vital: &Vital) -> anyhow::Result<Self> {
        let files = dns.zone_dir().cloned();
        Ok(Self {
            files: files.map(|directory| (directory, dns.zone_interval())),
            etcd: dns.etcd.open(vital)?,
        })
    }
}

/// Applies what the writer noted.
struct Follower {
    config: ZoneConfig,
    serial: u32,
    exports: Exports,
    zones: Zones,
    feeds: ClusterFeeds,
    /// The zones that listeners answer from, whether their cluster is there or not.
    listeners: BTreeMap<Arc<str>, Arc<SharedZone>>,
    /// Ends the tasks of a cluster when it is dropped.
    running: BTreeMap<Arc<str>, DropGuard>,
    tasks: JoinSet<()>,
    /// Changes that could not be applied, because a zone could not begin. The writer notes nothing twice.
    unapplied: BTreeMap<Arc<str>, Noted>,
    /// Time at which to try them again.
    retry_at: Option<Instant>,
}

/// A task of a cluster.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Follower {
    fn new(dns: &DnsArgs, vital: &Vital) -> anyhow::Result<Self> {
        Ok(Self {
            config: dns.clusterset_config()?,
            serial: now_as_serial(),
            exports: Exports::new(dns, vital)?,
            zones: Zones::default(),
            feeds: ClusterFeeds::default(),
            listeners: BTreeMap::new(),
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
            unapplied: BTreeMap::new(),
            retry_at: None,
        })
    }

    /// The zone that a listener answers from.
    fn listener(&mut self, cluster: &Arc<str>) -> anyhow::Result<Arc<SharedZone>> {
        let zone = self.zone(cluster)?;
        self.listeners
            .insert(Arc::clone(cluster), Arc::clone(&zone));
        Ok(zone)
    }

    async fn run(mut self, names: ClusterNames) {
        loop {
            let noted = tokio::select! {
                noted = names.next() => noted,
                () = at(self.retry_at) => self.take_unapplied(),
            };
            for (cluster, noted) in noted {
                if let Err(error) = self.apply(&cluster, noted) {
                    tracing::error!(%cluster, error = %format!("{error:#}"), "no names of its imports");
                }
            }
            while let Some(ended) = self.tasks.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, "an export of names panicked");
                }
            }
        }
    }

    /// Takes the changes that could not be applied, to be tried again.
    fn take_unapplied(&mut self) -> BTreeMap<Arc<str>, Noted> {
        self.retry_at = None;
        std::mem::take(&mut self.unapplied)
    }

    fn apply(&mut self, cluster: &Arc<str>, noted: Noted) -> anyhow::Result<()> {
        let noted = match self.unapplied.remove(cluster) {
            Some(before) => before.then(noted),
            None => noted,
        };
        if noted.has_left {
            // Files, keys and the answers of listeners stay, as the tables of agents do.
            self.running.remove(cluster);
            self.feeds.remove(cluster);
            self.zones.lock().remove(cluster);
        }
        if noted.is_empty() {
            return Ok(());
        }
        let zone = match self.zone(cluster) {
            Ok(zone) => zone,
            Err(error) => {
                self.unapplied.insert(Arc::clone(cluster), noted);
                self.retry_at.get_or_insert(Instant::now() + RETRY);
                return Err(error);
            }
        };
        let was_synced = zone.read().is_synced();
        for problem in zone.apply(noted.into_changes()).problems {
            tracing::warn!(%cluster, "{problem}");
        }
        let now = zone.read();
        if now.is_synced() && !was_synced {
            let imports = now.services().len();
            tracing::info!(%cluster, imports, "names of imports are complete, answering");
        }
        Ok(())
    }

    /// The zone of a cluster, which is made with its exports if it is new.
    fn zone(&mut self, cluster: &Arc<str>) -> anyhow::Result<Arc<SharedZone>> {
        let known = self.zones.get(cluster);
        let is_running = self.running.contains_key(cluster);
        if let Some(zone) = known.filter(|_| is_running) {
            return Ok(zone);
        }
        // What can fail comes first: a listener keeps its last answers while a zone cannot begin.
        if let Some((directory, _)) = &self.exports.files {
            make_directory(&directory.join(&**cluster))?;
        }
        let layout = |etcd: &etcd::Export| Layout::new(&format!("{}-{cluster}", etcd.prefix));
        let layout = self.exports.etcd.as_ref().map(layout).transpose()?;
        let zone = self.begin(cluster)?;
        let mut tasks: Vec<Task> = Vec::new();
        if let Some((directory, interval)) = &self.exports.files {
            let directory = directory.join(&**cluster);
            let files = write_files(&directory, *interval, &zone, self.serial);
            tasks.push(Box::pin(files));
        }
        if let (Some(etcd), Some(layout)) = (&self.exports.etcd, layout) {
            tasks.push(Box::pin(etcd.clone().run(layout, Arc::clone(&zone))));
        }
        self.zones
            .lock()
            .insert(Arc::clone(cluster), Arc::clone(&zone));
        let feed = self.feeds.insert(Arc::clone(cluster), Arc::clone(&zone));
        tasks.push(Box::pin(feed));
        let stop = CancellationToken::new();
        for task in tasks {
            let stop = stop.clone();
            self.tasks.spawn(async move {
                let _ = stop.run_until_cancelled(task).await;
            });
        }
        self.running.insert(Arc::clone(cluster), stop.drop_guard());
        Ok(zone)
    }

    /// A zone without names: that of the cluster's listener, if there is one.
    fn begin(&self, cluster: &str) -> anyhow::Result<Arc<SharedZone>> {
        let empty = Zone::new(self.config.clone(), self.serial)?;
        let Some(zone) = self.listeners.get(cluster) else {
            return Ok(Arc::new(SharedZone::new(empty)));
        };
        zone.replace(empty);
        Ok(Arc::clone(zone))
    }
}

/// Waits until a time; for ever without one.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
