//! Wires the table's source, the reconcile loop and the admin server together.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use portolan_dataplane::{Dataplane as _, Kernel};
use portolan_model::NodeKey;
use portolan_runtime::{Admin, CredentialCollector, ProblemLog, Readiness, listen, on_signal};
use portolan_source::{Sink, file};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Uri;

use crate::args::{RunArgs, Source};
use crate::metrics::{ReconcileMetrics, SubscribeCollector};
use crate::reconcile::{Outlets, Reconciler, Timing, run as reconcile};
use crate::standalone::Standalone;
use crate::status::Status;
use crate::subscribe::{self, Report, Stats, SubscribeConfig, Subscribed};

/// How long tasks get to end when the agent stops.
const GRACE: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT. The kernel keeps what was programmed.
///
/// # Errors
/// If a flag cannot be used, a port cannot be bound, or the kernel lacks what is needed.
pub async fn run(args: RunArgs) -> anyhow::Result<()> {
    args.validate()?;
    let node = NodeKey {
        cluster: args.cluster.as_str().into(),
        name: args.node_name()?.into(),
    };
    let plan_config = args.kernel.plan_config()?;
    let kernel_config = args.kernel.kernel_config()?;
    let token = on_signal()?;
    let admin = listen(args.admin_listen).await.context("--admin-listen")?;
    if let Some(path) = &args.port_file {
        let port = format!("admin={}\n", admin.local_addr()?.port());
        std::fs::write(path, port).with_context(|| path.display().to_string())?;
    }
    let mut kernel = Kernel::open(kernel_config)
        .await
        .context("this kernel cannot be used")?;
    kernel.prepare().await?;
    tracing::info!(%node, "started");

    let readiness = Readiness::default();
    let mut metrics = Registry::default();
    let (tables_out, tables) = watch::channel::<Option<Arc<Subscribed>>>(None);
    let (reports_out, reports) = watch::channel::<Option<Report>>(None);
    let status = Status::default();
    let outlets = Outlets {
        reports: reports_out,
        metrics: ReconcileMetrics::register(&mut metrics),
        status: status.clone(),
        unready: Some(readiness.block("first table")),
    };
    let tasks = TaskTracker::new();
    let timing = Timing {
        sync_period: args.sync_period(),
        ..Timing::default()
    };
    let reconciler = Reconciler::new(kernel, plan_config);
    tasks.spawn(reconcile(
        reconciler,
        tables,
        timing,
        outlets,
        token.clone(),
    ));
    let registry = metrics.sub_registry_with_prefix("portolan_agent");
    follow(
        &args,
        node,
        Feeds {
            tables_out,
            reports,
        },
        registry,
        &tasks,
        &token,
    )?;

    let admin_server = Admin {
        metrics: Arc::new(metrics),
        readiness,
        debug: status.routes(),
    };
    let serving = token.clone();
    let mut admin_task = tokio::spawn(async move { admin_server.serve(admin, serving).await });
    let result = tokio::select! {
        () = token.cancelled() => Ok(()),
        ended = &mut admin_task => ended.map_err(anyhow::Error::from).and_then(|served| {
            served.context("admin server")
        }),
    };
    token.cancel();
    tasks.close();
    if tokio::time::timeout(GRACE, tasks.wait()).await.is_err() {
        tracing::warn!("not everything ended in time");
    }
    result
}

/// The ends of the channels between the table's source and the reconcile loop.
struct Feeds {
    tables_out: watch::Sender<Option<Arc<Subscribed>>>,
    reports: watch::Receiver<Option<Report>>,
}

/// Starts what brings the table.
fn follow(
    args: &RunArgs,
    node: NodeKey,
    feeds: Feeds,
    registry: &mut Registry,
    tasks: &TaskTracker,
    token: &CancellationToken,
) -> anyhow::Result<()> {
    match args.source {
        Source::File => {
            let problems = ProblemLog::default();
            problems.register(registry);
            let (sink, events) = Sink::channel(64);
            let cluster = Arc::clone(&node.cluster);
            let watch = file::watch(
                args.file.clone(),
                cluster,
                sink,
                args.file_poll(),
                token.clone(),
            );
            tasks.spawn(watch);
            let standalone = Standalone {
                node,
                problems,
                tables: feeds.tables_out,
            };
            tasks.spawn(standalone.run(events));
        }
        Source::Controller => {
            let stats = Arc::new(Stats::default());
            registry.register_collector(Box::new(SubscribeCollector(Arc::clone(&stats))));
            let (security, files) = args.identity.open(args.plaintext)?;
            if let Some(files) = files {
                registry.register_collector(Box::new(CredentialCollector(vec![files.health()])));
                tasks.spawn(files.follow(portolan_tls::POLL, token.clone()));
            }
            let config = SubscribeConfig {
                endpoints: endpoints(&args.controller)?,
                security,
                cluster: node.cluster.to_string(),
                node: node.name.to_string(),
                agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            };
            let Feeds {
                tables_out,
                reports,
            } = feeds;
            tasks.spawn(subscribe::run(
                config,
                tables_out,
                reports,
                stats,
                token.clone(),
            ));
        }
    }
    Ok(())
}

/// The controllers' addresses, as host:port, as what tonic dials.
fn endpoints(controllers: &[String]) -> anyhow::Result<Vec<Uri>> {
    let parse = |address: &String| {
        let uri: Uri = format!("http://{address}")
            .parse()
            .with_context(|| format!("--controller {address:?}: expected host:port"))?;
        let plain = uri.port_u16().is_some() && uri.path() == "/" && uri.query().is_none();
        anyhow::ensure!(plain, "--controller {address:?}: expected host:port");
        Ok(uri)
    };
    controllers.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controllers_address_has_a_host_and_a_port() {
        for good in [
            "10.0.0.1:9443",
            "[fd00::1]:9443",
            "portolan.kube-system.svc:9443",
        ] {
            assert!(endpoints(&[good.to_owned()]).is_ok(), "{good}");
        }
        for bad in [
            "",
            "10.0.0.1",
            "http://10.0.0.1:9443",
            "10.0.0.1:9443/x",
            "a b:1",
        ] {
            let error = endpoints(&[bad.to_owned()]).unwrap_err().to_string();
            assert!(error.contains("--controller"), "{bad}: {error}");
        }
    }
}
