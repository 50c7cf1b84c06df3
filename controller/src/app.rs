//! Wires source, writer, streams and admin server together.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use portolan_runtime::{Admin, ProblemLog, Readiness, listen, on_signal};
use portolan_serve::{Publisher, Registry as Sessions, Retention, ServeConfig, TablesServer};
use portolan_source::{Sink, file, kubernetes};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::args::{Args, Source};
use crate::debug::Debug;
use crate::metrics::{CatalogMetrics, SessionCollector, SourceCollector};
use crate::writer::{SharedTrouble, Writer};

/// How many events of the source may wait for the writer.
const EVENTS: usize = 64;
/// How long streams get to end when the controller stops.
const GRACE: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// If a port cannot be bound, or the source cannot be used at all.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let token = on_signal()?;
    let agents = listen(args.listen).await.context("--listen")?;
    let admin = listen(args.admin_listen).await.context("--admin-listen")?;
    if let Some(path) = &args.port_file {
        let ports = format!(
            "agents={} admin={}\n",
            agents.local_addr()?.port(),
            admin.local_addr()?.port()
        );
        std::fs::write(path, ports).with_context(|| path.display().to_string())?;
    }

    let readiness = Readiness::default();
    let (publisher, tables) = Publisher::new(Retention::default());
    let sessions = Arc::new(Sessions::default());
    let trouble = SharedTrouble::default();
    let problems = ProblemLog::default();
    let mut metrics = Registry::default();
    let registry = metrics.sub_registry_with_prefix("portolan_controller");
    problems.register(registry);
    let catalog_metrics = CatalogMetrics::register(registry);
    let collector = SessionCollector {
        sessions: Arc::clone(&sessions),
        tables: tables.clone(),
    };
    registry.register_collector(Box::new(collector));

    let tasks = TaskTracker::new();
    let (sink, events) = Sink::channel(EVENTS);
    let stats = watch_source(&args, sink, &tasks, &token);
    registry.register_collector(Box::new(SourceCollector { stats }));
    let writer = Writer {
        publisher,
        problems,
        metrics: catalog_metrics,
        trouble: Arc::clone(&trouble),
        unready: Some(readiness.block("source")),
    };
    tasks.spawn(writer.run(events));

    let cluster: Arc<str> = args.cluster.as_str().into();
    let debug = Debug {
        cluster: Arc::clone(&cluster),
        tables: tables.clone(),
        sessions: Arc::clone(&sessions),
        trouble,
    };
    let admin_server = Admin {
        metrics: Arc::new(metrics),
        readiness,
        debug: debug.routes(),
    };
    must_go_on(
        &tasks,
        &token,
        "admin server",
        admin_server.serve(admin, token.clone()),
    );

    let config = ServeConfig {
        clusters: vec![cluster],
        ..ServeConfig::default()
    };
    let service = TablesServer::new(tables, sessions, config, token.clone());
    must_go_on(
        &tasks,
        &token,
        "agent server",
        serve_agents(agents, service, token.clone()),
    );

    token.cancelled().await;
    tasks.close();
    if tokio::time::timeout(GRACE, tasks.wait()).await.is_err() {
        tracing::warn!("not everything ended in time");
    }
    Ok(())
}

/// Runs a server whose end means the end of the program.
fn must_go_on<E: std::fmt::Display>(
    tasks: &TaskTracker,
    token: &CancellationToken,
    what: &'static str,
    server: impl Future<Output = Result<(), E>> + Send + 'static,
) {
    let token = token.clone();
    tasks.spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "{what} failed");
        }
        token.cancel();
    });
}

async fn serve_agents(
    listener: TcpListener,
    service: TablesServer,
    token: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    // Without nodelay each Commit would wait for a delayed ACK.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .max_concurrent_streams(4)
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, async move { token.cancelled().await })
        .await
}

/// Starts the source; what it counts while it watches an API server.
fn watch_source(
    args: &Args,
    sink: Sink,
    tasks: &TaskTracker,
    token: &CancellationToken,
) -> Arc<kubernetes::Stats> {
    let stats = Arc::new(kubernetes::Stats::default());
    let cluster: Arc<str> = args.cluster.as_str().into();
    match args.source {
        Source::File => {
            let watch = file::watch(
                args.file.clone(),
                cluster,
                sink,
                args.file_poll(),
                token.clone(),
            );
            tasks.spawn(watch);
        }
        Source::Kubernetes => {
            let (kubeconfig, context) = (args.kubeconfig.clone(), args.context.clone());
            let (stats, token) = (Arc::clone(&stats), token.clone());
            tasks.spawn(async move {
                match kubernetes::client(kubeconfig.as_deref(), context.as_deref()).await {
                    Ok(client) => kubernetes::watch(client, cluster, sink, stats, token).await,
                    Err(error) => {
                        tracing::error!("{:#}", anyhow!(error));
                        token.cancel();
                    }
                }
            });
        }
    }
    stats
}
