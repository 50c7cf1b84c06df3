//! DNS on the node: answers CoreDNS from a copy of the controller's names, which survives on disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use portolan_dns::replica::pb::WatchRequest;
use portolan_dns::replica::pb::names_client::NamesClient;
use portolan_dns::replica::{Follower, digest, load, save};
use portolan_dns::{Bound, DnsServerArgs, Server, SharedZone, Subscription, Zone, ZoneConfig};
use portolan_proto::CLUSTER_ID;
use portolan_runtime::{AtomicFile, Vital};
use portolan_subscription::{Connector, Security, Target};
use prometheus_client::registry::Registry;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Request;
use tonic::transport::Uri;

use crate::subscribe::ClusterPin;

/// The file in the state directory.
const FILE: &str = "names";
/// The shortest time from one write of it to the next.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// The largest frame: a hundred Services of some thousand endpoints.
const MAX_FRAME: usize = 256 << 20;
/// How long a controller may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// The waits between attempts begin and end with these.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LAST_WAIT: Duration = Duration::from_secs(10);

/// The flags of DNS.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DnsArgs {
    #[command(flatten)]
    server: DnsServerArgs,
}

/// What the copy needs of the rest of the agent.
#[derive(Debug)]
pub struct Origin {
    /// The controllers, as `http://host:port`.
    pub endpoints: Vec<Uri>,
    /// How they are spoken to.
    pub security: Security,
    /// The cluster that the node belongs to.
    pub pin: ClusterPin,
    /// Where names survive.
    pub state_dir: PathBuf,
}

impl DnsArgs {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// If names are wanted, and there is no controller that they could come from.
    pub fn validate(&self, has_controller: bool) -> anyhow::Result<()> {
        ensure!(
            has_controller || !self.server.is_on(),
            "--dns-bind-address needs --source controller"
        );
        Ok(())
    }

    /// Serves names, if an address is given.
    ///
    /// # Errors
    /// If an address cannot be bound.
    pub async fn start(
        &self,
        origin: Origin,
        registry: &mut Registry,
        vital: &Vital,
    ) -> anyhow::Result<()> {
        if !self.server.is_on() {
            return Ok(());
        }
        // Only until the names are known: before that nothing is answered.
        let zone = Zone::new(ZoneConfig::new("cluster.local")?, 0)?;
        let zone = Arc::new(SharedZone::new(zone));
        let server = self.server.server(&zone, registry);
        read(&zone, &origin.state_dir.join(FILE));
        let all = self.server.bind().await.context("--dns-bind-address")?;
        for bound in all {
            let answer = answer(bound, server.clone(), vital.ending.clone());
            vital.spawn("DNS server", answer);
        }
        let subscription = zone.subscribe("file");
        let writing = write(Arc::clone(&zone), subscription, origin.state_dir.clone());
        vital.spawn_endless("names' file", writing);
        vital.spawn_endless("names", follow(zone, origin));
        Ok(())
    }
}

async fn answer(bound: Bound, server: Server, token: CancellationToken) {
    if let Err(error) = bound.serve(server, token.cancelled_owned()).await {
        tracing::error!(%error, "DNS is not served any more");
    }
}

/// The names as they were when we ended: better than none.
fn read(zone: &Arc<SharedZone>, path: &std::path::Path) {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read names");
            return;
        }
    };
    match load(zone, &bytes) {
        Ok(()) => tracing::info!(path = %path.display(), "answering from disk"),
        Err(error) => tracing::warn!(path = %path.display(), %error, "cannot use names"),
    }
}

/// Keeps the file up to date.
async fn write(zone: Arc<SharedZone>, mut subscription: Subscription, directory: PathBuf) {
    loop {
        let dirty = subscription.changed().await;
        if !zone.read().is_synced() {
            continue;
        }
        let (zone, directory) = (Arc::clone(&zone), directory.clone());
        let written = tokio::task::spawn_blocking(move || {
            let bytes = save(&zone.read());
            let path = directory.join(FILE);
            AtomicFile::new(&path).creating_directory().write(&bytes)
        });
        match written.await {
            Ok(Ok(())) => subscription.done(),
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot write names");
                subscription.put_back(&dirty);
            }
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
        sleep(WRITE_INTERVAL).await;
    }
}

/// Follows one controller after the other.
async fn follow(zone: Arc<SharedZone>, origin: Origin) {
    let mut connector = Connector::new(origin.endpoints, origin.security);
    let pin = origin.pin;
    let mut wait = FIRST_WAIT;
    let mut last = String::new();
    loop {
        for target in connector.targets().await {
            let ended = stream(&zone, &connector, &pin, &target).await;
            let reason = match ended {
                Ok(()) => {
                    wait = FIRST_WAIT;
                    "the stream ended".to_owned()
                }
                Err(reason) => reason,
            };
            if reason == last {
                tracing::debug!(%target, reason, "names do not come");
            } else {
                tracing::warn!(%target, reason, "names do not come; trying again (said once)");
                last = reason;
            }
        }
        sleep(wait).await;
        wait = (wait * 2).min(LAST_WAIT);
    }
}

/// Follows a controller until its stream ends: with an error, if it never said anything of use.
async fn stream(
    zone: &Arc<SharedZone>,
    connector: &Connector,
    pin: &ClusterPin,
    target: &Target,
) -> Result<(), String> {
    let (channel, authorization) = connector.connect(target).await?;
    let mut client = NamesClient::new(channel).max_decoding_message_size(MAX_FRAME);
    let known = {
        let zone = zone.read();
        zone.is_synced().then(|| digest(&zone).to_vec())
    };
    let mut request = Request::new(WatchRequest {
        digest: known.unwrap_or_default(),
    });
    if let Some(value) = authorization {
        request.metadata_mut().insert("authorization", value);
    }
    let id = pin.id();
    if !id.is_empty()
        && let Ok(id) = id.parse()
    {
        request.metadata_mut().insert(CLUSTER_ID, id);
    }
    let answered = timeout(ANSWER, client.watch(request)).await;
    let answered = answered.map_err(|_| "no answer in time".to_owned())?;
    let answered = answered.map_err(|status| status.to_string())?;
    let id = answered.metadata().get(CLUSTER_ID);
    let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
    pin.check(id).map_err(|error| error.to_string())?;
    let mut frames = answered.into_inner();
    let mut follower = Follower::new(Arc::clone(zone));
    let mut committed = false;
    loop {
        match frames.message().await {
            Ok(Some(frame)) => {
                let done = follower.take(frame).map_err(|error| error.to_string())?;
                if done && !std::mem::replace(&mut committed, true) {
                    tracing::info!(%target, "names are as the controller has them");
                }
            }
            Ok(None) | Err(_) if committed => return Ok(()),
            Ok(None) => return Err("the stream ended before it began".to_owned()),
            Err(status) => return Err(status.to_string()),
        }
    }
}
