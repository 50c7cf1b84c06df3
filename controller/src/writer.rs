// SPDX-License-Identifier: Apache-2.0

//! The task that owns the catalog: it applies events and publishes tables.

mod audit;
mod origin;
mod questions;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use portolan_catalog::Kind;
use portolan_runtime::BlockReady;
use portolan_select::{Pipeline, SelectConfig, TableDelta};
use portolan_serve::Registry as Sessions;
use portolan_source::{Event, ProblemLog};
use portolan_tablelog::{Debounce, Origin, Publisher, Update};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use crate::metrics::CatalogMetrics;
use audit::Auditor;
use origin::Origins;
pub(crate) use questions::Question;

/// CPU time to send a small batch to one stream over TLS and to read its answer (measured: 12 to 21
/// microseconds).
const PER_STREAM: Duration = Duration::from_micros(20);

/// Current problems of the sources, for the debug dump.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Trouble {
    /// Problems of objects.
    pub(crate) objects: Vec<String>,
    /// Problems of files.
    pub(crate) files: Vec<String>,
}

/// Problems, shared with the debug dump.
pub(crate) type SharedTrouble = Arc<Mutex<Trouble>>;

/// The owner of the catalog.
pub(crate) struct Writer {
    pub(crate) select: SelectConfig,
    pub(crate) publisher: Publisher,
    pub(crate) problems: ProblemLog,
    pub(crate) metrics: CatalogMetrics,
    pub(crate) trouble: SharedTrouble,
    pub(crate) sessions: Arc<Sessions>,
    /// Whether agents of nodes without a Node object are refused.
    pub(crate) refuses_unknown_nodes: bool,
    /// Name of the source's cluster.
    pub(crate) cluster: Arc<str>,
    /// Keeps the program from being ready until the source has synced.
    pub(crate) unready: Option<BlockReady>,
    /// Pause between two audits of all tables; `None` for no audits.
    pub(crate) audit_period: Option<Duration>,
    /// Number of cores for streams, at least 1.
    pub(crate) cores: u32,
}

impl Writer {
    /// Runs until the source ends.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        mut questions: mpsc::Receiver<Question>,
    ) {
        let mut pipeline = Pipeline::new(self.select);
        let mut debounce = Debounce::default();
        let mut origins = Origins::new(SystemTime::now());
        let mut auditor = Auditor::new(self.audit_period, Instant::now());
        let mut due: Option<Instant> = None;
        loop {
            let flush = async {
                match due {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // A batch that is due is published even while events keep arriving.
                biased;
                () = flush => {
                    self.flush(&mut pipeline, &mut origins);
                    debounce.flushed(Instant::now(), self.fan_out());
                    due = None;
                }
                event = events.recv() => match event {
                    None => return,
                    Some(event) => {
                        origins.observe(Instant::now());
                        self.apply(&mut pipeline, &mut origins, event);
                        // Nothing is published before the source has synced.
                        if self.unready.is_some() {
                            continue;
                        }
                        if pipeline.is_dirty() {
                            let urgent = pipeline.is_urgent();
                            due = Some(debounce.changed(Instant::now(), urgent));
                        } else if origins.is_news(&pipeline) {
                            // Only the versions of the source changed: no agent is sent anything.
                            self.flush(&mut pipeline, &mut origins);
                        } else {
                            origins.forget();
                        }
                    }
                },
                Some(question) = questions.recv() => {
                    question.put_to(self.unready.is_none().then_some(&pipeline));
                }
                () = auditor.due(), if self.unready.is_none() => {
                    let found = auditor.look(&mut pipeline);
                    self.repair(&pipeline, &found, &mut origins);
                }
            }
        }
    }

    fn apply(&mut self, pipeline: &mut Pipeline, origins: &mut Origins, event: Event) {
        match event {
            Event::Changes(changes) => {
                changes
                    .into_iter()
                    .for_each(|change| pipeline.apply(change));
            }
            // Only an agent alone asks for it.
            Event::Read(_) | Event::Director(_) => {}
            Event::FileProblems(problems) => {
                self.problems.update_files(&problems);
                self.trouble().files = self.problems.files();
            }
            Event::Synced => {
                self.flush(pipeline, origins);
                if self.refuses_unknown_nodes {
                    self.sessions.refuse_unknown_nodes(&self.cluster);
                }
                self.publisher.set_synced(&self.cluster);
                self.unready = None;
                let count = |kind| pipeline.catalog().count(kind);
                tracing::info!(
                    services = count(Kind::Service),
                    endpoint_slices = count(Kind::EndpointSlice),
                    nodes = count(Kind::Node),
                    "source synced, serving"
                );
            }
        }
    }

    fn flush(&mut self, pipeline: &mut Pipeline, origins: &mut Origins) {
        let start = Instant::now();
        let origin = origins.take_origin(pipeline, |_| self.unready.is_none());
        let delta = pipeline.flush();
        if let Some(problems) = pipeline.changed_problems() {
            self.problems.update(&problems);
            self.trouble().objects = problems
                .iter()
                .flat_map(|(object, found)| found.iter().map(move |p| format!("{object}: {p}")))
                .collect();
        }
        self.metrics.observe(pipeline.catalog());
        self.publish(pipeline, &delta, &origin, start);
    }

    fn publish(
        &mut self,
        pipeline: &Pipeline,
        delta: &TableDelta,
        origin: &Origin,
        start: Instant,
    ) {
        let nodes = delta.nodes.keys();
        let nodes = nodes.map(|node| (node.clone(), pipeline.catalog().node_info(node).is_some()));
        let origin = Origin {
            observed: origin.observed.or(Some(start)),
            ..origin.clone()
        };
        let update = Update::from(delta).with_nodes(nodes).from_origin(origin);
        let revision = self.publisher.publish(update).revision;
        if delta.is_empty() {
            return;
        }
        self.metrics.published(revision, start.elapsed());
        tracing::debug!(
            revision,
            records = delta.records.len(),
            nodes = delta.lists.len(),
            "published"
        );
    }

    /// Publishes the differences that an audit found.
    fn repair(&mut self, pipeline: &Pipeline, found: &TableDelta, origins: &mut Origins) {
        if found.is_empty() {
            return;
        }
        let lists = found.lists.values().flat_map(|lists| lists.keys());
        let records: BTreeSet<_> = found.records.keys().chain(lists).collect();
        for record in &records {
            tracing::error!(%record, "the table differed from the catalog; repaired");
        }
        for node in found.nodes.keys() {
            tracing::error!(%node, "the published node differed from the catalog; repaired");
        }
        self.metrics.diverged(records.len() + found.nodes.len());
        let origin = origins.repeat();
        self.publish(pipeline, found, &origin, Instant::now());
    }

    /// Time to send a small batch to all agents.
    fn fan_out(&self) -> Duration {
        let streams = u32::try_from(self.sessions.connected()).unwrap_or(u32::MAX);
        PER_STREAM.saturating_mul(streams) / self.cores
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
