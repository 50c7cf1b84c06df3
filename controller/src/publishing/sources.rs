// SPDX-License-Identifier: Apache-2.0

//! Starts the source of the flags.

use std::sync::Arc;
use std::time::Duration;

use portolan_runtime::{Readiness, Vital};
use portolan_source::{ProblemLog, Sink, etcd, file, kubernetes};
use portolan_tablelog::{ClusterIdentity, SourceDoubts};
use portolan_tls::POLL;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::Publishing;
use crate::args::{Args, Source};
use crate::cluster::{ClusterMetrics, ClusterWatch};
use crate::clusters::{
    ClusterCollector, ClusterSources, ClusterStates, Home, Members, StatusWriter, Supervisor,
    resources,
};
use crate::edges::start_uplink;
use crate::mcs::Mcs;
use crate::writer::{Centre, ClusterChange, Inbox};

/// Length of the queue of events from the source to the writer.
const EVENTS: usize = 64;
/// Pause between two questions for the newest versions of the API server.
const DOUBTS_PAUSE: Duration = Duration::from_secs(1);

impl Publishing {
    /// Starts the source, and returns the inbox of its events, and at an edge controller the plans of its centre.
    pub(super) async fn start_source(
        &mut self,
        args: &Args,
        names: Option<kubernetes::NameOptions>,
        mcs: Option<Mcs>,
        stats: &Arc<kubernetes::Stats>,
        registry: &mut Registry,
        vital: &Vital,
    ) -> anyhow::Result<(Inbox, Option<Centre>)> {
        let Some(cluster) = args.cluster() else {
            let inbox = self.start_clusters(args, mcs, stats, registry, vital);
            return Ok((inbox.await?, None));
        };
        let (sink, events) = Sink::channel(EVENTS);
        let mut writer = None;
        match args.source {
            Source::File => watch_files(args, sink, names, stats, vital),
            Source::Kubernetes => {
                let client = client(args).await?;
                if args.cluster_id.is_none() {
                    let identity = self.publisher.identity(&cluster);
                    let metrics = ClusterMetrics::register(registry);
                    watch_cluster(&client, identity, self.readiness.clone(), metrics, vital);
                }
                if args.events {
                    report_events(&client, stats, &mut self.problems, vital);
                }
                let doubts = self.publisher.source_doubts(&cluster);
                let asked = client.clone();
                let newest = move || {
                    let client = asked.clone();
                    async move { kubernetes::newest_versions(&client).await }
                };
                vital.spawn_endless("doubted versions", answer_doubts(newest, doubts));
                if args.edge.writes() {
                    // A client of its own, so that writes and watches do not wait for each other.
                    writer = Some(self::client(args).await?);
                }
                watch_objects(client, args, sink, names, stats, vital);
            }
            Source::Etcd => {
                let doubts = self.publisher.source_doubts(&cluster);
                watch_etcd(args, sink, stats, doubts, vital)?;
            }
            // A relay has no objects, and several clusters have sources of their own.
            Source::Controller | Source::Clusters => {}
        }
        if !args.edge.is_on() {
            return Ok((Inbox::single(cluster, events), None));
        }
        let source = Arc::clone(stats);
        let silence = move || source.silence();
        let (events, plans) = start_uplink(
            args,
            events,
            stats.holds(),
            silence,
            writer,
            registry,
            vital,
        )?;
        let centre = Centre::new(Arc::clone(&cluster), args.edge.ranges(), plans);
        Ok((Inbox::single(cluster, events), Some(centre)))
    }

    /// Starts the sources of several clusters, and returns the inbox of their events.
    async fn start_clusters(
        &mut self,
        args: &Args,
        mcs: Option<Mcs>,
        stats: &Arc<kubernetes::Stats>,
        registry: &mut Registry,
        vital: &Vital,
    ) -> anyhow::Result<Inbox> {
        let (changes, inbox) = Inbox::several();
        let sources = Arc::clone(&self.sources);
        let states = self.states.clone();
        registry.register_collector(Box::new(ClusterCollector {
            sources: Arc::clone(&sources),
            states: states.clone(),
        }));
        let mcs = mcs.unwrap_or_else(Mcs::alone);
        let served = match args.clusters.policy_kubernetes {
            true => Some(follow_policy(args, &mcs, &states, stats, vital).await?),
            false => None,
        };
        let members = mcs.members();
        let supervisor = supervisor(args, changes, (sources, states), members, stats);
        let supervisor =
            supervisor.with_edges(self.edges.clone(), args.clusters.state_dir.is_some());
        let supervisor = supervisor.with_doubts(self.publisher.doubts());
        let supervisor = match self.cluster_issuers.take() {
            Some(issuers) => supervisor.with_tokens(issuers),
            None => supervisor,
        };
        let supervisor = match served {
            Some(served) => supervisor.with_policy(served),
            None => supervisor,
        };
        vital.spawn("clusters", supervisor.run(vital.ending.clone()));
        Ok(inbox)
    }
}

/// An edge reads what other clusters need of its own, with the Services that have no ServiceExport: the centre decides
/// which of them are exported.
fn shares(args: &Args) -> Option<watch::Receiver<bool>> {
    args.edge.is_on().then(|| watch::channel(true).1)
}

/// Asks the source for its newest versions when an agent has later ones. If it has not reached them,
/// it was restored from a backup, and the agent is served at once. A question that fails is repeated:
/// agents and relays doubt once, and wait for the answer.
pub(crate) async fn answer_doubts<F, E>(newest: impl Fn() -> F, doubts: SourceDoubts)
where
    F: Future<Output = Result<Vec<u64>, E>>,
    E: std::fmt::Display,
{
    let mut is_answered = true;
    loop {
        if is_answered {
            doubts.doubted().await;
        }
        let asked = Instant::now();
        match newest().await {
            Ok(versions) => {
                doubts.stated(asked, versions);
                is_answered = true;
            }
            Err(error) => {
                if is_answered {
                    tracing::warn!(%error, "cannot compare the versions of agents with the source's");
                }
                is_answered = false;
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
        counts: file::ReadCounts::default(),
        host: None,
        shares: shares(args),
    };
    let (cluster, token) = (args.cluster.as_str().into(), vital.ending.clone());
    let (_, paths) = watch::channel(args.file.clone());
    let watch = file::watch(paths, cluster, sink, options, token);
    vital.spawn("source", watch);
}

/// Runs a source for each cluster of the policy. A cluster that is silent is seen by its metric, and
/// does not make the controller unready: it serves the others.
fn supervisor(
    args: &Args,
    changes: mpsc::Sender<ClusterChange>,
    (sources, states): (ClusterSources, ClusterStates),
    members: Members,
    stats: &Arc<kubernetes::Stats>,
) -> Supervisor {
    let policy = args.clusters.policy_file.clone();
    let guard = (args.guard.config(), Arc::clone(stats.holds()));
    let supervisor = Supervisor::new(
        policy,
        args.file_poll(),
        guard,
        changes,
        sources,
        states,
        members,
    );
    let home = Home::new(args.kubeconfig.clone(), args.context.clone());
    supervisor.at_home(home)
}

/// Starts to follow the policy at the API server that the controller runs at, and to write the status of its Clusters.
async fn follow_policy(
    args: &Args,
    mcs: &Mcs,
    states: &ClusterStates,
    stats: &kubernetes::Stats,
    vital: &Vital,
) -> anyhow::Result<watch::Receiver<kubernetes::Resources>> {
    let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
    let client = kubernetes::own_client(kubeconfig, context).await?;
    let (sender, served) = watch::channel(kubernetes::Resources::default());
    let (leading, counts) = mcs.at_home();
    let writer = StatusWriter {
        client: client.clone(),
        served: served.clone(),
        states: states.clone(),
        leading,
        counts,
    };
    vital.spawn_endless("status of Clusters", writer.run());
    let (guard, holds) = (args.guard.config(), Arc::clone(stats.holds()));
    let follow = kubernetes::follow_resources(client, resources(), guard, holds, sender);
    vital.spawn_endless("policy of the API server", follow);
    Ok(served)
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
    let besides = kubernetes::Besides {
        names,
        shares: shares(args),
    };
    let watch = kubernetes::watch_with(client, cluster, options, besides, sink, stats, token);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use portolan_tablelog::{Publisher, Retention};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_doubt_is_answered_after_questions_that_failed() {
        let (publisher, tables) = Publisher::new(Retention::default());
        let cluster = "".into();
        let feed = tables.feed(&cluster);
        let failures = AtomicU32::new(0);
        let newest = || {
            let failed = failures.fetch_add(1, Ordering::Relaxed);
            std::future::ready(match failed {
                0..3 => Err("unavailable"),
                _ => Ok(vec![5]),
            })
        };
        let since = Instant::now();
        feed.doubt_source();
        let raised = tables.raised();
        tokio::select! {
            () = answer_doubts(newest, publisher.source_doubts(&cluster)) => {}
            () = raised => {}
            () = sleep(DOUBTS_PAUSE * 10) => {}
        }
        assert_eq!(feed.stated_versions(since), Some(vec![5]));
    }
}
