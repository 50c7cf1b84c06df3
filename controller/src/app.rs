//! Wires source, writer, streams and admin server together.

use std::future::Future;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use portolan_runtime::{Admin, ProblemLog, Readiness, listen, on_signal};
use portolan_serve::{Publisher, Registry as Sessions, Retention, ServeConfig, TablesServer};
use portolan_source::{Sink, file, kubernetes};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::args::{Args, Source};
use crate::debug::Debug;
use crate::dns::Dns;
use crate::identity;
use crate::metrics::{CatalogMetrics, SessionCollector, SourceCollector};
use crate::writer::{SharedTrouble, Writer};

/// How many events of the source may wait for the writer.
const EVENTS: usize = 64;
/// How many questions may wait for the writer.
const QUESTIONS: usize = 8;
/// How long streams get to end when the controller stops.
const GRACE: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// If a port cannot be bound, or the source cannot be used at all.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    args.identity.validate(args.plaintext)?;
    let token = on_signal()?;
    let agents = listen(args.listen).await.context("--listen")?;
    let admin = listen(args.admin_listen).await.context("--admin-listen")?;
    write_ports(args.port_file.as_deref(), &agents, &admin)?;

    let readiness = Readiness::default();
    let (publisher, tables) = Publisher::new(Retention::default());
    let sessions = Arc::new(Sessions::default());
    let trouble = SharedTrouble::default();
    let problems = ProblemLog::default();
    let mut metrics = Registry::default();
    let registry = metrics.sub_registry_with_prefix("portolan_controller");
    problems.register(registry);
    let catalog_metrics = CatalogMetrics::register(registry);
    SessionCollector::register(&sessions, registry);

    let tasks = TaskTracker::new();
    let identity = identity::open(&args, &tasks, &token).await?;
    registry.register_collector(Box::new(identity.metrics));
    let (failure, mut failures) = mpsc::channel(1);
    let (sink, events) = Sink::channel(EVENTS);
    let mut dns = Dns::start(&args, registry, &tasks, &token).await?;
    let names = dns.as_ref().map(Dns::names);
    let stats = watch_source(&args, sink, names, &tasks, &token).await?;
    registry.register_collector(Box::new(SourceCollector { stats }));
    let writer = Writer {
        select: args.select(),
        publisher,
        tables: tables.clone(),
        problems,
        metrics: catalog_metrics,
        trouble: Arc::clone(&trouble),
        sessions: Arc::clone(&sessions),
        unready: Some(readiness.block("source")),
        audit_pause: args.audit_pause(),
        cores: cores(),
    };
    let (questions, asked) = mpsc::channel(QUESTIONS);
    tasks.spawn(writer.run(events, asked));

    let cluster: Arc<str> = args.cluster.as_str().into();
    let debug = Debug {
        cluster: Arc::clone(&cluster),
        tables: tables.clone(),
        sessions: Arc::clone(&sessions),
        trouble,
        questions,
    };
    let admin_server = Admin {
        metrics: Arc::new(metrics),
        readiness,
        debug: match &dns {
            Some(dns) => debug.routes().merge(dns.routes()),
            None => debug.routes(),
        },
    };
    while let Some(server) = dns.as_mut().and_then(|dns| dns.next_listener(&token)) {
        must_go_on(&tasks, &failure, "DNS server", server);
    }
    must_go_on(
        &tasks,
        &failure,
        "admin server",
        admin_server.serve(admin, token.clone()),
    );

    let names = dns.as_ref().map(Dns::replicas);
    let config = ServeConfig {
        clusters: vec![cluster],
        authentication: identity.authentication,
        ..ServeConfig::default()
    };
    let service = TablesServer::new(tables, sessions, config, token.clone());
    must_go_on(
        &tasks,
        &failure,
        "agent server",
        service.serve_with(agents, identity.tls, identity.limits, names),
    );

    let result = tokio::select! {
        () = token.cancelled() => Ok(()),
        Some(error) = failures.recv() => Err(error),
    };
    token.cancel();
    tasks.close();
    if tokio::time::timeout(GRACE, tasks.wait()).await.is_err() {
        tracing::warn!("not everything ended in time");
    }
    result
}

fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    u32::try_from(cores).unwrap_or(1)
}

/// Says which ports were bound, if somebody wants to know.
fn write_ports(
    path: Option<&Path>,
    agents: &TcpListener,
    admin: &TcpListener,
) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let (agents, admin) = (agents.local_addr()?.port(), admin.local_addr()?.port());
    let ports = format!("agents={agents} admin={admin}\n");
    std::fs::write(path, ports).with_context(|| path.display().to_string())
}

/// Runs a server whose failure ends the program.
fn must_go_on<E>(
    tasks: &TaskTracker,
    failure: &mpsc::Sender<anyhow::Error>,
    what: &'static str,
    server: impl Future<Output = Result<(), E>> + Send + 'static,
) where
    E: std::error::Error + Send + Sync + 'static,
{
    let failure = failure.clone();
    tasks.spawn(async move {
        if let Err(error) = server.await {
            // Nobody listens any more when the program is ending anyway.
            let _ = failure.send(anyhow::Error::new(error).context(what)).await;
        }
    });
}

/// Starts the source; what it counts while it watches an API server.
async fn watch_source(
    args: &Args,
    sink: Sink,
    names: Option<kubernetes::NameOptions>,
    tasks: &TaskTracker,
    token: &CancellationToken,
) -> anyhow::Result<Arc<kubernetes::Stats>> {
    let stats = Arc::new(kubernetes::Stats::default());
    let cluster: Arc<str> = args.cluster.as_str().into();
    let token = token.clone();
    match args.source {
        Source::File => {
            let (files, poll) = (args.file.clone(), args.file_poll());
            let names = names.map(|names| names.sink);
            let watch = file::watch_names(files, cluster, sink, names, poll, token);
            tasks.spawn(watch);
        }
        Source::Kubernetes => {
            let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
            let client = kubernetes::client(kubeconfig, context).await?;
            let options = kubernetes::Options {
                pods: args.pod_weights,
                ..kubernetes::Options::default()
            };
            let stats = Arc::clone(&stats);
            let watch =
                kubernetes::watch_names(client, cluster, options, sink, names, stats, token);
            tasks.spawn(watch);
        }
    }
    Ok(stats)
}
