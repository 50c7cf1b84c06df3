// SPDX-License-Identifier: Apache-2.0

//! DNS on the node: answers CoreDNS from a copy of the controller's names, which is kept on disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use portolan_dns::replica::pb::names_client::NamesClient;
use portolan_dns::replica::pb::{Frame, WatchRequest};
use portolan_dns::replica::{Follower, digest, load, save};
use portolan_dns::{Bound, DnsServerArgs, Server, SharedZone, Subscription, Zone, ZoneConfig};
use portolan_proto::CLUSTER_ID;
use portolan_runtime::{AtomicFile, Vital};
use portolan_subscription::{
    Controllers, Departure, Dialer, End, Endpoints, Security, Stay, Target, ended_early,
};
use prometheus_client::registry::Registry;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Streaming};

use crate::subscribe::ClusterPin;

/// The file in the state directory.
const FILE: &str = "names";
/// The shortest time from one write of it to the next.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// The largest frame: a hundred Services of some thousand endpoints.
const MAX_FRAME: usize = 256 << 20;

/// The flags of DNS.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DnsArgs {
    #[command(flatten)]
    server: DnsServerArgs,
}

/// The source of the names.
#[derive(Debug)]
pub struct Origin {
    /// The controllers.
    pub endpoints: Endpoints,
    /// The identity of both sides.
    pub security: Security,
    /// The cluster that the node belongs to.
    pub pin: ClusterPin,
    /// Its name; empty for a controller of one cluster.
    pub cluster: String,
    /// The directory of the file with the names.
    pub state_dir: PathBuf,
}

impl DnsArgs {
    /// Checks combinations of flags.
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
        let zone = Arc::new(SharedZone::new(unknown()?));
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
        tracing::error!(%error, "DNS server ended");
    }
}

/// The zone until the names are known: nothing is answered from it.
fn unknown() -> anyhow::Result<Zone> {
    Ok(Zone::new(ZoneConfig::new("cluster.local")?, 0)?)
}

/// Deletes the names in a directory, if there are any.
///
/// # Errors
/// If they cannot be deleted.
pub(crate) fn forget(directory: &Path) -> io::Result<()> {
    match std::fs::remove_file(directory.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Reads the names of the last run, which are better than none.
fn read(zone: &Arc<SharedZone>, path: &Path) {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
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

/// Writes the names to disk when they change.
async fn write(zone: Arc<SharedZone>, mut subscription: Subscription, directory: PathBuf) {
    loop {
        let dirty = subscription.changed().await;
        if !zone.read().is_synced() {
            continue;
        }
        let (zone, directory) = (Arc::clone(&zone), directory.clone());
        let written = tokio::task::spawn_blocking(move || {
            let bytes = save(&zone);
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

/// The client of the controllers' names.
struct Names {
    zone: Arc<SharedZone>,
    dialer: Dialer,
    pin: ClusterPin,
    /// Number of times that the node's cluster was forgotten before these names.
    forgotten: u64,
    cluster: String,
    /// The directory of the file with the names.
    directory: PathBuf,
    /// The last failure, which is logged once.
    last_failure: String,
}

/// Follows one controller after the other.
async fn follow(zone: Arc<SharedZone>, origin: Origin) {
    let mut controllers = Controllers::new(origin.endpoints);
    let mut names = Names {
        zone,
        dialer: Dialer::new(origin.security),
        forgotten: origin.pin.forgotten(),
        pin: origin.pin,
        cluster: origin.cluster,
        directory: origin.state_dir,
        last_failure: String::new(),
    };
    loop {
        names.leave_cluster();
        let departure = controllers.departure();
        let end = match controllers.current().await {
            Some(target) => names.stream(&target, departure).await,
            // No name resolves.
            None => End::Unreachable,
        };
        let wait = controllers.after(end);
        tokio::select! {
            () = sleep(wait) => {}
            () = controllers.changed() => {}
        }
    }
}

impl Names {
    /// Drops the names of a cluster that the node was told to forget.
    fn leave_cluster(&mut self) {
        // This notices `forget`.
        let _ = self.pin.id();
        let forgotten = self.pin.forgotten();
        if std::mem::replace(&mut self.forgotten, forgotten) == forgotten {
            return;
        }
        tracing::info!("the names of the former cluster are dropped");
        match unknown() {
            Ok(zone) => self.zone.replace(zone),
            Err(error) => tracing::warn!(%error, "cannot drop the names of the former cluster"),
        }
        if let Err(error) = forget(&self.directory) {
            let directory = self.directory.display();
            tracing::warn!(%directory, %error, "cannot delete the names of the former cluster");
        }
    }

    /// Follows a controller until its stream ends.
    async fn stream(&mut self, target: &Target, departure: Departure) -> End {
        let (channel, authorization) = match self.dialer.connect(target).await {
            Ok(connection) => connection,
            Err(end) => return end,
        };
        let mut client = NamesClient::new(channel).max_decoding_message_size(MAX_FRAME);
        let mut request = Request::new(WatchRequest {
            digest: self.digest(),
            knows_clusterset: true,
            cluster: self.cluster.clone(),
        });
        if let Some(value) = authorization {
            request.metadata_mut().insert("authorization", value);
        }
        let id = self.pin.id();
        if !id.is_empty()
            && let Ok(id) = id.parse()
        {
            request.metadata_mut().insert(CLUSTER_ID, id);
        }
        let answer = match self.dialer.answer(target, client.watch(request)).await {
            Ok(answer) => answer,
            Err(end) => return end,
        };
        let id = answer.metadata().get(CLUSTER_ID);
        let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
        if let Err(error) = self.pin.check(id) {
            self.failed(target, error.to_string());
            return End::WrongCluster;
        }
        // This stream replaces the names, so that a `forget` that was noticed since the request needs nothing more.
        self.forgotten = self.pin.forgotten();
        let stay = Stay::new(departure, Instant::now());
        self.receive(target, answer.into_inner(), stay).await
    }

    async fn receive(&mut self, target: &Target, mut frames: Streaming<Frame>, stay: Stay) -> End {
        let mut follower = Follower::new(Arc::clone(&self.zone));
        let mut is_complete = false;
        loop {
            match frames.message().await {
                Ok(Some(frame)) => match follower.apply_frame(frame) {
                    Ok(is_last) if is_last && !is_complete => {
                        is_complete = true;
                        self.last_failure.clear();
                        tracing::info!(%target, "names are as the controller has them");
                    }
                    Ok(_) => {}
                    Err(error) => {
                        self.failed(target, error.to_string());
                        return End::Suspect;
                    }
                },
                Ok(None) if is_complete => return stay.broken(Instant::now()),
                Err(status) if is_complete => {
                    self.failed(target, status.to_string());
                    return stay.broken(Instant::now());
                }
                Ok(None) => {
                    self.failed(target, "the stream ended before the first names".to_owned());
                    return End::Refused;
                }
                Err(status) => {
                    self.failed(target, status.to_string());
                    return ended_early(&status);
                }
            }
        }
    }

    /// The digest of the names that are there already; empty without names.
    fn digest(&self) -> Vec<u8> {
        let zone = self.zone.read();
        match zone.is_synced() {
            true => digest(&zone).to_vec(),
            false => Vec::new(),
        }
    }

    fn failed(&mut self, target: &Target, reason: String) {
        if reason == self.last_failure {
            tracing::debug!(%target, reason, "DNS stream failed");
        } else {
            tracing::warn!(%target, reason, "DNS stream failed; retrying (logged once)");
            self.last_failure = reason;
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_dns::NamesChange;

    use super::*;
    use crate::args::ForgetArgs;
    use crate::{app, subscribe};

    /// A state directory with the names of a cluster.
    fn saved() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let zone = SharedZone::new(unknown().unwrap());
        zone.apply([NamesChange::Synced]);
        std::fs::write(directory.path().join(FILE), save(&zone)).unwrap();
        directory
    }

    /// The names of a directory.
    fn names_of(directory: &Path) -> Arc<SharedZone> {
        let zone = Arc::new(SharedZone::new(unknown().unwrap()));
        read(&zone, &directory.join(FILE));
        zone
    }

    #[test]
    fn the_names_of_a_forgotten_cluster_are_not_read() {
        let directory = saved();
        assert!(names_of(directory.path()).read().is_synced());
        let state_dir = directory.path().to_owned();
        let args = ForgetArgs { state_dir };
        app::forget(&args).unwrap();
        assert!(!names_of(directory.path()).read().is_synced());
        app::forget(&args).unwrap();
    }

    #[test]
    fn a_running_agent_drops_the_names_of_a_forgotten_cluster() {
        let directory = saved();
        let pin = ClusterPin::open(directory.path());
        pin.check("a").unwrap();
        let zone = names_of(directory.path());
        let mut names = Names {
            zone: Arc::clone(&zone),
            dialer: Dialer::new(Security::Plaintext),
            forgotten: pin.forgotten(),
            pin,
            cluster: String::new(),
            directory: directory.path().to_owned(),
            last_failure: String::new(),
        };
        names.leave_cluster();
        assert!(zone.read().is_synced());
        subscribe::forget(directory.path()).unwrap();
        names.leave_cluster();
        assert!(!zone.read().is_synced());
        assert!(!directory.path().join(FILE).exists());
    }
}
