//! The controller's metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use portolan_catalog::{Catalog, Kind};
use portolan_serve::{NodeStatus, RecordProblem, Registry as Sessions};
use portolan_source::kubernetes::{KindStats, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

const KINDS: [(Kind, &str); 5] = [
    (Kind::Service, "Service"),
    (Kind::EndpointSlice, "EndpointSlice"),
    (Kind::Node, "Node"),
    (Kind::Pod, "Pod"),
    (Kind::Namespace, "Namespace"),
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// What the writer counts.
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
            "The newest revision of the tables",
            this.revision.clone(),
        );
        registry.register_with_unit(
            "publish_duration",
            "From the first look at changed objects until the tables were published",
            Unit::Seconds,
            this.publish.clone(),
        );
        registry.register(
            "catalog_divergence",
            "Records and nodes whose tables were not what the catalog says, repaired; must stay 0",
            this.divergence.clone(),
        );
        this
    }

    pub(crate) fn diverged(&self, count: usize) {
        self.divergence
            .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    pub(crate) fn observe(&self, catalog: &Catalog) {
        for (kind, label) in KINDS {
            let count = gauge(catalog.count(kind));
            self.objects
                .get_or_create(&KindLabel { kind: label })
                .set(count);
        }
    }

    pub(crate) fn published(&self, revision: u64, took: Duration) {
        self.revision
            .set(i64::try_from(revision).unwrap_or(i64::MAX));
        self.publish.observe(took.as_secs_f64());
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Reads what the watches counted when metrics are scraped.
#[derive(Debug)]
pub(crate) struct SourceCollector {
    pub(crate) stats: Arc<Stats>,
}

impl Collector for SourceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, read) in [
            (
                "source_listings",
                "Complete listings of a kind",
                KindStats::listings as fn(&_) -> u64,
            ),
            (
                "source_listings_streamed",
                "Those of them that the server streamed",
                KindStats::streamed_listings,
            ),
            (
                "source_watch_errors",
                "Errors of watches, each followed by a retry",
                KindStats::watch_errors,
            ),
            (
                "source_malformed",
                "Objects that could not be read at all",
                KindStats::malformed,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (kind, label) in KINDS {
                let counter = ConstCounter::new(read(self.stats.of(kind)));
                counter.encode(family.encode_family(&[("kind", label)])?)?;
            }
        }
        Ok(())
    }
}

/// Reads the sessions when metrics are scraped.
#[derive(Debug)]
pub(crate) struct SessionCollector {
    sessions: Arc<Sessions>,
}

impl SessionCollector {
    /// Adds what is known of sessions to a registry.
    pub(crate) fn register(sessions: &Arc<Sessions>, registry: &mut Registry) {
        registry.register_with_unit(
            "convergence",
            "From the first event of a change until a share of the connected nodes had programmed it",
            Unit::Seconds,
            sessions.convergence(),
        );
        let sessions = Arc::clone(sessions);
        registry.register_collector(Box::new(Self { sessions }));
    }
}

/// An agent that lacks something for longer than this is worth a look.
const LONG_BEHIND_MS: u64 = 5_000;

impl Collector for SessionCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let nodes = self.sessions.snapshot();
        let connected: Vec<_> = nodes.iter().filter(|node| node.connected).collect();
        agents(&connected, &mut encoder)?;
        refused_records(&connected, &mut encoder)?;
        let counters = self.sessions.counters();
        for (name, help, count) in [
            ("sessions", "Streams that began", counters.sessions),
            (
                "sessions_replaced",
                "Streams closed for a newer one of the same node",
                counters.replaced,
            ),
            (
                "protocol_violations",
                "Streams closed because the agent broke the protocol",
                counters.violations,
            ),
            (
                "sessions_resumed_equal",
                "Streams whose agent had the table already",
                counters.resumed_equal,
            ),
            (
                "sessions_resumed",
                "Streams whose agent was sent what it missed",
                counters.resumed,
            ),
            (
                "sessions_resumed_buckets",
                "Streams whose agent was sent the buckets of records that differed",
                counters.resumed_buckets,
            ),
            (
                "sessions_stalled",
                "Streams closed because the agent took nothing for too long",
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
            let metric = ConstCounter::new(count);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let help = "Connections and streams refused before anything was sent, and streams whose token was revoked, by reason";
        let counter = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sessions_refused", help, None, counter)?;
        for (reason, count) in self.sessions.refusals() {
            let metric = ConstCounter::new(count);
            metric.encode(family.encode_family(&[("reason", reason.as_str())])?)?;
        }
        Ok(())
    }
}

/// How many of the connected agents are in which state.
fn agents(
    connected: &[&NodeStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), std::fmt::Error> {
    let count = |is: fn(&NodeStatus) -> bool| connected.iter().filter(|node| is(node)).count();
    for (name, help, count) in [
        (
            "agents_connected",
            "Agents with a live stream",
            connected.len(),
        ),
        (
            "agents_behind",
            "Connected agents that have not programmed the newest revision",
            count(|node| node.behind_ms.is_some()),
        ),
        (
            "agents_behind_long",
            "Connected agents that lack something for more than 5 seconds",
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
        let metric = ConstGauge::new(gauge(count));
        metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
    }
    Ok(())
}

/// Records that agents refuse, by reason.
fn refused_records(
    connected: &[&NodeStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), std::fmt::Error> {
    let mut reasons = BTreeMap::from(RecordProblem::REASONS.map(|reason| (reason, 0)));
    for problem in connected.iter().flat_map(|node| &node.refused) {
        *reasons.entry(problem.reason()).or_default() += 1;
    }
    let help = "Records that connected agents refuse, by reason; the first 64 of each agent";
    let mut family = encoder.encode_descriptor("records_refused", help, None, MetricType::Gauge)?;
    for (reason, count) in reasons {
        let metric = ConstGauge::new(gauge(count));
        metric.encode(family.encode_family(&[("reason", reason)])?)?;
    }
    Ok(())
}
