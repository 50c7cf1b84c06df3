// SPDX-License-Identifier: Apache-2.0

//! Wiring of source, writer, streams and admin server.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use portolan_dns::replica::{FILE_DESCRIPTOR_SET as NAMES_DESCRIPTORS, NamesService};
use portolan_proto::FEDERATION_DESCRIPTORS;
use portolan_runtime::{
    Admin, Connections, DebugSocket, Liveness, Readiness, Vital, listen, on_signal,
    register_process, serve_http,
};
use portolan_serve::{
    NodeStreams, Registry as Sessions, ServeConfig, ServedClusters, TablesServer,
};
use portolan_source::ProblemLog;
use portolan_tablelog::{Publisher, Retention};
use portolan_telemetry::Program;
use portolan_tls::POLL;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::args::{Args, Source};
use crate::clusters::{ClusterSources, ClusterStates};
use crate::debug::Debug;
use crate::dns::AnyDns;
use crate::edges::{EdgeSeats, federation};
use crate::identity;
use crate::metrics::{CatalogMetrics, SessionCollector};
use crate::publishing::Publishing;
use crate::status::StatusPages;
use crate::writer::SharedTrouble;

/// Default path of the debug socket.
const DEBUG_SOCKET: &str = "/run/portolan/controller.sock";
/// Time that streams and DNS have to end when the controller stops. The ends of streams are spread over less.
const SERVERS_GRACE: Duration = Duration::from_secs(12);
/// Time that all other tasks have to end after that.
const GRACE: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT, with flags that were checked before.
///
/// # Errors
/// If a file cannot be used, a port cannot be bound, or the source cannot be opened.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let result = serve(args).await;
    stop_spans().await;
    result
}

/// Runs all tasks until a signal, or until one of them fails.
async fn serve(args: Args) -> anyhow::Result<()> {
    let token = on_signal()?;
    let listeners = Listeners::bind(&args).await?;

    let (readiness, liveness) = (Readiness::default(), Liveness::default());
    let sessions = Arc::new(Sessions::default());
    let (publisher, tables) = Publisher::new(Retention::default());
    let publisher = publisher.observed_by(sessions.clone());
    let (trouble, problems) = (SharedTrouble::default(), ProblemLog::default());
    let mut metrics = Registry::default();
    register_process(&mut metrics);
    let registry = metrics.sub_registry_with_prefix("portolan_controller");
    problems.register(registry);
    let catalog_metrics = CatalogMetrics::register(registry);
    SessionCollector::register(&sessions, registry);

    // Tasks that publish outlive the streams.
    let (vital, mut failures) = Vital::new(CancellationToken::new());
    start_spans(&args, &vital)?;
    let identity = identity::open(&args, registry, &readiness, &vital).await?;
    registry.register_collector(Box::new(identity.metrics));
    let mut dns = AnyDns::start(&args, registry, &vital).await?;
    let clusters = ServedClusters::new(args.cluster());
    let (sources, states) = (ClusterSources::default(), ClusterStates::default());
    let edges = EdgeSeats::default();
    let publishing = Publishing {
        publisher,
        tables: tables.clone(),
        sessions: Arc::clone(&sessions),
        clusters: clusters.clone(),
        sources: Arc::clone(&sources),
        states: states.clone(),
        edges: edges.clone(),
        cluster_issuers: identity.cluster_issuers,
        problems,
        metrics: catalog_metrics,
        trouble: Arc::clone(&trouble),
        unready: readiness.block("source"),
        liveness: liveness.clone(),
        readiness: readiness.clone(),
    };
    let names = (dns.names(), dns.imports());
    let asked = publishing.start(&args, names, registry, &vital).await?;
    let (questions, holds) = asked.unzip();

    let debug = Debug {
        cluster: args.cluster().unwrap_or_default(),
        clusters: clusters.clone(),
        sources,
        states,
        tables: tables.clone(),
        sessions: Arc::clone(&sessions),
        trouble,
        questions,
        holds,
    };
    let admin_server = Admin {
        metrics: Arc::new(metrics),
        readiness: readiness.clone(),
        liveness,
        actions: debug.actions(),
        debug: dns.add_routes(debug.dumps()),
        token: args.debug.token()?,
        pages: Some(StatusPages::start(debug, readiness.clone(), &vital)),
    };
    let mut servers = serve_dns(&mut dns, &vital, &token);
    serve_admin(admin_server, listeners.admin, listeners.debug, &vital);

    let beside = Beside {
        names: dns.replicas(&vital),
        edges: (args.source == Source::Clusters).then_some(edges),
    };
    let config = ServeConfig {
        clusters,
        authentication: identity.authentication,
        token_checks: args.identity.token_checks(),
        readiness: readiness.clone(),
        descriptors: beside.descriptors(),
        ..args.streams.config()
    };
    let service = beside.add_to(TablesServer::new(tables, sessions, config, token.clone()));
    let serving = service.serve(listeners.agents, identity.tls, identity.limits);
    servers.push(spawn_server(&vital, &token, "agent server", serving));
    until_end(servers, &token, &readiness, &mut failures, &vital).await
}

/// Waits for the token or the first failure, and then for the end of all tasks, not ready any more.
async fn until_end(
    servers: Vec<JoinHandle<()>>,
    token: &CancellationToken,
    readiness: &Readiness,
    failures: &mut mpsc::Receiver<anyhow::Error>,
    vital: &Vital,
) -> anyhow::Result<()> {
    let result = tokio::select! {
        () = token.cancelled() => Ok(()),
        Some(error) = failures.recv() => Err(error),
    };
    let _unready = readiness.block("stopping");
    token.cancel();
    end(servers, vital).await;
    result
}

/// The services on the port of agents, beside that of tables.
struct Beside {
    names: Option<NamesService>,
    /// The clusters that edge controllers send.
    edges: Option<EdgeSeats>,
}

impl Beside {
    /// Returns the protobuf descriptors of the services.
    fn descriptors(&self) -> Vec<&'static [u8]> {
        let names = self.names.iter().map(|_| NAMES_DESCRIPTORS);
        let edges = self.edges.iter().map(|_| FEDERATION_DESCRIPTORS);
        names.chain(edges).collect()
    }

    fn add_to(self, mut service: TablesServer) -> TablesServer {
        if let Some(names) = self.names {
            service = service.with_service(names, NodeStreams::One);
        }
        if let Some(edges) = self.edges {
            service = service.with_service(federation(edges), NodeStreams::Any);
        }
        service
    }
}

/// Sends the last spans.
async fn stop_spans() {
    if portolan_telemetry::spans().is_some() {
        // It does not panic, and is never aborted.
        let _ = tokio::task::spawn_blocking(portolan_telemetry::stop).await;
    }
}

/// Starts to export spans, if the flags say so.
fn start_spans(args: &Args, vital: &Vital) -> anyhow::Result<()> {
    let host = rustix::system::uname();
    let program = Program {
        name: "portolan-controller",
        version: env!("CARGO_PKG_VERSION"),
        instance: &host.nodename().to_string_lossy(),
    };
    if let Some(files) = portolan_telemetry::start(&args.otlp, program)? {
        let follow = files.follow(POLL, vital.ending.clone());
        vital.spawn("credentials for the collector", follow);
    }
    Ok(())
}

/// The listeners, bound before anything else starts.
struct Listeners {
    agents: TcpListener,
    admin: TcpListener,
    debug: Option<DebugSocket>,
}

impl Listeners {
    async fn bind(args: &Args) -> anyhow::Result<Self> {
        let agents = listen(args.listen).await.context("--listen")?;
        let admin = listen(args.admin_listen).await.context("--admin-listen")?;
        let debug = args.debug.bind(DEBUG_SOCKET)?;
        write_ports(args.port_file.as_deref(), &agents, &admin)?;
        Ok(Self {
            agents,
            admin,
            debug,
        })
    }
}

/// Serves probes, metrics and dumps until everything else has ended.
fn serve_admin(admin: Admin, port: TcpListener, socket: Option<DebugSocket>, vital: &Vital) {
    let (router, ending) = (admin.router(), &vital.ending);
    if let Some(socket) = socket {
        let debug = socket.serve(router.clone(), ending.clone());
        vital.spawn("debug server", debug);
    }
    let admin = serve_http(port, router, Connections::default(), ending.clone());
    vital.spawn("admin server", admin);
}

/// Waits for the servers, and then for everything else.
async fn end(servers: Vec<JoinHandle<()>>, vital: &Vital) {
    let served = async {
        for server in servers {
            // Its failure is reported already.
            let _ = server.await;
        }
    };
    if timeout(SERVERS_GRACE, served).await.is_err() {
        tracing::warn!("some streams or DNS answers did not end in time");
    }
    vital.ending.cancel();
    vital.tasks.close();
    if timeout(GRACE, vital.tasks.wait()).await.is_err() {
        tracing::warn!("some tasks did not end in time");
    }
}

/// Writes the bound ports to the port file, if there is one.
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

/// Runs a server until cancellation. If it ends earlier, also by a panic, the program fails.
fn spawn_server<E>(
    vital: &Vital,
    token: &CancellationToken,
    name: &'static str,
    server: impl Future<Output = Result<(), E>> + Send + 'static,
) -> JoinHandle<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let (failure, token) = (vital.failure.clone(), token.clone());
    // A separate task, so that its panic does not end this one.
    let server = tokio::spawn(server);
    vital.tasks.spawn(async move {
        let error = match server.await {
            Ok(Ok(())) if token.is_cancelled() => return,
            Ok(Ok(())) => anyhow!("{name}: has ended"),
            Ok(Err(error)) => anyhow::Error::new(error).context(name),
            Err(error) => anyhow::Error::new(error).context(name),
        };
        // The first failure ends the program; later ones are consequences.
        let _ = failure.try_send(error);
    })
}

/// Serves DNS on the addresses of the flags, until a while after cancellation.
fn serve_dns(dns: &mut AnyDns, vital: &Vital, token: &CancellationToken) -> Vec<JoinHandle<()>> {
    let servers = std::iter::from_fn(|| dns.next_listener(token));
    let servers = servers.map(|server| spawn_server(vital, token, "DNS server", server));
    servers.collect()
}
