// SPDX-License-Identifier: Apache-2.0

//! The task that owns the catalog: it applies events and publishes tables.

mod audit;
mod centre;
mod federation;
mod inbox;
mod names;
mod objects;
mod origin;
mod policy_log;
mod questions;
mod resent;
mod spans;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use portolan_catalog::Kind;
use portolan_runtime::BlockReady;
use portolan_select::{Pipeline, SelectConfig, TableDelta};
use portolan_serve::{Registry as Sessions, ServedClusters};
use portolan_source::{Event, ProblemLog};
use portolan_tablelog::{Debounce, Origin, Publisher, Update};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, sleep_until};

use crate::metrics::CatalogMetrics;
use audit::Auditor;
pub(crate) use centre::Centre;
use federation::TICK;
pub(crate) use federation::{DrainError, Federated};
use inbox::Input;
pub(crate) use inbox::{ClusterChange, Inbox};
pub(crate) use objects::McsPlanner;
use origin::Origins;
pub(crate) use questions::Question;
use resent::Resent;
use spans::Times;

/// CPU time to send a small batch to one stream over TLS and to read its answer (measured: 12 to 21
/// microseconds).
const PER_STREAM: Duration = Duration::from_micros(20);

/// Time between two plans of writes of MCS objects.
const PLAN: Duration = Duration::from_millis(250);
/// Number of times in a row that a plan is put off because changes wait to be published.
const MOST_PUT_OFF: u32 = 8;

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
    /// The clusters that are served. The writer adds and removes those that come and go.
    pub(crate) clusters: ServedClusters,
    /// Keeps the program from being ready until the source of some cluster has synced: none waits for
    /// another.
    pub(crate) unready: Option<BlockReady>,
    /// Pause between two audits of all tables; `None` for no audits.
    pub(crate) audit_period: Option<Duration>,
    /// Number of cores for streams, at least 1.
    pub(crate) cores: u32,
    /// State of the inputs, which the writer remembers.
    pub(crate) known: Known,
    /// Inputs of imports; of no effect for a single cluster.
    pub(crate) federated: Federated,
    /// Plans of a centre; present at an edge controller.
    pub(crate) centre: Option<Centre>,
}

/// State of the inputs, which the writer remembers.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The clusters whose source has sent all of its objects.
    synced: BTreeSet<Arc<str>>,
    /// All that is wrong with the files of each cluster, and not with one known object.
    file_problems: BTreeMap<Arc<str>, Vec<String>>,
    /// All that is wrong with the policy's files.
    policy_problems: Vec<String>,
    /// The clusters whose agents wait for the objects of another one.
    waiting: BTreeSet<Arc<str>>,
    /// Objects that the source of a cluster has sent since it was started again.
    restarted: BTreeMap<Arc<str>, Resent>,
    /// Number of times that the last plan of MCS objects was put off.
    put_off: u32,
}

impl Writer {
    /// Runs until the source ends.
    pub(crate) async fn run(mut self, mut inbox: Inbox, mut questions: mpsc::Receiver<Question>) {
        let mut pipeline = Pipeline::new(self.select);
        if self.federated.names().is_some() {
            pipeline.follow_names();
        }
        if let Some(centre) = &mut self.centre {
            centre.begin(&mut pipeline);
        }
        let mut debounce = Debounce::default();
        let mut origins = Origins::new(SystemTime::now());
        let mut auditor = Auditor::new(self.audit_period, Instant::now());
        let mut due: Option<Instant> = None;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut plans = tokio::time::interval(PLAN);
        plans.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                input = inbox.next() => {
                    let Some(input) = input else { return };
                    origins.observe(Instant::now());
                    if !self.take(&mut pipeline, &mut origins, input) {
                        continue;
                    }
                    if pipeline.is_dirty() {
                        let urgent = pipeline.is_urgent();
                        due = Some(debounce.changed(Instant::now(), urgent));
                    } else if origins.is_news(&pipeline) {
                        // Only the versions of a source changed: no agent is sent anything.
                        self.flush(&mut pipeline, &mut origins);
                    } else {
                        origins.forget();
                    }
                },
                Some(question) = questions.recv() => {
                    question.put_to(&mut self, &mut pipeline);
                    if pipeline.is_dirty() {
                        due = Some(debounce.changed(Instant::now(), pipeline.is_urgent()));
                    }
                }
                () = Centre::changed(&mut self.centre) => {
                    if self.take_plans(&mut pipeline, &mut origins) {
                        due = Some(debounce.changed(Instant::now(), pipeline.is_urgent()));
                    }
                }
                _ = ticks.tick(), if self.federated.is_on() || !self.known.waiting.is_empty() => {
                    self.federated.count_queues(inbox.queued());
                    self.federated.tick(&mut pipeline, &self.known.synced);
                    self.serve_waiting(&mut pipeline, &mut origins);
                    if let Some(names) = self.federated.names() {
                        self.complete_names(&names);
                    }
                    if pipeline.is_dirty() {
                        due = Some(debounce.changed(Instant::now(), pipeline.is_urgent()));
                    }
                }
                _ = plans.tick(), if self.federated.is_on() => {
                    if self.plan_objects(&mut pipeline, &mut origins) {
                        due = None;
                    }
                    self.tell_edges(&mut pipeline);
                }
                () = auditor.due(), if !self.known.synced.is_empty() => {
                    let found = auditor.look(&mut pipeline);
                    self.repair(&pipeline, &found, &mut origins);
                }
            }
        }
    }

    /// Takes plans of the centre. Returns whether anything waits to be published: nothing is before the source has synced.
    fn take_plans(&mut self, pipeline: &mut Pipeline, origins: &mut Origins) -> bool {
        if let Some(centre) = &mut self.centre {
            centre.pass(pipeline);
        }
        self.serve_waiting(pipeline, origins);
        pipeline.is_dirty() && !self.known.synced.is_empty()
    }

    /// Brings the plans of edges up to date.
    fn tell_edges(&mut self, pipeline: &mut Pipeline) {
        let Known {
            synced, waiting, ..
        } = &self.known;
        let is_served = |cluster: &Arc<str>| synced.contains(cluster) && !waiting.contains(cluster);
        self.federated.tell_edges(pipeline, is_served);
    }

    /// Plans the writes of MCS objects by the published tables. Returns whether it published them first, since
    /// changes would have waited for too long.
    fn plan_objects(&mut self, pipeline: &mut Pipeline, origins: &mut Origins) -> bool {
        if self.federated.has_other_problems() {
            self.report_files();
        }
        let is_dirty = pipeline.is_dirty();
        if is_dirty && self.known.put_off < MOST_PUT_OFF {
            self.known.put_off += 1;
            return false;
        }
        self.known.put_off = 0;
        if is_dirty {
            self.flush(pipeline, origins);
        }
        self.federated.plan_objects(pipeline, &self.known.synced);
        is_dirty
    }

    /// Takes one input. Returns whether its changes may be published: nothing is before the cluster's
    /// source has synced.
    fn take(&mut self, pipeline: &mut Pipeline, origins: &mut Origins, input: Input) -> bool {
        match input {
            Input::Event(cluster, event) => {
                self.apply(pipeline, origins, &cluster, event);
                self.known.synced.contains(&cluster)
            }
            Input::Joined(cluster) => {
                if self.clusters.get(&cluster).is_some() {
                    // The new source may have no files, and tells its own problems otherwise.
                    if self.known.file_problems.remove(&cluster).is_some() {
                        self.report_files();
                    }
                    self.known.restarted.insert(cluster, Resent::default());
                } else {
                    self.clusters.insert(cluster);
                }
                false
            }
            Input::Policies(objects, is_complete) => {
                self.federated
                    .take_policies(pipeline, *objects, is_complete);
                self.federated.tell(pipeline, &self.known.synced);
                self.report_files();
                true
            }
            Input::Left(cluster) => {
                self.leave(pipeline, &cluster);
                origins.forget_cluster(&cluster);
                true
            }
            Input::Problems(problems) => {
                self.federated.count_problems(problems.len());
                self.known.policy_problems = problems;
                self.report_files();
                false
            }
            Input::NoClusters => {
                self.unready = None;
                false
            }
        }
    }

    fn apply(
        &mut self,
        pipeline: &mut Pipeline,
        origins: &mut Origins,
        cluster: &Arc<str>,
        event: Event,
    ) {
        match event {
            Event::Changes(changes) => {
                self.federated.count_changes(cluster, changes.len());
                let resent = self.known.restarted.get_mut(cluster);
                resent.into_iter().for_each(|resent| resent.note(&changes));
                changes
                    .into_iter()
                    .for_each(|change| pipeline.apply(change));
            }
            // Only an agent alone asks for it.
            Event::Read(_) | Event::Director(_) | Event::Hooks(_) => {}
            Event::FileProblems(problems) => {
                let problems = problems.iter().map(ToString::to_string).collect();
                self.known
                    .file_problems
                    .insert(Arc::clone(cluster), problems);
                self.report_files();
            }
            Event::Synced => self.serve(pipeline, origins, cluster),
        }
    }

    /// Begins to serve a cluster, whose source has sent all of its objects.
    fn serve(&mut self, pipeline: &mut Pipeline, origins: &mut Origins, cluster: &Arc<str>) {
        if let Some(resent) = self.known.restarted.remove(cluster) {
            // What went away while nobody looked.
            let retained = resent.retained(cluster);
            retained.for_each(|change| pipeline.apply(change));
        }
        self.known.synced.insert(Arc::clone(cluster));
        self.known.waiting.insert(Arc::clone(cluster));
        self.federated.adopt(pipeline, cluster);
        // It is in contact now, not only at the next tick.
        self.federated.tick(pipeline, &self.known.synced);
        let other = self
            .federated
            .waits_for(pipeline, cluster, &self.known.synced);
        if let Some(other) = other {
            tracing::warn!(%cluster, other, "agents wait: they may need endpoints of another cluster, \
                whose source has not synced");
        }
        let centre = self.centre.as_ref();
        if centre.is_some_and(|centre| centre.is_awaited(pipeline)) {
            tracing::info!(%cluster, "agents wait for plans of imports from the centre");
        }
        self.serve_waiting(pipeline, origins);
    }

    /// Begins to serve those clusters that wait for no other one.
    fn serve_waiting(&mut self, pipeline: &mut Pipeline, origins: &mut Origins) {
        let centre = self.centre.as_ref();
        if centre.is_some_and(|centre| centre.is_awaited(pipeline)) {
            return;
        }
        for cluster in self.known.waiting.clone() {
            let synced = &self.known.synced;
            if self
                .federated
                .waits_for(pipeline, &cluster, synced)
                .is_some()
            {
                continue;
            }
            self.known.waiting.remove(&cluster);
            self.begin(pipeline, origins, &cluster);
        }
    }

    fn begin(&mut self, pipeline: &mut Pipeline, origins: &mut Origins, cluster: &Arc<str>) {
        self.flush(pipeline, origins);
        if self.refuses_unknown_nodes {
            self.sessions.refuse_unknown_nodes(cluster);
        }
        self.publisher.set_synced(cluster);
        self.unready = None;
        let count = |kind| pipeline.catalog().count_in(cluster, kind);
        tracing::info!(
            %cluster,
            services = count(Kind::Service),
            endpoint_slices = count(Kind::EndpointSlice),
            nodes = count(Kind::Node),
            "source synced, serving"
        );
    }

    /// Forgets a cluster. Its agents are refused first, so that no deletion reaches them.
    fn leave(&mut self, pipeline: &mut Pipeline, cluster: &Arc<str>) {
        self.clusters.remove(cluster);
        self.publisher.withhold(cluster);
        self.sessions.cluster_withdrawn(cluster);
        self.known.synced.remove(cluster);
        self.known.waiting.remove(cluster);
        self.known.restarted.remove(cluster);
        self.known.file_problems.remove(cluster);
        self.federated.forget_edge(cluster);
        self.federated.forget_changes(cluster);
        self.federated.tell(pipeline, &self.known.synced);
        if let Some(names) = self.federated.names() {
            names.left(cluster);
        }
        self.report_files();
        let nothing = Resent::default();
        let retained = nothing.retained(cluster);
        retained.for_each(|change| pipeline.apply(change));
        pipeline.forget_versions(cluster);
    }

    /// Reports all that is wrong with files.
    fn report_files(&mut self) {
        let of_clusters = self.known.file_problems.values().flatten();
        let all: Vec<_> = self
            .known
            .policy_problems
            .iter()
            .chain(self.federated.problems())
            .chain(of_clusters)
            .cloned()
            .collect();
        self.problems.update_files(&all);
        self.trouble().files = self.problems.files();
    }

    fn flush(&mut self, pipeline: &mut Pipeline, origins: &mut Origins) {
        let start = Instant::now();
        let origin = origins.take_origin(pipeline, |cluster| self.known.synced.contains(cluster));
        let mut is_news = self.federated.allocate(pipeline, &self.known.synced);
        is_news |= self.federated.find_node_ports(pipeline);
        if is_news {
            self.report_files();
        }
        self.federated.allocate_ports(pipeline, &self.known.synced);
        self.federated.planned(start.elapsed());
        let delta = pipeline.flush();
        self.federated.save(pipeline);
        self.tell_names(pipeline);
        if let Some(problems) = pipeline.changed_problems() {
            self.problems.update(&problems);
            self.trouble().objects = problems
                .iter()
                .flat_map(|(object, found)| found.iter().map(move |p| format!("{object}: {p}")))
                .collect();
        }
        self.metrics.observe(pipeline.catalog());
        self.publish(pipeline, &delta, &origin, start);
        self.tell_edges(pipeline);
    }

    fn publish(
        &mut self,
        pipeline: &Pipeline,
        delta: &TableDelta,
        origin: &Origin,
        start: Instant,
    ) {
        let computed = Instant::now();
        let nodes = delta.nodes.keys();
        let nodes = nodes.map(|node| (node.clone(), pipeline.catalog().node_info(node).is_some()));
        let origin = Origin {
            observed: origin.observed.or(Some(start)),
            ..origin.clone()
        };
        let update = Update::from(delta).with_nodes(nodes);
        let outcome = self.publisher.publish(update.from_origin(origin.clone()));
        let revision = outcome.revision;
        if delta.is_empty() {
            return;
        }
        let times = Times {
            started: start,
            computed,
        };
        spans::published(self.publisher.epoch(), &outcome, &origin, delta, times);
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

#[cfg(test)]
mod tests;
