//! The agent's metrics. Names that begin with `kubeproxy_` are kube-proxy's, with its meaning.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::subscribe::Stats;
use crate::sync::{Counts, NoLocalEndpoints, Outcome};

/// What the reconcile loop counts.
#[derive(Debug, Clone)]
pub struct ReconcileMetrics {
    duration: Histogram,
    last: Gauge<f64, AtomicU64>,
    objects: Counter,
    errors: Gauge,
    virtual_servers: Gauge,
    real_servers: Gauge,
    differences: Counter,
    no_local_endpoints: Family<PolicyLabels, Gauge>,
    flows_duration: Histogram,
    flows_deleted: Counter,
    drift: Counter,
    takeover: Gauge,
}

/// The labels of [`ReconcileMetrics::observe_no_local_endpoints`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    traffic_policy: &'static str,
}

/// kube-proxy's buckets: 1 ms to 16 s.
fn buckets() -> impl Iterator<Item = f64> {
    exponential_buckets(0.001, 2.0, 15)
}

impl ReconcileMetrics {
    /// Adds the metrics to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self {
            duration: Histogram::new(buckets()),
            last: Gauge::default(),
            objects: Counter::default(),
            errors: Gauge::default(),
            virtual_servers: Gauge::default(),
            real_servers: Gauge::default(),
            differences: Counter::default(),
            no_local_endpoints: Family::default(),
            flows_duration: Histogram::new(buckets()),
            flows_deleted: Counter::default(),
            drift: Counter::default(),
            takeover: Gauge::default(),
        };
        registry.register_with_unit(
            "kubeproxy_sync_proxy_rules_duration",
            "How long one reconciliation took",
            Unit::Seconds,
            this.duration.clone(),
        );
        registry.register_with_unit(
            "kubeproxy_sync_proxy_rules_last_timestamp",
            "When the last reconciliation without errors ended, in seconds since 1970",
            Unit::Seconds,
            this.last.clone(),
        );
        this.register_services(registry);
        this.register_kernel(registry.sub_registry_with_prefix("portolan_agent"));
        this
    }

    fn register_services(&self, registry: &mut Registry) {
        registry.register(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Service ports with a Local traffic policy that have endpoints, but none on this node",
            self.no_local_endpoints.clone(),
        );
        registry.register_with_unit(
            "kubeproxy_conntrack_reconciler_sync_duration",
            "How long it took to forget stale UDP flows",
            Unit::Seconds,
            self.flows_duration.clone(),
        );
        registry.register(
            "kubeproxy_conntrack_reconciler_deleted_entries",
            "Stale UDP flows that conntrack was made to forget",
            self.flows_deleted.clone(),
        );
    }

    fn register_kernel(&self, registry: &mut Registry) {
        registry.register(
            "objects_changed",
            "Kernel objects changed",
            self.objects.clone(),
        );
        registry.register(
            "drift_repaired",
            "Kernel objects that somebody else had changed or deleted, made good",
            self.drift.clone(),
        );
        registry.register(
            "takeover_pending",
            "Whether something of a kube-proxy's is left to take over",
            self.takeover.clone(),
        );
        registry.register(
            "errors_current",
            "What the last reconciliation could not do",
            self.errors.clone(),
        );
        registry.register(
            "virtual_servers",
            "Virtual servers in the kernel, foreign ones included",
            self.virtual_servers.clone(),
        );
        registry.register(
            "real_servers",
            "Real servers in the kernel, foreign ones included",
            self.real_servers.clone(),
        );
        registry.register(
            "check_differences",
            "Checks that found the kernel changed by somebody else",
            self.differences.clone(),
        );
    }

    /// Says what nothing on this node serves.
    pub fn observe_no_local_endpoints(&self, count: NoLocalEndpoints) {
        let NoLocalEndpoints { internal, external } = count;
        for (traffic_policy, count) in [("internal", internal), ("external", external)] {
            let gauge = self
                .no_local_endpoints
                .get_or_create_owned(&PolicyLabels { traffic_policy });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Counts a check that found the kernel changed by somebody else.
    pub fn observe_difference(&self) {
        self.differences.inc();
    }

    /// Counts a look for stale UDP flows.
    pub fn observe_flows(&self, duration: Duration, deleted: usize) {
        self.flows_duration.observe(duration.as_secs_f64());
        self.flows_deleted.inc_by(deleted as u64);
    }

    /// Counts objects that somebody else had changed.
    pub fn observe_drift(&self, objects: usize) {
        self.drift.inc_by(objects as u64);
    }

    /// Says whether something of a kube-proxy's is left.
    pub fn observe_takeover(&self, pending: bool) {
        self.takeover.set(i64::from(pending));
    }

    /// Counts a reconciliation.
    pub fn observe(&self, outcome: &Outcome, counts: Option<Counts>) {
        self.duration.observe(outcome.duration.as_secs_f64());
        self.objects.inc_by(outcome.objects as u64);
        self.errors
            .set(i64::try_from(outcome.errors.len()).unwrap_or(i64::MAX));
        if outcome.errors.is_empty() {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            self.last.set(now.as_secs_f64());
        }
        if let Some(counts) = counts {
            let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
            self.virtual_servers.set(count(counts.virtual_servers));
            self.real_servers.set(count(counts.real_servers));
        }
    }
}

/// Reads what the subscription counted when metrics are scraped.
#[derive(Debug)]
pub struct SubscribeCollector(pub Arc<Stats>);

impl Collector for SubscribeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Stats {
            connected,
            streams,
            connect_failures,
            wrong_cluster,
            commits,
            snapshots,
            hash_mismatches,
            refused_records,
            tables_held,
            deletions_held,
            table_writes,
            table_write_failures,
            table_files_set_aside,
            unknown_frames,
            // Registered by its own name.
            network_programming: _,
        } = &*self.0;
        for (name, help, value) in [
            (
                "connected",
                "Whether there is a stream from a controller",
                u64::from(connected.load(Ordering::Relaxed)),
            ),
            (
                "refused_records_current",
                "Records of the table that were refused, or taken in part",
                refused_records.load(Ordering::Relaxed),
            ),
            (
                "deletions_held_current",
                "Records that the table which is held back now would delete",
                deletions_held.load(Ordering::Relaxed),
            ),
        ] {
            let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let counters = [
            ("streams", "Streams that were opened", streams),
            (
                "connect_failures",
                "Attempts that came to no stream",
                connect_failures,
            ),
            (
                "wrong_cluster",
                "Attempts that ended because the controller is of another cluster",
                wrong_cluster,
            ),
            ("commits", "Tables received", commits),
            ("snapshots", "Tables received that were whole", snapshots),
            (
                "hash_mismatches",
                "Tables dropped because their hash was wrong",
                hash_mismatches,
            ),
            (
                "tables_held",
                "Tables held back because they would have deleted too much",
                tables_held,
            ),
            ("table_writes", "Tables written to disk", table_writes),
            (
                "table_write_failures",
                "Times that the table could not be written to disk",
                table_write_failures,
            ),
            (
                "table_files_set_aside",
                "Files with a table that made no sense",
                table_files_set_aside,
            ),
            (
                "unknown_frames",
                "Frames of a kind that this version does not know",
                unknown_frames,
            ),
        ];
        encode_counters(&mut encoder, &counters)
    }
}

/// Encodes counters by their names, each with its help.
fn encode_counters(
    encoder: &mut DescriptorEncoder<'_>,
    counters: &[(&str, &str, &AtomicU64)],
) -> Result<(), std::fmt::Error> {
    for (name, help, counter) in counters {
        let metric = ConstCounter::new(counter.load(Ordering::Relaxed));
        metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    fn assert_lines(registry: &Registry, lines: &[&str]) {
        let text = text(registry);
        for line in lines {
            assert!(text.lines().any(|have| have == *line), "{line}\n{text}");
        }
    }

    #[test]
    fn service_ports_without_local_endpoints_are_told_by_policy() {
        let mut registry = Registry::default();
        let metrics = ReconcileMetrics::register(&mut registry);
        let (internal, external) = (1, 2);
        metrics.observe_no_local_endpoints(NoLocalEndpoints { internal, external });
        let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        assert_lines(
            &registry,
            &[
                &format!("{name}{{traffic_policy=\"external\"}} 2"),
                &format!("{name}{{traffic_policy=\"internal\"}} 1"),
            ],
        );
    }

    #[test]
    fn names_are_kube_proxys_where_it_has_them() {
        let mut registry = Registry::default();
        let metrics = ReconcileMetrics::register(&mut registry);
        metrics.observe(&Outcome::default(), None);
        metrics.observe_flows(Duration::from_millis(3), 5);
        assert_lines(
            &registry,
            &[
                "kubeproxy_sync_proxy_rules_duration_seconds_count 1",
                "kubeproxy_conntrack_reconciler_deleted_entries_total 5",
                "kubeproxy_conntrack_reconciler_sync_duration_seconds_count 1",
                "portolan_agent_errors_current 0",
            ],
        );
        assert!(text(&registry).contains("kubeproxy_sync_proxy_rules_last_timestamp_seconds "));
    }
}
