// SPDX-License-Identifier: Apache-2.0

//! DNS: the task that keeps the zone up to date, servers and exports.

mod all;
mod args;
mod ask;
mod clusterset;
mod etcd;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use axum::Router;
use portolan_dns::replica::NamesService;
use portolan_dns::{Bound, NamesChange, Server, SharedZone, Zone, zone_file};
use portolan_source::NameSink;
use portolan_source::kubernetes::{self, NameOptions};
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::args::{Args, Source};
use portolan_runtime::Vital;

pub(crate) use all::AnyDns;
pub(crate) use args::DnsArgs;
pub(crate) use clusterset::ClusterNames;
use clusterset::ClusterSetDns;

/// Batches of the source that may wait.
const BATCHES: usize = 64;
/// The time for which answers go on once the controller stops: until then the endpoints of its Service may still name it.
const DRAIN: Duration = Duration::from_secs(5);
/// The pause after a failure to write a zone file.
const RETRY: Duration = Duration::from_secs(5);

/// DNS that is on; its zone may not be synced yet.
pub(crate) struct Dns {
    zone: Arc<SharedZone>,
    server: Server,
    bound: Vec<Bound>,
    /// `None` once the source has it: the names end with the source.
    names: Option<NameSink>,
    needs_pods: bool,
}

impl Dns {
    /// Binds, and starts everything but the source; `None` if there is no zone.
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
        if !dns.is_on() {
            return Ok(None);
        }
        let serial = now_as_serial();
        let zone = Zone::new(dns.zone_config()?, serial)?;
        let zone = Arc::new(SharedZone::new(zone));
        let server = dns.server.server(&zone, registry);
        let bound = dns.server.bind().await.context("--dns-bind-address")?;
        if let Some(directory) = dns.zone_dir() {
            make_directory(directory)?;
            let files = write_files(directory, dns.zone_interval(), &zone, serial);
            let stop = vital.ending.clone();
            vital.spawn("zone files", async move {
                let _ = stop.run_until_cancelled(files).await;
            });
        }
        let client = match args.source {
            Source::Kubernetes if dns.etcd.is_on() => {
                let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
                Some(kubernetes::client(kubeconfig, context).await?)
            }
            _ => None,
        };
        dns.etcd.start(&zone, client, vital)?;
        let (names, batches) = NameSink::channel(BATCHES);
        vital.spawn("names", follow(Arc::clone(&zone), batches));
        Ok(Some(Self {
            zone,
            server,
            bound,
            names: Some(names),
            needs_pods: dns.needs_pods(),
        }))
    }

    /// The sink of the source; `None` on later calls.
    pub(crate) fn names(&mut self) -> Option<NameOptions> {
        let sink = self.names.take()?;
        let pods = self.needs_pods;
        Some(NameOptions { sink, pods })
    }

    /// The service that streams the names to agents.
    pub(crate) fn replicas(&self, vital: &Vital) -> NamesService {
        let (service, following) = NamesService::new(Arc::clone(&self.zone));
        vital.spawn_endless("copies of names", following);
        service
    }

    /// The routes of the admin server.
    pub(crate) fn routes(&self) -> Router {
        ask::routes(Arc::clone(&self.zone))
    }

    /// Serves on the next bound address until [`DRAIN`] after the token; `None` after the last one.
    pub(crate) fn next_listener(
        &mut self,
        token: &CancellationToken,
    ) -> Option<impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static> {
        let bound = self.bound.pop()?;
        let server = self.server.clone();
        Some(bound.serve(server, drained(token.clone())))
    }
}

/// Completes when the listeners of a controller that stops are to end.
async fn drained(stopping: CancellationToken) {
    stopping.cancelled().await;
    tokio::time::sleep(DRAIN).await;
}

/// Applies the changes of the source, until it ends.
async fn follow(zone: Arc<SharedZone>, mut batches: mpsc::Receiver<Vec<NamesChange>>) {
    while let Some(changes) = batches.recv().await {
        let was_synced = zone.read().is_synced();
        for problem in zone.apply(changes).problems {
            tracing::warn!("{problem}");
        }
        let now = zone.read();
        if now.is_synced() && !was_synced {
            let (services, namespaces) = (now.services().len(), now.namespaces().len());
            tracing::info!(services, namespaces, "names synced, answering");
        }
    }
}

/// The time, in seconds since 1970, as a serial. Serials wrap around.
fn now_as_serial() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |now| {
        u32::try_from(now.as_secs() & 0xffff_ffff).unwrap_or(1)
    })
}

/// The task that keeps the files of a zone, in a directory that is made if it is not there.
fn write_files(
    directory: &Path,
    interval: Duration,
    zone: &Arc<SharedZone>,
    first_serial: u32,
) -> impl Future<Output = ()> + Send + 'static {
    let config = zone.read().config().clone();
    let zones = config.zones.iter().chain(&config.reverse);
    let files = zones.map(|zone| {
        let name = zone.to_ascii();
        let file = format!("db.{}", name.trim_end_matches('.'));
        (zone.clone(), directory.join(file))
    });
    let config = zone_file::ExportConfig {
        files: files.collect(),
        interval,
        retry: RETRY,
        first_serial,
    };
    let never = std::future::pending();
    zone_file::export(Arc::clone(zone), config, never)
}

/// Makes the directory of zone files, so that one that cannot be made is an error before anything is served.
fn make_directory(directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("--dns-zone-dir {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use tokio::time::Instant;

    use super::*;
    use crate::args::Cli;

    #[tokio::test(start_paused = true)]
    async fn answers_go_on_while_endpoints_may_still_name_the_controller() {
        let flags = "portolan-controller --source file --file a.yaml --dns-zone cluster.local \
            --dns-bind-address 127.0.0.1:0";
        let args = Cli::try_parse_from(flags.split_whitespace()).unwrap().run;
        let (vital, _failures) = Vital::new(CancellationToken::new());
        let started = Dns::start(&args, &mut Registry::default(), &vital).await;
        let mut dns = started.unwrap().unwrap();
        let stopping = CancellationToken::new();
        let serving = tokio::spawn(dns.next_listener(&stopping).unwrap());
        let begin = Instant::now();
        stopping.cancel();
        serving.await.unwrap().unwrap();
        assert_eq!(begin.elapsed().as_secs(), 5);
    }
}
