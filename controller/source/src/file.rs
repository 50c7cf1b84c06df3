// SPDX-License-Identifier: Apache-2.0

//! The source `file`: objects in YAML and JSON files, read again whenever a file changes.
//!
//! Files are polled and not subscribed to: a projected volume changes by swapping a symlink, and
//! some mounts never notify. Files should be written elsewhere and renamed into place; a file that is
//! written in place may be read half-done. A truncated file is recognised where its YAML is broken,
//! and then none of its objects is deleted.

mod balancers;
mod counts;
mod document;
mod exports;
mod files;
mod guard;
mod identify;
mod locate;
mod merge;
mod nodes;
mod parse;
mod problem;
mod scan;
mod syntax;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::deletions::GuardConfig;
use crate::objects::ProxyName;
use crate::sink::Closed;
use crate::{Contact, Event, HeldDeletions, NameSink, Sink};

pub use balancers::HooksOf;
pub use counts::ReadCounts;
pub use files::{Files, Report};
pub use nodes::nodes;
pub use problem::FileProblem;
pub use scan::list;

/// Reads files once. A path is a file, or a directory of which all `*.yaml`, `*.yml` and `*.json` are read.
#[must_use]
pub fn read(paths: &[PathBuf], cluster: &Arc<str>) -> Report {
    Files::new(paths.to_vec(), cluster).refresh()
}

/// Returns `true` if the files have documents, all of them of load balancers and directors. A quick
/// look: it parses nothing, and says no in doubt.
#[must_use]
pub fn have_directors_alone(paths: &[PathBuf]) -> bool {
    let texts = || -> std::io::Result<Vec<String>> {
        let mut texts = Vec::new();
        for path in paths {
            for file in list(path)? {
                let is_file = std::fs::metadata(&file)?.is_file();
                texts.extend(
                    is_file
                        .then(|| std::fs::read_to_string(&file))
                        .transpose()?,
                );
            }
        }
        Ok(texts)
    };
    texts().is_ok_and(|texts| {
        let mut documents = texts
            .iter()
            .flat_map(|text| document::split(text))
            .peekable();
        documents.peek().is_some()
            && documents.all(|document| balancers::is_document(document.text))
    })
}

/// Reads one YAML document.
///
/// # Errors
/// Line and column, if known, and the description.
pub fn read_yaml(text: &str) -> Result<serde_json::Value, (Option<(u64, u64)>, String)> {
    syntax::yaml(text).map_err(|error| (error.position, error.message))
}

/// Line and column of the field with this path (`spec.ports[0].port`) in a YAML document; if it is
/// missing, of the innermost field around it that is there.
#[must_use]
pub fn find_field(text: &str, path: &str) -> Option<(u64, u64)> {
    syntax::Located::new(document::Document::whole(text)).find(path)
}

/// Options of [`watch`].
#[derive(Debug, Clone)]
pub struct Options {
    /// The time between two looks at the files.
    pub interval: Duration,
    /// The sink of DNS, if it is on.
    pub names: Option<NameSink>,
    /// The deletion guard's limits, and its report. Without it, every deletion is believed.
    pub guard: Option<(GuardConfig, Arc<HeldDeletions>)>,
    /// The record of successful reads: every path listed, every file read.
    pub contact: Arc<Contact>,
    /// The proxy whose Services are ours; `None` for the default one.
    pub proxy: Option<ProxyName>,
    /// Requests to read before the interval has passed.
    pub requests: ReadRequests,
    /// Counts of readings.
    pub counts: ReadCounts,
    /// Name of this host, whose `Director` is sent. Without one directors have no effect but for their defaults
    /// of checks.
    pub host: Option<Arc<str>>,
    /// Present if other clusters may import Services: then exports and namespaces are read. Whether
    /// Services may be exported without a ServiceExport.
    pub shares: Option<watch::Receiver<bool>>,
}

/// Requests to read files at once. Each is answered by [`Event::Read`] with its number or a later one.
#[derive(Debug, Clone, Default)]
pub struct ReadRequests(Arc<watch::Sender<u64>>);

impl ReadRequests {
    /// Requests a reading; returns the number of the request.
    #[must_use]
    pub fn ask(&self) -> u64 {
        let mut number = 0;
        self.0.send_modify(|last| {
            *last += 1;
            number = *last;
        });
        number
    }
}

impl Options {
    /// Options without DNS, guard, or reader of the contact.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            names: None,
            guard: None,
            contact: Arc::default(),
            proxy: None,
            requests: ReadRequests::default(),
            counts: ReadCounts::default(),
            host: None,
            shares: None,
        }
    }
}

/// Reads files periodically until `token` is cancelled or the sink's reader is gone.
///
/// The paths may change: others are read as soon as all of them can be listed, and only then are
/// objects that they lack deleted.
///
/// [`Event::Synced`] follows the first time that every path could be read: before that, a mount may
/// be late, and missing files are not deleted ones.
pub async fn watch(
    mut paths: watch::Receiver<Vec<PathBuf>>,
    cluster: Arc<str>,
    sink: Sink,
    options: Options,
    token: CancellationToken,
) {
    let first = paths.borrow_and_update().clone();
    let mut files = Files::new(first, &cluster).of_proxy(options.proxy.clone());
    if let Some(host) = &options.host {
        files = files.on_host(Arc::clone(host));
    }
    if options.shares.is_some() {
        files = files.sharing();
    }
    if options.names.is_some() {
        files = files.with_names();
    }
    if let Some((config, held)) = &options.guard {
        files = files.guarded(*config, held);
    }
    // Ends early only with the sink's reader, whose owner deals with its end.
    let _ = token
        .run_until_cancelled(poll(files, paths, sink, options))
        .await;
}

async fn poll(
    mut files: Files,
    mut paths: watch::Receiver<Vec<PathBuf>>,
    sink: Sink,
    options: Options,
) -> Result<(), Closed> {
    let mut ticks = tokio::time::interval(options.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut problems = Vec::new();
    let (mut synced, mut director, mut hooks) = (false, None, None);
    let (mut requests, mut answered) = (options.requests.0.subscribe(), 0);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            // The options hold the sender, so that it is never gone.
            _ = requests.changed() => {}
            // Without a sender the paths never change.
            Ok(()) = paths.changed() => files.set_paths(paths.borrow_and_update().clone()),
        }
        if let Some(automatic) = &options.shares {
            files.set_automatic(*automatic.borrow());
        }
        let number = *requests.borrow_and_update();
        let report;
        (files, report) = refresh(files).await;
        if report.is_readable {
            options.contact.note();
        }
        if !report.changes.is_empty() {
            info!(changes = report.changes.len(), "files changed");
        }
        let (new_director, new_hooks) = (
            news(&mut director, report.director),
            news(&mut hooks, report.hooks),
        );
        let are_other = !report.changes.is_empty() || report.problems != problems;
        let is_first = report.complete && !synced;
        let is_news = are_other || is_first || new_director.is_some() || new_hooks.is_some();
        let is_good = report.complete && report.problems.is_empty();
        options.counts.note(is_good, is_news || answered < number);
        let mut names = report.names;
        if let Some(director) = new_director {
            sink.send(Event::Director(director)).await?;
        }
        if let Some(hooks) = new_hooks {
            sink.send(Event::Hooks(hooks)).await?;
        }
        sink.send_changes(report.changes).await?;
        if report.problems != problems {
            problems.clone_from(&report.problems);
            sink.send(Event::FileProblems(report.problems)).await?;
        }
        if report.complete && !std::mem::replace(&mut synced, true) {
            sink.send(Event::Synced).await?;
            names.push(portolan_dns::NamesChange::Synced);
        }
        if std::mem::replace(&mut answered, number) < number {
            sink.send(Event::Read(number)).await?;
        }
        if let Some(sink) = &options.names {
            sink.send(names).await?;
        }
    }
}

/// The newest value if it differs from the last one, which it replaces.
fn news<T: Clone + PartialEq>(last: &mut Option<T>, newest: Option<T>) -> Option<T> {
    if *last == newest {
        return None;
    }
    last.clone_from(&newest);
    newest
}

/// Refreshes on a thread that may block.
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
