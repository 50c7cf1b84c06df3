// SPDX-License-Identifier: Apache-2.0

//! State of clusters and imports in `--state-dir`.

mod decided;
mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use portolan_catalog::ObjectKey;
use portolan_federate::Moment;
use portolan_federate::imports::ImportName;
use portolan_federate::state::{Phase, Status};
use portolan_policy::Drain;
use portolan_runtime::{AtomicFile, Vital};
use portolan_select::{GatewayPorts, Kept, import_key, import_name};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub(crate) use decided::Decided;
use ports::SavedPort;

/// The file of states.
const CLUSTERS: &str = "clusters.yaml";
/// The file of virtual addresses.
const ALLOCATIONS: &str = "allocations.yaml";
/// The file of ports of gateways.
const GATEWAYS: &str = "gateways.yaml";
/// The file of drains that no policy has.
const DRAINS: &str = "drains.yaml";

/// Pause before a content that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Saved state: everything is empty at the first start, and without a directory.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    /// The statuses of clusters, by id.
    pub(crate) statuses: BTreeMap<Arc<str>, Status>,
    /// Imports, by their keys.
    pub(crate) imports: BTreeMap<ObjectKey, Kept>,
    /// Ports of exports at gateways, by the name of the cluster.
    pub(crate) ports: BTreeMap<Arc<str>, GatewayPorts>,
    /// Drains of an operator, by the name of the cluster.
    pub(crate) drains: BTreeMap<Arc<str>, Drain>,
}

impl Saved {
    /// Reads the files of a directory.
    ///
    /// # Errors
    /// If one is there and cannot be read: to go on would give imports other addresses.
    pub(crate) fn read(directory: &Path) -> anyhow::Result<Self> {
        let clusters: Vec<SavedCluster> = read(&directory.join(CLUSTERS))?;
        let imports: Vec<SavedImport> = read(&directory.join(ALLOCATIONS))?;
        let ports: Vec<SavedPort> = read(&directory.join(GATEWAYS))?;
        let drains: Vec<SavedDrain> = read(&directory.join(DRAINS))?;
        Ok(Self {
            statuses: clusters
                .into_iter()
                .map(SavedCluster::into_status)
                .collect(),
            imports: imports.into_iter().map(SavedImport::into_kept).collect(),
            ports: ports::by_cluster(ports),
            drains: drains.into_iter().map(SavedDrain::into_drain).collect(),
        })
    }
}

fn read<T: DeserializeOwned + Default>(path: &Path) -> anyhow::Result<T> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(T::default()),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let read = serde_saphyr::from_str_with_options(&text, yaml_options());
    read.with_context(|| path.display().to_string())
}

/// YAML without limits on size. This program writes the files itself, so their size is no attack, and it must read
/// whatever it has written.
fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_total_comment_bytes: usize::MAX,
        },
    }
}

/// The state of a cluster.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedCluster {
    id: Arc<str>,
    phase: String,
    step: u8,
    reach_step: u8,
    drain_step: u8,
    drained: bool,
    last_contact_seconds: Option<u64>,
    stale_for_milliseconds: u64,
    recent_losses_seconds: Vec<u64>,
    losses: u64,
}

const PHASES: [Phase; 7] = [
    Phase::Connecting,
    Phase::Ready,
    Phase::Stale,
    Phase::Lost,
    Phase::Returning,
    Phase::Draining,
    Phase::Drained,
];

impl SavedCluster {
    fn new(id: &Arc<str>, status: &Status) -> Self {
        let losses = status.recent_losses.iter();
        let stale = status.stale_for.as_millis();
        Self {
            id: Arc::clone(id),
            phase: status.phase.to_string(),
            step: status.step,
            reach_step: status.reach_step,
            drain_step: status.drain_step,
            drained: status.drained,
            last_contact_seconds: status.last_contact.map(|contact| contact.0.as_secs()),
            stale_for_milliseconds: u64::try_from(stale).unwrap_or(u64::MAX),
            recent_losses_seconds: losses.map(|loss| loss.0.as_secs()).collect(),
            losses: status.losses,
        }
    }

    fn into_status(self) -> (Arc<str>, Status) {
        let moment = |seconds| Moment(Duration::from_secs(seconds));
        let phase = PHASES
            .into_iter()
            .find(|phase| phase.as_str() == self.phase);
        let losses = self.recent_losses_seconds.into_iter();
        let status = Status {
            // A word of a later version says nothing about contact.
            phase: phase.unwrap_or(Phase::Connecting),
            step: self.step,
            reach_step: self.reach_step,
            drain_step: self.drain_step,
            drained: self.drained,
            last_contact: self.last_contact_seconds.map(moment),
            stale_for: Duration::from_millis(self.stale_for_milliseconds),
            recent_losses: losses.map(moment).collect(),
            losses: self.losses,
        };
        (self.id, status)
    }
}

/// The addresses of an import.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedImport {
    cluster: Arc<str>,
    namespace: Arc<str>,
    name: Arc<str>,
    ips: Vec<IpAddr>,
    winner: Option<Arc<str>>,
    clusters: Arc<BTreeSet<Arc<str>>>,
}

impl SavedImport {
    /// `None` for a key of no import.
    fn new(key: &ObjectKey, kept: &Kept) -> Option<Self> {
        let ImportName { namespace, name } = import_name(key)?;
        Some(Self {
            cluster: Arc::clone(&key.cluster),
            namespace,
            name,
            ips: kept.ips.clone(),
            winner: kept.winner.clone(),
            clusters: Arc::clone(&kept.clusters),
        })
    }

    fn into_kept(self) -> (ObjectKey, Kept) {
        let name = ImportName {
            namespace: self.namespace,
            name: self.name,
        };
        let kept = Kept {
            ips: self.ips,
            winner: self.winner,
            clusters: self.clusters,
        };
        (import_key(&self.cluster, &name), kept)
    }
}

/// A drain of an operator.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedDrain {
    cluster: Arc<str>,
    to: u8,
    over_seconds: u64,
}

impl SavedDrain {
    fn new(cluster: &Arc<str>, drain: &Drain) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            to: drain.to,
            over_seconds: drain.over.as_secs(),
        }
    }

    fn into_drain(self) -> (Arc<str>, Drain) {
        let drain = Drain {
            to: self.to.min(100),
            over: Duration::from_secs(self.over_seconds),
        };
        (self.cluster, drain)
    }
}

/// Writes the files, each whenever its content changes. Without a directory it does nothing.
#[derive(Debug, Default)]
pub(crate) struct Saver {
    files: BTreeMap<&'static str, watch::Sender<String>>,
}

impl Saver {
    /// Starts to write files of a directory.
    pub(crate) fn start(directory: &Path, vital: &Vital) -> Self {
        let start = |name| {
            let (sender, contents) = watch::channel(String::new());
            let path = directory.join(name);
            let ending = vital.ending.clone();
            vital.spawn("state of clusters", async move {
                follow(path, contents, ending).await;
            });
            (name, sender)
        };
        Self {
            files: [CLUSTERS, ALLOCATIONS, GATEWAYS, DRAINS].map(start).into(),
        }
    }

    pub(crate) fn statuses(&self, statuses: &BTreeMap<Arc<str>, Status>) {
        let all = statuses.iter();
        self.write(CLUSTERS, || {
            all.map(|(id, status)| SavedCluster::new(id, status))
                .collect::<Vec<_>>()
        });
    }

    pub(crate) fn imports(&self, imports: &BTreeMap<ObjectKey, Kept>) {
        let all = imports.iter();
        self.write(ALLOCATIONS, || {
            all.filter_map(|(key, kept)| SavedImport::new(key, kept))
                .collect::<Vec<_>>()
        });
    }

    pub(crate) fn gateways(&self, ports: &BTreeMap<Arc<str>, GatewayPorts>) {
        self.write(GATEWAYS, || ports::saved(ports));
    }

    pub(crate) fn drains(&self, drains: &BTreeMap<Arc<str>, Drain>) {
        let all = drains.iter();
        let all = all.map(|(cluster, drain)| SavedDrain::new(cluster, drain));
        self.write(DRAINS, || all.collect::<Vec<_>>());
    }

    fn write<T: Serialize>(&self, name: &str, content: impl FnOnce() -> T) {
        let Some(file) = self.files.get(name) else {
            return;
        };
        match serde_saphyr::to_string(&content()) {
            Ok(text) => {
                _ = file.send_if_modified(|last| {
                    let is_news = *last != text;
                    *last = text;
                    is_news
                })
            }
            Err(error) => tracing::error!(%error, name, "cannot spell the state of clusters"),
        }
    }
}

/// Writes each content to a file, the last one also when the program ends. A content that cannot be written, as on
/// a full disk, is tried again.
async fn follow(
    path: PathBuf,
    mut contents: watch::Receiver<String>,
    ending: tokio_util::sync::CancellationToken,
) {
    let mut is_written = true;
    loop {
        let is_ending = tokio::select! {
            changed = contents.changed() => changed.is_err(),
            () = tokio::time::sleep(RETRY), if !is_written => false,
            () = ending.cancelled() => true,
        };
        let is_news = !is_ending || !is_written || contents.has_changed().unwrap_or(true);
        let text = contents.borrow_and_update().clone();
        // Nothing is to be kept before the first content.
        if is_news && !text.is_empty() {
            let written = write(&path, text).await;
            if let Err(error) = &written
                && is_written
            {
                let path = path.display();
                tracing::error!(%error, %path, "state of clusters cannot be written; retrying");
            }
            is_written = written.is_ok();
        }
        if is_ending {
            // The writer may be gone before the program ends.
            ending.cancelled().await;
            return;
        }
    }
}

async fn write(path: &Path, text: String) -> anyhow::Result<()> {
    let path = path.to_owned();
    let write = move || {
        AtomicFile::new(&path)
            .creating_directory()
            .write(text.as_bytes())
    };
    Ok(tokio::task::spawn_blocking(write).await??)
}

#[cfg(test)]
mod tests;
