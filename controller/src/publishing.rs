// SPDX-License-Identifier: Apache-2.0

//! The half of the controller that publishes tables: the source with its writer, or a relay.

mod sources;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use portolan_auth::Issuers;
use portolan_runtime::{BlockReady, Liveness, Readiness, Vital};
use portolan_serve::{Registry as Sessions, ServedClusters};
use portolan_source::{ContactCollector, HeldDeletions, ProblemLog, kubernetes, watch_contact};
use portolan_tablelog::{Publisher, TableReader};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};

use crate::args::{Args, Source};
use crate::clusters::{ClusterSources, ClusterStates, Saved, Saver};
use crate::deletions::HoldCollector;
use crate::dns::ClusterNames;
use crate::edges::EdgeSeats;
use crate::mcs::Mcs;
use crate::metrics::{CatalogMetrics, SourceCollector};
use crate::relay;
use crate::writer::{Federated, Known, McsPlanner, Question, SharedTrouble, Writer};
pub(crate) use sources::answer_doubts;

/// Time without yielding after which the writer counts as stuck. The first table of a large cluster
/// takes seconds.
pub(crate) const WRITER_STUCK: Duration = Duration::from_secs(60);
/// Length of the queue of questions to the writer.
const QUESTIONS: usize = 8;

/// Parts that publish tables.
pub(crate) struct Publishing {
    pub(crate) publisher: Publisher,
    pub(crate) tables: TableReader,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) clusters: ServedClusters,
    /// Contacts with the sources of several clusters.
    pub(crate) sources: ClusterSources,
    /// Their states.
    pub(crate) states: ClusterStates,
    /// The clusters that edge controllers send.
    pub(crate) edges: EdgeSeats,
    /// Receiver of the issuers of their tokens, if those are accepted.
    pub(crate) cluster_issuers: Option<watch::Sender<Arc<Issuers>>>,
    pub(crate) problems: ProblemLog,
    pub(crate) metrics: CatalogMetrics,
    pub(crate) trouble: SharedTrouble,
    /// Not ready until there are tables.
    pub(crate) unready: BlockReady,
    pub(crate) liveness: Liveness,
    pub(crate) readiness: Readiness,
}

impl Publishing {
    /// Starts the source and the writer. Returns the queue of questions and the held deletions; a relay
    /// has neither.
    pub(crate) async fn start(
        mut self,
        args: &Args,
        (names, imports): (Option<kubernetes::NameOptions>, Option<ClusterNames>),
        registry: &mut Registry,
        vital: &Vital,
    ) -> anyhow::Result<Option<(mpsc::Sender<Question>, Arc<HeldDeletions>)>> {
        let cluster: Arc<str> = args.cluster.as_str().into();
        let identity = self.publisher.identity(&cluster);
        if let Some(id) = &args.cluster_id {
            // Set for the first time, so it cannot contradict.
            let _ = identity.set(Some(id));
        }
        if args.source == Source::Controller {
            let parts = relay::RelayParts {
                publisher: self.publisher,
                identity,
                tables: self.tables,
                sessions: self.sessions,
                metrics: self.metrics,
                unready: self.unready,
                liveness: self.liveness,
                readiness: self.readiness,
                cores: cores(),
            };
            relay::start(args, parts, registry, vital)?;
            return Ok(None);
        }
        let stats = Arc::new(kubernetes::Stats::default());
        let mcs = match args.source {
            Source::Clusters => Some(Mcs::start(args, registry, vital).await?),
            _ => None,
        };
        let planner = mcs.as_ref().map(Mcs::planner).unwrap_or_default();
        let plans = mcs.as_ref().map(Mcs::plans);
        let (inbox, centre) = self
            .start_source(args, names, mcs, &stats, registry, vital)
            .await?;
        let federated = federated(args, (&self.sources, &self.states), planner, imports, vital)?;
        let federated = match plans {
            Some(plans) => federated.with_plans(plans),
            None => federated,
        };
        let holds = Arc::clone(stats.holds());
        registry.register_collector(Box::new(HoldCollector(Arc::clone(&holds))));
        if args.source != Source::Clusters {
            let source = Arc::clone(&stats);
            let silence = move || source.silence();
            follow_contact(silence, args, self.readiness, registry, vital);
        }
        registry.register_collector(Box::new(SourceCollector { stats }));
        let writer = Writer {
            select: args.select(),
            clusters: self.clusters,
            publisher: self.publisher,
            problems: self.problems,
            metrics: self.metrics,
            trouble: self.trouble,
            sessions: self.sessions,
            refuses_unknown_nodes: args.refuses_unknown_nodes(),
            unready: Some(self.unready),
            audit_period: args.audit_period(),
            cores: cores(),
            known: Known::default(),
            federated,
            centre,
        };
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let work = writer.run(inbox, asked);
        let watched = async move { self.liveness.watch("writer", WRITER_STUCK, work).await };
        vital.spawn("writer", watched);
        Ok(Some((questions, holds)))
    }
}

/// Returns the writer's state of clusters from before, with the saver that keeps it.
fn federated(
    args: &Args,
    (sources, states): (&ClusterSources, &ClusterStates),
    planner: McsPlanner,
    imports: Option<ClusterNames>,
    vital: &Vital,
) -> anyhow::Result<Federated> {
    let (sources, states) = (Arc::clone(sources), states.clone());
    let directory = args.clusters.state_dir.as_ref();
    // An edge keeps plans there.
    let directory = directory.filter(|_| args.source == Source::Clusters);
    let Some(directory) = directory else {
        let (saved, saver) = Default::default();
        return Ok(Federated::new(
            sources, states, saved, saver, planner, imports,
        ));
    };
    let saved = Saved::read(directory).context("--state-dir")?;
    let saver = Saver::start(directory, vital);
    Ok(Federated::new(
        sources, states, saved, saver, planner, imports,
    ))
}

/// Exports the time of the last contact with the source, and keeps the controller unready while the
/// source is silent for longer than `--source-timeout`, if there is a limit.
pub(crate) fn follow_contact(
    silence: impl Fn() -> Option<Duration> + Clone + Send + Sync + 'static,
    args: &Args,
    readiness: Readiness,
    registry: &mut Registry,
    vital: &Vital,
) {
    registry.register_collector(Box::new(ContactCollector(silence.clone())));
    if let Some(limit) = args.source_timeout() {
        let contact = watch_contact(silence, limit, readiness);
        vital.spawn_endless("source contact", contact);
    }
}

fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    u32::try_from(cores).unwrap_or(1)
}
