//! The source `file`: objects in YAML and JSON files, read again whenever a file changes.
//!
//! Files are polled and not subscribed to: a projected volume changes by swapping a symlink, and
//! some mounts never notify. Write files elsewhere and rename them into place; what is written in
//! place may be read half-done. A file that was cut short is recognised where its YAML is broken,
//! and then nothing that it had before is deleted.

mod document;
mod files;
mod guard;
mod identify;
mod locate;
mod merge;
mod parse;
mod problem;
mod scan;
mod syntax;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::deletions::GuardConfig;
use crate::sink::Closed;
use crate::{Event, Holds, NameSink, Sink};

pub use files::{Files, Report};
pub use problem::FileProblem;

/// Reads files once.
///
/// A path is a file, or a directory of which all `*.yaml`, `*.yml` and `*.json` are read.
#[must_use]
pub fn read(paths: &[PathBuf], cluster: &Arc<str>) -> Report {
    Files::new(paths.to_vec(), Arc::clone(cluster)).refresh()
}

/// Reads files every `interval` until `token` is cancelled or nobody reads the sink.
///
/// [`Event::Synced`] follows the first time that every path could be read: before that, a mount
/// may be late, and what is missing is not gone.
pub async fn watch(
    paths: Vec<PathBuf>,
    cluster: Arc<str>,
    sink: Sink,
    interval: Duration,
    token: CancellationToken,
) {
    watch_names(paths, cluster, sink, None, None, interval, token).await;
}

/// As [`watch`], and tells DNS what it needs of the same files. Where there is a guard, files that
/// lose too much keep it until that is confirmed.
pub async fn watch_names(
    paths: Vec<PathBuf>,
    cluster: Arc<str>,
    sink: Sink,
    names: Option<NameSink>,
    guard: Option<(GuardConfig, Arc<Holds>)>,
    interval: Duration,
    token: CancellationToken,
) {
    let mut files = Files::new(paths, cluster);
    if names.is_some() {
        files = files.with_names();
    }
    if let Some((config, holds)) = guard {
        files = files.guarded(config, &holds);
    }
    // Ends early only with a sink's reader, whose end its owner knows best.
    let _ = token
        .run_until_cancelled(poll(files, sink, names, interval))
        .await;
}

async fn poll(
    mut files: Files,
    sink: Sink,
    name_sink: Option<NameSink>,
    interval: Duration,
) -> Result<(), Closed> {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut problems = Vec::new();
    let mut synced = false;
    loop {
        ticks.tick().await;
        let report;
        (files, report) = refresh(files).await;
        if !report.changes.is_empty() {
            info!(changes = report.changes.len(), "files changed");
        }
        let mut names = report.names;
        sink.send_changes(report.changes).await?;
        if report.problems != problems {
            problems.clone_from(&report.problems);
            sink.send(Event::FileProblems(report.problems)).await?;
        }
        if report.complete && !std::mem::replace(&mut synced, true) {
            sink.send(Event::Synced).await?;
            names.push(portolan_dns::Change::Synced);
        }
        if let Some(sink) = &name_sink {
            sink.send(names).await?;
        }
    }
}

/// Refreshes where blocking is allowed.
async fn refresh(mut files: Files) -> (Files, Report) {
    let refreshed = tokio::task::spawn_blocking(move || {
        let report = files.refresh();
        (files, report)
    });
    match refreshed.await {
        Ok(done) => done,
        // Never cancelled, so it panicked: a bug, not to be hidden.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
