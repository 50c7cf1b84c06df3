// SPDX-License-Identifier: Apache-2.0

//! Wiring of the table's source, the reconcile loop and the servers.

mod arrivals;
mod changeover;
mod checks;
mod planes;
mod ports;
#[cfg(test)]
mod reference;
mod source;
mod userspace;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use portolan_dataplane::Setting;
use portolan_model::{Families, NodeKey};
use portolan_runtime::{
    Admin, Liveness, Readiness, Vital, on_signal, raise_descriptor_limit, register_process,
};
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::addresses;
use crate::args::{ForgetArgs, RunArgs, Source};
use crate::choice::{self, Choice, Opened};
use crate::director::{self, DirectorCollector, HostDirector, HostLink, announce};
use crate::dns::{self, Origin};
use crate::forwarding;
use crate::health::Health;
use crate::health_check::HealthChecks;
use crate::healthz::Healthz;
use crate::kube_proxy::TakeoverConfig;
use crate::metrics::{RealServerCollector, ReconcileMetrics, ServiceCollector, SettingsCollector};
use crate::notify;
use crate::overview::Services;
use crate::reload::Reload;
use crate::spans;
use crate::state_lock::StateLock;
use crate::status::Status;
use crate::subscribe::{self, ClusterPin, Report, Stats, Subscribed};
use crate::sync::{
    BootClock, Drainer, Engine, Ready, SyncInputs, SyncOutputs, Timing, run as reconcile,
};
use crate::trace::{Plane, Tracer};
use arrivals::Arrivals;
use checks::{Checked, check_backends};
use planes::{start_ipvs, start_nftables};
use ports::Ports;
use source::{Feeds, TableSource, follow, open_source};

pub(crate) use changeover::must_take_over_first;
pub(crate) use planes::{open_ipvs, open_kernel, settle_rules};
pub(crate) use source::endpoints;
pub use userspace::run_command;

/// Time that tasks have to end when the agent stops.
const GRACE: Duration = Duration::from_secs(5);

/// The scheduler of most virtual servers, if the flags name none.
pub(crate) const DEFAULT_SCHEDULER: &str = "rr";

/// Runs until SIGTERM or SIGINT. The kernel keeps its programmed state.
///
/// # Errors
/// If a flag cannot be used, a port cannot be bound, or the kernel lacks a requirement.
pub async fn run(args: RunArgs) -> anyhow::Result<()> {
    args.validate()?;
    args.kube_proxy.apply();
    raise_descriptor_limit();
    let node = node_key(&args)?;
    let plan_config = args.kernel.plan_config()?;
    let _lock = StateLock::shared(&args.state_dir)?;
    let token = on_signal()?;
    let (vital, mut failures) = Vital::new(token.clone());
    let Some(ports) = token.run_until_cancelled(Ports::bind_or_wait(&args)).await else {
        return Ok(());
    };
    let ports = ports?;
    let (opened, choice) = choice::open(&args, &plan_config).await?;
    let place = Place {
        node,
        ports,
        choice,
    };
    match opened {
        Opened::Ipvs(kernel, families) => {
            start_ipvs(&args, place, plan_config, (*kernel, families), &vital).await?;
        }
        Opened::Nftables(kernel, families) => {
            start_nftables(&args, place, plan_config, (*kernel, families), &vital).await?;
        }
        Opened::Userspace => userspace::start_userspace(&args, place, &vital).await?,
    }
    let result = tokio::select! {
        () = token.cancelled() => Ok(()),
        Some(error) = failures.recv() => Err(error),
    };
    token.cancel();
    vital.tasks.close();
    if timeout(GRACE, vital.tasks.wait()).await.is_err() {
        tracing::warn!("some tasks did not end in time");
    }
    send_last_spans().await;
    result
}

/// Sends the spans that wait, if there are any.
async fn send_last_spans() {
    if portolan_telemetry::spans().is_some() {
        // It does not panic, and is never aborted.
        let _ = tokio::task::spawn_blocking(portolan_telemetry::stop).await;
    }
}

/// This node.
fn node_key(args: &RunArgs) -> anyhow::Result<NodeKey> {
    Ok(NodeKey {
        cluster: args.cluster.as_str().into(),
        name: args.node_name()?.into(),
    })
}

/// The node, the agent's ports on it, and its dataplane.
struct Place {
    node: NodeKey,
    ports: Ports,
    choice: Choice,
}

/// Parts of an agent that are ready before its tasks start.
struct Parts<E> {
    /// `None` if sockets serve, which no trace reads.
    plane: Option<Plane>,
    reconciler: E,
    settings: Vec<Setting>,
    families: Families,
    place: Place,
}

/// Starts all tasks of the agent.
async fn start<E: Engine + 'static>(
    args: &RunArgs,
    parts: Parts<E>,
    vital: &Vital,
) -> anyhow::Result<()> {
    let Parts {
        plane,
        reconciler,
        settings,
        families,
        place,
    } = parts;
    spans::start(&args.otlp, &place.node.name, vital)?;
    let choice = place.choice;
    tracing::info!(node = %place.node, dataplane = choice.dataplane, "started");
    let mut metrics = Registry::default();
    register_process(&mut metrics);
    reconciler.register(metrics.sub_registry_with_prefix("portolan_agent"));
    let health = Health::new(families.iter(), args.sync_period());
    let healthz = Healthz::register(health.clone(), &mut metrics);
    let readiness = Readiness::default();
    let (tables_out, tables) = watch::channel::<Option<Arc<Subscribed>>>(None);
    let (reports_out, reports) = watch::channel::<Option<Report>>(None);
    let pin = ClusterPin::open(&args.state_dir);
    let status = Status::new(pin.clone(), choice);
    let tracer = plane.map(|plane| Tracer::new(place.node.name.to_string(), status.clone(), plane));
    let outputs = SyncOutputs {
        reports: reports_out,
        metrics: ReconcileMetrics::register(&mut metrics),
        status: status.clone(),
        health_checks: health_checks(args, &families, health.clone(), &mut metrics)?,
        health: health.clone(),
        ready: Ready::new(readiness.clone(), families),
        watchdog: notify::start(vital, readiness.subscribe(), reports.clone()),
        ways: watch::Sender::default(),
    };
    let arrivals = Arrivals::register(args.source, health, &mut metrics);
    vital.spawn("arrivals", arrivals.follow(tables.clone()));
    let inputs = (tables, outputs.ways.subscribe(), reports.clone());
    let Checked {
        tables,
        overviews,
        commands,
        director,
        hooks,
        health: backends,
    } = check_backends(args, &place.node.name, inputs, &mut metrics, vital);
    let host = start_announcing(&director, vital);
    let inputs = sync_inputs(args, &place.ports, tables, host);
    start_reconciling(args, reconciler, inputs, outputs, vital);
    let reload = Reload::new(args.source, reports.clone(), status.held().clone());
    let feeds = Feeds {
        requests: reload.requests(),
        readings: reload.readings(),
        tables_out,
        reports,
        held: status.held().clone(),
        pin: pin.clone(),
        stats: latency_stats(args.source, &mut metrics),
        director: director.clone(),
        hooks,
        backends: Some(backends),
    };
    let registry = agent_metrics(&mut metrics, settings, &status, choice, &feeds.director);
    register_use(args, &status, registry);
    forwarding::start(choice.dataplane, args.check_period(), registry, vital);
    let source = open_source(args, registry, vital)?;
    follow(args, place.node, &source, feeds, registry, vital);
    serve_names(args, source, pin, registry, vital).await?;
    vital.spawn_endless("reload on SIGHUP", reload.clone().follow_signal()?);

    let admin = Admin {
        metrics: Arc::new(metrics),
        readiness,
        liveness: Liveness::default(),
        debug: dumps(&status, tracer).merge(overviews.dumps()),
        actions: actions(&status, &reload)
            .merge(director::actions(director))
            .merge(commands.actions()),
        token: args.debug.token()?,
        pages: None,
    };
    place.ports.serve(admin, healthz, choice.dataplane, vital);
    Ok(())
}

/// Actions about the table.
fn actions(status: &Status, reload: &Reload) -> Router {
    status.actions().merge(reload.actions())
}

/// Dumps of what the agent has programmed.
fn dumps(status: &Status, tracer: Option<Tracer>) -> Router {
    let traces = tracer.map(|tracer| tracer.dumps()).unwrap_or_default();
    let services = Services::new(status.clone());
    status.dumps().merge(traces).merge(services.dumps())
}

/// Inputs of the loop that keeps the kernel equal to the table.
fn sync_inputs(
    args: &RunArgs,
    ports: &Ports,
    tables: watch::Receiver<Option<Arc<Subscribed>>>,
    host: HostLink,
) -> SyncInputs {
    SyncInputs {
        tables,
        addresses: Arc::new(Notify::new()),
        takeover: TakeoverConfig {
            search: ports.others(args.kube_proxy_search()),
            ..args.takeover()
        },
        host,
    }
}

/// The health checks of node ports.
fn health_checks(
    args: &RunArgs,
    families: &Families,
    health: Health,
    metrics: &mut Registry,
) -> anyhow::Result<HealthChecks> {
    Ok(HealthChecks::register(
        families.iter().collect(),
        args.node_port_addresses()?,
        health,
        metrics.sub_registry_with_prefix("portolan_agent"),
    ))
}

/// The metrics named after the agent, with those that are read when they are asked for.
fn agent_metrics<'m>(
    metrics: &'m mut Registry,
    settings: Vec<Setting>,
    status: &Status,
    choice: Choice,
    director: &HostDirector,
) -> &'m mut Registry {
    let registry = metrics.sub_registry_with_prefix("portolan_agent");
    choice.register(registry);
    let settings = SettingsCollector::new(settings, status.clone());
    registry.register_collector(Box::new(settings));
    registry.register_collector(Box::new(DirectorCollector(director.clone())));
    registry
}

/// The metrics of use that flags ask for, with the kernel's counters of each scrape.
fn register_use(args: &RunArgs, status: &Status, registry: &mut Registry) {
    ServiceCollector::register(status, args.service_metrics, registry);
    RealServerCollector::register(status, args.backend_metrics, registry);
}

/// Starts to announce the addresses of a director; returns its side for the reconcile loop.
fn start_announcing(director: &HostDirector, vital: &Vital) -> HostLink {
    let (link, announcements) = director.link();
    let ending = vital.ending.clone();
    vital.spawn("announcements", async move {
        // It ends with the agent.
        let _ = ending.run_until_cancelled(announce(announcements)).await;
    });
    link
}

/// Deletes the record of the node's cluster, and the names of that cluster.
///
/// # Errors
/// If the record cannot be read, or one of both cannot be deleted.
pub fn forget(args: &ForgetArgs) -> anyhow::Result<()> {
    let place = || args.state_dir.display().to_string();
    dns::forget(&args.state_dir).with_context(place)?;
    let forgotten = subscribe::forget(&args.state_dir);
    match forgotten.with_context(place)? {
        Some(cluster) => tracing::info!(cluster, "forgotten"),
        None => tracing::info!("nothing to forget: the node belongs to no cluster"),
    }
    Ok(())
}

/// Statistics of a table's way to the kernel; a metric if a controller knows the triggers of its changes.
fn latency_stats(source: Source, metrics: &mut Registry) -> Arc<Stats> {
    let stats = Arc::new(Stats::default());
    if source != Source::Controller {
        return stats;
    }
    metrics.register_with_unit(
        "kubeproxy_network_programming_duration",
        "Time from the trigger of a change of endpoints until the kernel was programmed",
        Unit::Seconds,
        stats.network_programming.clone(),
    );
    stats
}

/// Answers DNS queries, if the flags say so.
async fn serve_names(
    args: &RunArgs,
    source: TableSource,
    pin: ClusterPin,
    registry: &mut Registry,
    vital: &Vital,
) -> anyhow::Result<()> {
    args.dns.validate(args.source == Source::Controller)?;
    let TableSource::Controllers(endpoints, security) = source else {
        return Ok(());
    };
    let origin = Origin {
        endpoints,
        security,
        pin,
        cluster: args.cluster.clone(),
        state_dir: args.state_dir.clone(),
    };
    args.dns.start(origin, registry, vital).await
}

/// Starts the loop that keeps the kernel equal to the table.
fn start_reconciling<E: Engine + 'static>(
    args: &RunArgs,
    reconciler: E,
    inputs: SyncInputs,
    outputs: SyncOutputs,
    vital: &Vital,
) {
    let drainer = Drainer::open(&args.state_dir, args.drain_timeout(), BootClock::system());
    let following = addresses::follow(Arc::clone(&inputs.addresses));
    vital.spawn_endless("address changes", following);
    let timing = Timing {
        sync_period: args.sync_period(),
        check_period: args.check_period(),
        ..Timing::default()
    };
    let ending = vital.ending.clone();
    let task = reconcile(reconciler, drainer, inputs, timing, outputs, ending);
    vital.spawn("reconciliation", task);
}
