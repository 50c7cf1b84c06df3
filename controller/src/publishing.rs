// SPDX-License-Identifier: Apache-2.0

//! The half of the controller that publishes tables: the source with its writer, or a relay.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use portolan_runtime::{BlockReady, Liveness, Readiness, Vital};
use portolan_serve::{Registry as Sessions, ServedClusters};
use portolan_source::{
    ContactCollector, HeldDeletions, ProblemLog, Sink, etcd, file, kubernetes, watch_contact,
};
use portolan_tablelog::{ClusterIdentity, Publisher, SourceDoubts, TableReader};
use portolan_tls::POLL;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use crate::args::{Args, Source};
use crate::cluster::{ClusterMetrics, ClusterWatch};
use crate::clusters::{ClusterCollector, ClusterSources, Supervisor};
use crate::deletions::HoldCollector;
use crate::metrics::{CatalogMetrics, SourceCollector};
use crate::relay;
use crate::writer::{ClusterChange, Inbox, Known, Question, SharedTrouble, Writer};

/// Length of the queue of events from the source to the writer.
const EVENTS: usize = 64;
/// Time without yielding after which the writer counts as stuck. The first table of a large cluster
/// takes seconds.
pub(crate) const WRITER_STUCK: Duration = Duration::from_secs(60);
/// Length of the queue of questions to the writer.
const QUESTIONS: usize = 8;

/// Pause between two questions for the newest versions of the API server.
const DOUBTS_PAUSE: Duration = Duration::from_secs(1);

/// Parts that publish tables.
pub(crate) struct Publishing {
    pub(crate) publisher: Publisher,
    pub(crate) tables: TableReader,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) clusters: ServedClusters,
    /// Contacts with the sources of several clusters.
    pub(crate) sources: ClusterSources,
    pub(crate) problems: ProblemLog,
    pub(crate) metrics: CatalogMetrics,
    pub(crate) trouble: SharedTrouble,
    /// Not ready until there are tables.
    pub(crate) unready: BlockReady,
    pub(crate) liveness: Liveness,
    pub(crate) readiness: Readiness,
}

impl Publishing {
    /// Starts the source and the writer. Returns the queue of questions and the held deletions; a relay
    /// has neither.
    pub(crate) async fn start(
        mut self,
        args: &Args,
        names: Option<kubernetes::NameOptions>,
        registry: &mut Registry,
        vital: &Vital,
    ) -> anyhow::Result<Option<(mpsc::Sender<Question>, Arc<HeldDeletions>)>> {
        let cluster: Arc<str> = args.cluster.as_str().into();
        let identity = self.publisher.identity(&cluster);
        if let Some(id) = &args.cluster_id {
            // Set for the first time, so it cannot contradict.
            let _ = identity.set(Some(id));
        }
        if args.source == Source::Controller {
            let parts = relay::RelayParts {
                publisher: self.publisher,
                identity,
                tables: self.tables,
                sessions: self.sessions,
                metrics: self.metrics,
                unready: self.unready,
                liveness: self.liveness,
                readiness: self.readiness,
                cores: cores(),
            };
            relay::start(args, parts, registry, vital)?;
            return Ok(None);
        }
        let (sink, events) = Sink::channel(EVENTS);
        let mut inbox = Inbox::single(Arc::clone(&cluster), events);
        let stats = Arc::new(kubernetes::Stats::default());
        match args.source {
            Source::Clusters => {
                let changes;
                (changes, inbox) = Inbox::several();
                let sources = Arc::clone(&self.sources);
                registry.register_collector(Box::new(ClusterCollector(self.sources)));
                watch_clusters(args, changes, sources, &stats, vital);
            }
            Source::File => watch_files(args, sink, names, &stats, vital),
            Source::Kubernetes => {
                let client = client(args).await?;
                if args.cluster_id.is_none() {
                    let metrics = ClusterMetrics::register(registry);
                    watch_cluster(&client, identity, self.readiness.clone(), metrics, vital);
                }
                if args.events {
                    report_events(&client, &stats, &mut self.problems, vital);
                }
                let doubts = self.publisher.source_doubts(&cluster);
                let asked = client.clone();
                let newest = move || {
                    let client = asked.clone();
                    async move { kubernetes::newest_versions(&client).await }
                };
                vital.spawn_endless("doubted versions", answer_doubts(newest, doubts));
                watch_objects(client, args, sink, names, &stats, vital);
            }
            Source::Etcd => {
                let doubts = self.publisher.source_doubts(&cluster);
                watch_etcd(args, sink, &stats, doubts, vital)?;
            }
            // A relay has no objects.
            Source::Controller => {}
        }
        let holds = Arc::clone(stats.holds());
        registry.register_collector(Box::new(HoldCollector(Arc::clone(&holds))));
        if args.source != Source::Clusters {
            let source = Arc::clone(&stats);
            let silence = move || source.silence();
            follow_contact(silence, args, self.readiness, registry, vital);
        }
        registry.register_collector(Box::new(SourceCollector { stats }));
        let writer = Writer {
            select: args.select(),
            clusters: self.clusters,
            publisher: self.publisher,
            problems: self.problems,
            metrics: self.metrics,
            trouble: self.trouble,
            sessions: self.sessions,
            refuses_unknown_nodes: args.refuses_unknown_nodes(),
            unready: Some(self.unready),
            audit_period: args.audit_period(),
            cores: cores(),
            known: Known::default(),
        };
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let work = writer.run(inbox, asked);
        let watched = async move { self.liveness.watch("writer", WRITER_STUCK, work).await };
        vital.spawn("writer", watched);
        Ok(Some((questions, holds)))
    }
}

/// Exports the time of the last contact with the source, and keeps the controller unready while the
/// source is silent for longer than `--source-timeout`.
pub(crate) fn follow_contact(
    silence: impl Fn() -> Option<Duration> + Clone + Send + Sync + 'static,
    args: &Args,
    readiness: Readiness,
    registry: &mut Registry,
    vital: &Vital,
) {
    registry.register_collector(Box::new(ContactCollector(silence.clone())));
    let contact = watch_contact(silence, args.source_timeout(), readiness);
    vital.spawn_endless("source contact", contact);
}

fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    u32::try_from(cores).unwrap_or(1)
}

/// Asks the source for its newest versions when an agent has later ones. If it has not reached them,
/// it was restored from a backup, and the agent is served at once.
async fn answer_doubts<F, E>(newest: impl Fn() -> F, doubts: SourceDoubts)
where
    F: Future<Output = Result<Vec<u64>, E>>,
    E: std::fmt::Display,
{
    loop {
        doubts.doubted().await;
        let asked = Instant::now();
        match newest().await {
            Ok(versions) => doubts.stated(asked, versions),
            Err(error) => {
                tracing::warn!(%error, "cannot compare the versions of agents with the source's");
            }
        }
        sleep(DOUBTS_PAUSE).await;
    }
}

/// Writes Kubernetes Events about problems with objects and held deletions.
fn report_events(
    client: &kube::Client,
    stats: &kubernetes::Stats,
    problems: &mut ProblemLog,
    vital: &Vital,
) {
    let instance = std::env::var("HOSTNAME").ok();
    let held = Arc::clone(stats.holds());
    let report = kubernetes::report_held(client.clone(), held, instance.clone());
    vital.spawn_endless("Events of held deletions", report);
    let (reporter, reported) = kubernetes::problem_channel();
    problems.report_to(reporter);
    let report = kubernetes::report_problems(client.clone(), reported, instance);
    vital.spawn_endless("Events of problems", report);
}

/// Starts to read the files.
fn watch_files(
    args: &Args,
    sink: Sink,
    names: Option<kubernetes::NameOptions>,
    stats: &Arc<kubernetes::Stats>,
    vital: &Vital,
) {
    let options = file::Options {
        interval: args.file_poll(),
        names: names.map(|names| names.sink),
        guard: Some((args.guard.config(), Arc::clone(stats.holds()))),
        contact: Arc::clone(stats.files()),
        proxy: args.service_proxy_name.clone(),
        requests: file::ReadRequests::default(),
        host: None,
    };
    let (cluster, token) = (args.cluster.as_str().into(), vital.ending.clone());
    let (_, paths) = watch::channel(args.file.clone());
    let watch = file::watch(paths, cluster, sink, options, token);
    vital.spawn("source", watch);
}

/// Starts a source for each cluster of the policy. A cluster that is silent is seen by its metric, and
/// does not make the controller unready: it serves the others.
fn watch_clusters(
    args: &Args,
    changes: mpsc::Sender<ClusterChange>,
    sources: ClusterSources,
    stats: &Arc<kubernetes::Stats>,
    vital: &Vital,
) {
    let policy = args.clusters.policy_file.clone();
    let guard = (args.guard.config(), Arc::clone(stats.holds()));
    let supervisor = Supervisor::new(policy, args.file_poll(), guard, changes, sources);
    vital.spawn("clusters", supervisor.run(vital.ending.clone()));
}

/// Starts to follow an etcd.
fn watch_etcd(
    args: &Args,
    sink: Sink,
    stats: &Arc<kubernetes::Stats>,
    doubts: SourceDoubts,
    vital: &Vital,
) -> anyhow::Result<()> {
    args.etcd.validate()?;
    let (prefix, token) = (args.etcd.prefix()?, vital.ending.clone());
    let mut connection = args.etcd.access().open()?;
    if let Some(files) = connection.credentials.take() {
        let follow = files.follow(POLL, token.clone());
        vital.spawn("credentials for etcd", follow);
    }
    let asked = Arc::new(etcd::Connection {
        endpoints: connection.endpoints.clone(),
        user: connection.user.clone(),
        credentials: None,
    });
    let asked_prefix = prefix.clone();
    let newest = move || {
        let (connection, prefix) = (Arc::clone(&asked), asked_prefix.clone());
        async move { etcd::newest_versions(&connection, &prefix).await }
    };
    vital.spawn_endless("doubted versions", answer_doubts(newest, doubts));
    let options = etcd::Options {
        connection,
        prefix,
        cluster: args.cluster.as_str().into(),
        guard: args.guard.config(),
        stats: Arc::clone(stats),
    };
    vital.spawn("source", etcd::watch(options, sink, token));
    Ok(())
}

async fn client(args: &Args) -> anyhow::Result<kube::Client> {
    let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
    Ok(kubernetes::client(kubeconfig, context).await?)
}

/// Starts to watch the objects of an API server.
fn watch_objects(
    client: kube::Client,
    args: &Args,
    sink: Sink,
    names: Option<kubernetes::NameOptions>,
    stats: &Arc<kubernetes::Stats>,
    vital: &Vital,
) {
    let options = kubernetes::Options {
        pods: args.pod_weights,
        guard: args.guard.config(),
        proxy: args.service_proxy_name.clone(),
        ..kubernetes::Options::default()
    };
    let (cluster, token) = (args.cluster.as_str().into(), vital.ending.clone());
    let stats = Arc::clone(stats);
    let watch = kubernetes::watch_names(client, cluster, options, sink, names, stats, token);
    vital.spawn("source", watch);
}

/// Starts to ask the API server for the identity of its cluster. No agent is served before the first
/// answer.
fn watch_cluster(
    client: &kube::Client,
    identity: ClusterIdentity,
    readiness: Readiness,
    metrics: ClusterMetrics,
    vital: &Vital,
) {
    let watch = ClusterWatch::new(identity, readiness, metrics);
    let client = client.clone();
    let ask = move || {
        let client = client.clone();
        async move { kubernetes::cluster_id(&client).await }
    };
    vital.spawn_endless("identity of the cluster", watch.run(ask));
}
