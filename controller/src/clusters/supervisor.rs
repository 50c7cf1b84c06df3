// SPDX-License-Identifier: Apache-2.0

//! Runs a source for each Cluster of the policy.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portolan_policy::{Access, Cluster};
use portolan_source::deletions::GuardConfig;
use portolan_source::{Contact, HeldDeletions, Sink, file};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::policy::PolicyFiles;
use crate::writer::ClusterChange;

/// Length of the queue of one cluster's events.
const EVENTS: usize = 8;

/// The sources that run, shared with metrics.
pub(crate) type ClusterSources = Arc<Mutex<BTreeMap<Arc<str>, Arc<Contact>>>>;

/// Starts and stops sources as the policy says.
#[derive(Debug)]
pub(crate) struct Supervisor {
    files: PolicyFiles,
    interval: Duration,
    guard: (GuardConfig, Arc<HeldDeletions>),
    changes: mpsc::Sender<ClusterChange>,
    running: BTreeMap<Arc<str>, Running>,
    tasks: JoinSet<()>,
    sources: ClusterSources,
    problems: Vec<String>,
}

/// The source of one cluster. It stops when this is dropped.
#[derive(Debug)]
struct Running {
    paths: watch::Sender<Vec<PathBuf>>,
    _stop: DropGuard,
}

/// The writer is gone.
struct WriterGone;

impl<T> From<mpsc::error::SendError<T>> for WriterGone {
    fn from(_: mpsc::error::SendError<T>) -> Self {
        Self
    }
}

impl Supervisor {
    /// A supervisor that looks at the policy's files at an interval, and guards the deletions of each
    /// cluster by itself. It keeps the contacts of its sources in `sources`.
    pub(crate) fn new(
        policy: Vec<PathBuf>,
        interval: Duration,
        guard: (GuardConfig, Arc<HeldDeletions>),
        changes: mpsc::Sender<ClusterChange>,
        sources: ClusterSources,
    ) -> Self {
        Self {
            files: PolicyFiles::new(policy),
            interval,
            guard,
            changes,
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
            sources,
            problems: Vec::new(),
        }
    }

    /// Runs until the token is cancelled, or the writer is gone.
    pub(crate) async fn run(mut self, token: CancellationToken) {
        let _ = token.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&mut self) -> Result<(), WriterGone> {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    if self.refresh().await {
                        self.change().await?;
                    }
                }
                Some(Err(error)) = self.tasks.join_next() => {
                    // A bug, not to be hidden.
                    if let Ok(panic) = error.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
    }

    /// Reads the policy on a thread that may block; returns whether it changed.
    async fn refresh(&mut self) -> bool {
        let mut files = std::mem::replace(&mut self.files, PolicyFiles::new(Vec::new()));
        let refreshed = tokio::task::spawn_blocking(move || {
            let is_news = files.refresh();
            (files, is_news)
        });
        match refreshed.await {
            Ok((files, is_news)) => {
                self.files = files;
                is_news
            }
            // Never cancelled, so it panicked: a bug, not to be hidden.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Makes the sources those that the policy asks for.
    async fn change(&mut self) -> Result<(), WriterGone> {
        let clusters: Vec<_> = self.files.objects().clusters.values().cloned().collect();
        let mut problems = self.files.problems().to_vec();
        for name in self.left(&clusters) {
            self.running.remove(&name);
            self.lock().remove(&name);
            tracing::info!(cluster = %name, "cluster left; its agents keep the last table");
            self.changes.send(ClusterChange::Left(name)).await?;
        }
        for cluster in &clusters {
            match &cluster.access {
                Access::Files(paths) => {
                    let paths = paths.iter().map(PathBuf::from).collect();
                    self.read(&cluster.meta.name, paths).await?;
                }
                other => problems.push(unsupported(cluster, other)),
            }
        }
        if problems != self.problems {
            self.problems.clone_from(&problems);
            self.changes.send(ClusterChange::Problems(problems)).await?;
        }
        if clusters.is_empty() && self.files.is_complete() {
            self.changes.send(ClusterChange::None).await?;
        }
        Ok(())
    }

    /// The clusters that run and have no Cluster any more.
    fn left(&self, clusters: &[Cluster]) -> Vec<Arc<str>> {
        let is_there = |name: &str| clusters.iter().any(|cluster| cluster.meta.name == name);
        let running = self.running.keys();
        running.filter(|name| !is_there(name)).cloned().collect()
    }

    /// Reads a cluster's objects from these paths.
    async fn read(&mut self, name: &str, paths: Vec<PathBuf>) -> Result<(), WriterGone> {
        if let Some(running) = self.running.get(name) {
            running.paths.send_if_modified(|now| {
                let is_new = *now != paths;
                *now = paths;
                is_new
            });
            return Ok(());
        }
        let cluster: Arc<str> = name.into();
        let (sink, events) = Sink::channel(EVENTS);
        let (sender, paths) = watch::channel(paths);
        let options = file::Options {
            guard: Some(self.guard.clone()),
            ..file::Options::new(self.interval)
        };
        self.lock()
            .insert(Arc::clone(&cluster), Arc::clone(&options.contact));
        let token = CancellationToken::new();
        let watch = file::watch(paths, Arc::clone(&cluster), sink, options, token.clone());
        self.tasks.spawn(watch);
        let running = Running {
            paths: sender,
            _stop: token.drop_guard(),
        };
        self.running.insert(Arc::clone(&cluster), running);
        tracing::info!(%cluster, "cluster joined");
        let joined = ClusterChange::Joined { cluster, events };
        Ok(self.changes.send(joined).await?)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Arc<str>, Arc<Contact>>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unsupported(cluster: &Cluster, access: &Access) -> String {
    let field = match access {
        Access::KubeconfigSecret { .. } => "kubeconfigSecret",
        Access::KubeconfigFile(_) => "kubeconfigFile",
        Access::Edge => "edge",
        Access::Local => "local",
        Access::Files(_) => "files",
    };
    format!(
        "Cluster {}: spec.access.{field}: this version reads clusters from files only",
        cluster.meta.name
    )
}

#[cfg(test)]
mod tests;
