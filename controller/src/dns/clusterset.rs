// SPDX-License-Identifier: Apache-2.0

//! Names of imported Services: a zone for each cluster that imports, its exports, and its copies at agents.
//!
//! The writer of tables notes changes and never waits: a task applies them to the zones.

mod noted;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use axum::Router;
use portolan_dns::replica::{ClusterFeeds, NamesService};
use portolan_dns::skydns::Layout;
use portolan_dns::{Bound, Metrics, Server, SharedZone, Zone, ZoneConfig};
use portolan_runtime::Vital;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::args::DnsArgs;
use super::{ask, drained, etcd, now_as_serial, write_files};
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<SharedZone>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    files: Option<(PathBuf, std::time::Duration)>,
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
}

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
            for (cluster, noted) in names.next().await {
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

    fn apply(&mut self, cluster: &Arc<str>, noted: Noted) -> anyhow::Result<()> {
        if noted.has_left {
            // Files, keys and the answers of listeners stay, as the tables of agents do.
            self.running.remove(cluster);
            self.feeds.remove(cluster);
            self.zones.lock().remove(cluster);
        }
        let changes = noted.into_changes();
        if changes.is_empty() {
            return Ok(());
        }
        let zone = self.zone(cluster)?;
        let was_synced = zone.read().is_synced();
        for problem in zone.apply(changes).problems {
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
        let zone = self.begin(cluster)?;
        self.zones
            .lock()
            .insert(Arc::clone(cluster), Arc::clone(&zone));
        let stop = CancellationToken::new();
        let running = stop.clone().drop_guard();
        let mut start = |task: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
            let stop = stop.clone();
            self.tasks.spawn(async move {
                let _ = stop.run_until_cancelled(task).await;
            });
        };
        let feed = self.feeds.insert(Arc::clone(cluster), Arc::clone(&zone));
        start(Box::pin(feed));
        if let Some((directory, interval)) = &self.exports.files {
            let directory = directory.join(&**cluster);
            let files = write_files(&directory, *interval, &zone, self.serial)?;
            start(Box::pin(files));
        }
        if let Some(etcd) = &self.exports.etcd {
            let layout = Layout::new(&format!("{}-{cluster}", etcd.prefix))?;
            start(Box::pin(etcd.clone().run(layout, Arc::clone(&zone))));
        }
        self.running.insert(Arc::clone(cluster), running);
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use portolan_dns::{Kind, NamesChange, Service, ServiceKey};

    use super::*;
    use crate::args::Cli;

    fn follower() -> Follower {
        let flags = [
            "portolan-controller",
            "--source",
            "clusters",
            "--dns-clusterset-zone",
            "clusterset.local",
            "--policy-file",
            "/policy",
        ];
        let args = Cli::try_parse_from(flags).unwrap().run;
        let (vital, _failures) = Vital::new(CancellationToken::new());
        Follower::new(&args.dns, &vital).unwrap()
    }

    /// Everything that the writer says of a cluster with one import.
    fn complete(cluster: &Arc<str>, import: &str) -> ClusterNames {
        let names = ClusterNames::default();
        let key = ServiceKey::new("ns", import);
        let ips = vec!["10.112.0.1".parse().unwrap()];
        let service = Service {
            key: key.clone(),
            kind: Kind::ClusterIp { ips },
            ports: Vec::new(),
            publish_not_ready: false,
        };
        let change = NamesChange::Whole {
            key,
            service: Some(service),
            slices: Vec::new(),
        };
        names.import(cluster, change);
        names.complete(cluster);
        names
    }

    async fn apply(follower: &mut Follower, names: &ClusterNames) {
        for (cluster, noted) in names.next().await {
            follower.apply(&cluster, noted).unwrap();
        }
    }

    fn imports(zone: &SharedZone) -> Vec<String> {
        let keys = zone.read().services();
        keys.into_iter().map(|key| key.name).collect()
    }

    #[tokio::test]
    async fn a_listener_answers_for_a_cluster_that_left_and_came_back() {
        let mut follower = follower();
        let eu: Arc<str> = "eu-1".into();
        let listener = follower.listener(&eu).unwrap();
        assert!(!listener.read().is_synced());
        apply(&mut follower, &complete(&eu, "a")).await;
        assert_eq!(imports(&listener), ["a"]);

        // As the tables of its agents the last answers stay.
        let left = ClusterNames::default();
        left.left(&eu);
        apply(&mut follower, &left).await;
        assert_eq!(imports(&listener), ["a"]);
        assert!(follower.zones.get(&eu).is_none());

        // It begins anew, without what it had.
        let (serial, namespaces) = (listener.read().serial(), ClusterNames::default());
        namespaces.namespaces(&eu, ["ns".to_owned()].into());
        apply(&mut follower, &namespaces).await;
        assert!(!listener.read().is_synced());
        apply(&mut follower, &complete(&eu, "b")).await;
        assert_eq!(imports(&listener), ["b"]);
        let zone = listener.read();
        assert!(zone.is_synced() && zone.serial() > serial);
    }
}
