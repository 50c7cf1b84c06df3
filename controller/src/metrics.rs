// SPDX-License-Identifier: Apache-2.0

//! The controller's metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use portolan_catalog::{Catalog, Kind};
use portolan_runtime::{Scrape, gauge_value};
use portolan_serve::{Counters, NodeStatus, RecordProblem, Registry as Sessions};
use portolan_source::kubernetes::{KindStats, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

const KINDS: [Kind; 6] = [
    Kind::Service,
    Kind::EndpointSlice,
    Kind::Node,
    Kind::Pod,
    Kind::Namespace,
    Kind::LoadBalancer,
];

/// Label of a kind of objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindLabel {
    kind: String,
}

impl KindLabel {
    pub(crate) fn new(kind: Kind) -> Self {
        let kind = kind.to_string();
        Self { kind }
    }
}

/// Label of a reason.
#[derive(Debug, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

impl ReasonLabel {
    fn new(reason: &'static str) -> Self {
        Self { reason }
    }
}

/// Metrics of the writer.
#[derive(Debug, Clone)]
pub(crate) struct CatalogMetrics {
    objects: Family<KindLabel, Gauge>,
    revision: Gauge,
    publish: Histogram,
    divergence: Counter,
}

impl CatalogMetrics {
    /// Adds the metrics to a registry.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let this = Self {
            objects: Family::default(),
            revision: Gauge::default(),
            publish: Histogram::new(exponential_buckets(0.000_1, 2.0, 16)),
            divergence: Counter::default(),
        };
        registry.register(
            "objects",
            "Objects in the catalog, by kind",
            this.objects.clone(),
        );
        registry.register(
            "revision",
            "Newest revision of the tables",
            this.revision.clone(),
        );
        registry.register_with_unit(
            "publish_duration",
            "Time from the first look at changed objects to the publication of the tables",
            Unit::Seconds,
            this.publish.clone(),
        );
        registry.register(
            "catalog_divergence",
            "Records and nodes whose published state differed from the catalog, repaired; must stay 0",
            this.divergence.clone(),
        );
        this
    }

    pub(crate) fn diverged(&self, count: usize) {
        self.divergence
            .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    pub(crate) fn observe(&self, catalog: &Catalog) {
        for kind in KINDS {
            let objects = self.objects.get_or_create(&KindLabel::new(kind));
            objects.set(gauge_value(catalog.count(kind)));
        }
    }

    pub(crate) fn published(&self, revision: u64, took: Duration) {
        self.revision.set(gauge_value(revision));
        self.publish.observe(took.as_secs_f64());
    }
}

/// Collects the counts of the watches when metrics are scraped.
#[derive(Debug)]
pub(crate) struct SourceCollector {
    pub(crate) stats: Arc<Stats>,
}

impl Collector for SourceCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut scrape = Scrape::new(encoder);
        for (name, help, read) in [
            (
                "source_listings",
                "Complete listings of a kind",
                KindStats::listings as fn(&_) -> u64,
            ),
            (
                "source_listings_streamed",
                "Listings that the server streamed",
                KindStats::streamed_listings,
            ),
            (
                "source_watch_errors",
                "Errors of watches, each followed by a retry",
                KindStats::watch_errors,
            ),
            (
                "source_malformed",
                "Objects that could not be parsed at all",
                KindStats::malformed,
            ),
        ] {
            let counts = KINDS.map(|kind| (KindLabel::new(kind), read(self.stats.of(kind))));
            scrape.counters(name, help, counts)?;
        }
        Ok(())
    }
}

/// Collects the state of sessions when metrics are scraped.
#[derive(Debug)]
pub(crate) struct SessionCollector {
    sessions: Arc<Sessions>,
}

impl SessionCollector {
    /// Adds the metrics to a registry.
    pub(crate) fn register(sessions: &Arc<Sessions>, registry: &mut Registry) {
        registry.register_with_unit(
            "convergence",
            "Time from the first event of a change until a share of the connected nodes has programmed it",
            Unit::Seconds,
            sessions.convergence(),
        );
        let sessions = Arc::clone(sessions);
        registry.register_collector(Box::new(Self { sessions }));
    }
}

/// Time after which an agent that is behind counts as `agents_behind_long`.
const LONG_BEHIND_MS: u64 = 5_000;

impl Collector for SessionCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut scrape = Scrape::new(encoder);
        let nodes = self.sessions.snapshot();
        let connected: Vec<_> = nodes.iter().filter(|node| node.connected).collect();
        encode_agents(&connected, &mut scrape)?;
        encode_refused_records(&connected, &mut scrape)?;
        encode_counters(&self.sessions.counters(), &mut scrape)?;
        let refusals = self.sessions.refusals().into_iter();
        scrape.counters(
            "sessions_refused",
            "Connections and streams refused before anything was sent, and streams whose token was \
             revoked, by reason",
            refusals.map(|(reason, count)| (ReasonLabel::new(reason.as_str()), count)),
        )
    }
}

fn encode_counters(counters: &Counters, scrape: &mut Scrape<'_>) -> Result<(), std::fmt::Error> {
    for (name, help, count) in [
        ("sessions", "Streams opened", counters.sessions),
        (
            "sessions_replaced",
            "Streams closed for a newer one of the same node",
            counters.replaced,
        ),
        (
            "protocol_violations",
            "Streams closed because the agent violated the protocol",
            counters.violations,
        ),
        (
            "sessions_resumed_equal",
            "Streams whose agent had the current table",
            counters.resumed_equal,
        ),
        (
            "sessions_resumed",
            "Streams whose agent was sent the changes since its cursor",
            counters.resumed,
        ),
        (
            "sessions_resumed_buckets",
            "Streams whose agent was sent the buckets of records that differed",
            counters.resumed_buckets,
        ),
        (
            "sessions_stalled",
            "Streams closed because the agent read nothing for too long",
            counters.stalled,
        ),
        ("snapshots_sent", "Whole tables sent", counters.snapshots),
        ("frames_sent", "Frames sent", counters.frames),
        (
            "items_sent",
            "Records, lists and deletions sent",
            counters.items,
        ),
    ] {
        scrape.counter(name, help, count)?;
    }
    Ok(())
}

/// Encodes the number of connected agents in each state.
fn encode_agents(
    connected: &[&NodeStatus],
    scrape: &mut Scrape<'_>,
) -> Result<(), std::fmt::Error> {
    let count = |is: fn(&NodeStatus) -> bool| connected.iter().filter(|node| is(node)).count();
    for (name, help, count) in [
        (
            "agents_connected",
            "Agents with an open stream",
            connected.len(),
        ),
        (
            "agents_behind",
            "Connected agents that have not programmed the newest revision",
            count(|node| node.behind_ms.is_some()),
        ),
        (
            "agents_behind_long",
            "Connected agents that have been behind for more than 5 seconds",
            count(|node| node.behind_ms.is_some_and(|ms| ms > LONG_BEHIND_MS)),
        ),
        (
            "agents_holding",
            "Connected agents that hold back a table because it deletes too much",
            count(|node| node.held.is_some()),
        ),
        (
            "agents_with_errors",
            "Connected agents whose kernel refused something",
            count(|node| node.errors_total > 0),
        ),
        (
            "agents_with_refusals",
            "Connected agents that refused a record",
            count(|node| node.refused_total > 0),
        ),
    ] {
        scrape.gauge(name, help, gauge_value(count))?;
    }
    Ok(())
}

/// Encodes the number of records that agents refuse, by reason.
fn encode_refused_records(
    connected: &[&NodeStatus],
    scrape: &mut Scrape<'_>,
) -> Result<(), std::fmt::Error> {
    let mut reasons = BTreeMap::from(RecordProblem::REASONS.map(|reason| (reason, 0_i64)));
    for problem in connected.iter().flat_map(|node| &node.refused) {
        *reasons.entry(problem.reason()).or_default() += 1;
    }
    let reasons = reasons.into_iter();
    scrape.gauges(
        "records_refused",
        "Records that connected agents refuse, by reason; at most 64 of each agent",
        reasons.map(|(reason, count)| (ReasonLabel::new(reason), count)),
    )
}
