//! The one task that owns the catalog: events in, published tables out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use portolan_catalog::Kind;
use portolan_runtime::{BlockReady, ProblemLog};
use portolan_select::{Pipeline, SelectConfig};
use portolan_serve::{Debounce, Publisher, Registry as Sessions};
use portolan_source::Event;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use crate::metrics::CatalogMetrics;

/// What is wrong with the sources at present, for the debug dump.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Trouble {
    /// By object: what was left out of it.
    pub(crate) objects: Vec<String>,
    /// Of files: what could not be read.
    pub(crate) files: Vec<String>,
}

/// Shared with the debug dump.
pub(crate) type SharedTrouble = Arc<Mutex<Trouble>>;

/// Owns the catalog.
pub(crate) struct Writer {
    pub(crate) select: SelectConfig,
    pub(crate) publisher: Publisher,
    pub(crate) problems: ProblemLog,
    pub(crate) metrics: CatalogMetrics,
    pub(crate) trouble: SharedTrouble,
    pub(crate) sessions: Arc<Sessions>,
    /// Not ready until the source has synced.
    pub(crate) unready: Option<BlockReady>,
}

impl Writer {
    /// Works until the source ends.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        let mut pipeline = Pipeline::new(self.select);
        let mut debounce = Debounce::default();
        let mut due: Option<Instant> = None;
        loop {
            let flush = async {
                match due {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // What is due goes out, also while events keep coming.
                biased;
                () = flush => {
                    self.flush(&mut pipeline);
                    debounce.flushed(Instant::now());
                    due = None;
                }
                event = events.recv() => match event {
                    None => return,
                    Some(event) => {
                        self.take(&mut pipeline, event);
                        // Before the source has synced nobody reads what is published.
                        if pipeline.is_dirty() && self.unready.is_none() {
                            due = Some(debounce.changed(Instant::now()));
                        }
                    }
                },
            }
        }
    }

    fn take(&mut self, pipeline: &mut Pipeline, event: Event) {
        match event {
            Event::Changes(changes) => {
                changes
                    .into_iter()
                    .for_each(|change| pipeline.apply(change));
            }
            Event::FileProblems(problems) => {
                self.problems.update_files(&problems);
                self.trouble().files = self.problems.files();
            }
            Event::Synced => {
                self.flush(pipeline);
                self.publisher.set_synced();
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

    fn flush(&mut self, pipeline: &mut Pipeline) {
        let start = Instant::now();
        let delta = pipeline.flush();
        let problems = pipeline.problems();
        self.problems.update(&problems);
        self.metrics.observe(pipeline.catalog());
        self.trouble().objects = problems
            .iter()
            .flat_map(|(object, found)| found.iter().map(move |p| format!("{object}: {p}")))
            .collect();
        if delta.is_empty() {
            return;
        }
        for node in delta.nodes.keys() {
            match pipeline.catalog().node_info(node) {
                Some(_) => self.sessions.node_present(node),
                None => self.sessions.node_deleted(node),
            }
        }
        let revision = self.publisher.publish(&delta);
        self.metrics.published(revision, start.elapsed());
        tracing::debug!(
            revision,
            records = delta.records.len(),
            nodes = delta.lists.len(),
            "published"
        );
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
