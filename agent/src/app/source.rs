// SPDX-License-Identifier: Apache-2.0

//! The table's source: files, or controllers with their certificates and the list of their addresses.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use portolan_model::NodeKey;
use portolan_runtime::{CredentialCollector, Vital};
use portolan_select::SelectConfig;
use portolan_source::{ContactCollector, ProblemLog, Sink, file};
use portolan_subscription::{Endpoints, Security, endpoint, follow_controllers, keep_controllers};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tonic::transport::Uri;

use crate::args::{RunArgs, Source};
use crate::director::HostDirector;
use crate::metrics::{SourceCollector, StreamCollector};
use crate::standalone::{Reading, Standalone, StandaloneConfig};
use crate::subscribe::{
    self, BackendHealth, ClusterPin, DISK_PATIENCE, FIRST_COMMIT_TIMEOUT, HeldView, Report, Stats,
    SubscribeConfig, Subscribed,
};

/// Poll period of certificates and of the list of controllers. They may be missing at first.
const FILES_POLL: Duration = Duration::from_secs(2);

/// The ends of the channels between the table's source and the reconcile loop.
pub(super) struct Feeds {
    pub(super) tables_out: watch::Sender<Option<Arc<Subscribed>>>,
    pub(super) reports: watch::Receiver<Option<Report>>,
    pub(super) held: HeldView,
    pub(super) pin: ClusterPin,
    pub(super) stats: Arc<Stats>,
    /// Requests to read the files, and the readings.
    pub(super) requests: file::ReadRequests,
    pub(super) readings: watch::Sender<Reading>,
    pub(super) director: HostDirector,
    /// Health of load balancers' backends.
    pub(super) backends: Option<BackendHealth>,
    /// Hooks of load balancers.
    pub(super) hooks: watch::Sender<Arc<file::HooksOf>>,
}

/// The table's source, ready to be started.
pub(super) enum TableSource {
    /// Files.
    Files,
    /// Controllers, and the security of streams to them.
    Controllers(Endpoints, Security),
}

/// Opens the files of a source of controllers, and follows them.
pub(super) fn open_source(
    args: &RunArgs,
    registry: &mut Registry,
    vital: &Vital,
) -> anyhow::Result<TableSource> {
    if args.source == Source::File {
        return Ok(TableSource::Files);
    }
    let mut health = Vec::new();
    let (security, files) = args.identity.identity().open("tls")?;
    if let Some(files) = files {
        health.push(files.health());
        let task = files.follow(FILES_POLL, vital.ending.clone());
        vital.spawn("credentials", task);
    }
    let endpoints = match &args.controller_file {
        None => Endpoints::Fixed(endpoints(&args.controller)?),
        Some(path) => {
            let files = follow_controllers(path.clone(), &args.state_dir);
            health.push(files.health());
            let list = files.subscribe();
            let kept = keep_controllers(list.clone(), args.state_dir.clone());
            vital.spawn_endless("saved list of controllers", kept);
            let task = files.follow(FILES_POLL, vital.ending.clone());
            vital.spawn("list of controllers", task);
            Endpoints::Followed(list)
        }
    };
    registry.register_collector(Box::new(CredentialCollector(health)));
    Ok(TableSource::Controllers(endpoints, security))
}

/// Starts the source of the table.
pub(super) fn follow(
    args: &RunArgs,
    node: NodeKey,
    source: &TableSource,
    feeds: Feeds,
    registry: &mut Registry,
    vital: &Vital,
) {
    let collector = SourceCollector(Arc::clone(&feeds.stats));
    registry.register_collector(Box::new(collector));
    match source {
        TableSource::Files => follow_files(args, node, feeds, registry, vital),
        TableSource::Controllers(endpoints, security) => {
            let of_controllers = (endpoints.clone(), security.clone());
            subscribe_to_controllers(args, node, of_controllers, feeds, registry, vital);
        }
    }
}

/// Starts the selection from files.
fn follow_files(
    args: &RunArgs,
    node: NodeKey,
    feeds: Feeds,
    registry: &mut Registry,
    vital: &Vital,
) {
    let problems = ProblemLog::default();
    problems.register(registry);
    let (sink, events) = Sink::channel(64);
    let cluster = Arc::clone(&node.cluster);
    let options = file::Options {
        proxy: args.service_proxy_name.clone(),
        requests: feeds.requests.clone(),
        host: Some(Arc::clone(&node.name)),
        ..file::Options::new(args.file_poll())
    };
    options.counts.register(registry);
    let contact = Arc::clone(&options.contact);
    registry.register_collector(Box::new(ContactCollector(move || contact.silence())));
    let ending = vital.ending.clone();
    let (_, paths) = watch::channel(args.file.clone());
    let watch = file::watch(paths, cluster, sink, options, ending);
    vital.spawn("source", watch);
    let config = StandaloneConfig {
        node,
        problems,
        select: SelectConfig {
            source_ranges: args.source_ranges,
        },
        guard: args.guard(),
        state_dir: args.state_dir.clone(),
        readings: feeds.readings,
        director: feeds.director,
        hooks: feeds.hooks,
    };
    let Feeds {
        tables_out,
        held,
        stats,
        ..
    } = feeds;
    let standalone = Standalone::new(config, tables_out, held, stats);
    vital.spawn("selection", standalone.run(events));
}

/// Starts the subscription to controllers.
fn subscribe_to_controllers(
    args: &RunArgs,
    node: NodeKey,
    (endpoints, security): (Endpoints, Security),
    feeds: Feeds,
    registry: &mut Registry,
    vital: &Vital,
) {
    let Feeds {
        tables_out,
        reports,
        held,
        pin,
        stats,
        backends,
        ..
    } = feeds;
    let stream = Arc::clone(&stats.stream);
    registry.register_collector(Box::new(StreamCollector(Arc::clone(&stats))));
    registry.register_collector(Box::new(ContactCollector(move || stream.silence())));
    let config = SubscribeConfig {
        endpoints,
        security,
        cluster: node.cluster.to_string(),
        node: node.name.to_string(),
        pin,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        state_dir: Some(args.state_dir.clone()),
        disk_patience: DISK_PATIENCE,
        guard: args.guard(),
        first_commit_timeout: FIRST_COMMIT_TIMEOUT,
        backends,
    };
    let ending = vital.ending.clone();
    let task = subscribe::run(config, tables_out, reports, stats, held, ending);
    vital.spawn("subscription", task);
}

/// The addresses of the controllers, as URIs for tonic.
pub(crate) fn endpoints(controllers: &[String]) -> anyhow::Result<Vec<Uri>> {
    let endpoints = controllers.iter().map(|address| endpoint(address));
    let endpoints: Result<_, _> = endpoints.collect();
    endpoints.context("--controller")
}
