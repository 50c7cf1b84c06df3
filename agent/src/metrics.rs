//! The agent's metrics. Names that begin with `kubeproxy_` are kube-proxy's, with its meaning.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portolan_model::{Frontend, FrontendKind, Lists, NodeTable};
use portolan_plan::KernelState;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::reconcile::Outcome;
use crate::subscribe::Stats;

/// What the reconcile loop counts.
#[derive(Debug, Clone)]
pub struct ReconcileMetrics {
    duration: Histogram,
    last: Gauge<f64, AtomicU64>,
    objects: Counter,
    errors: Gauge,
    virtual_servers: Gauge,
    real_servers: Gauge,
    no_local_endpoints: Family<PolicyLabels, Gauge>,
    flows_duration: Histogram,
    flows_deleted: Counter,
    drift: Counter,
    takeover: Gauge,
}

/// The labels of [`ReconcileMetrics::observe_table`].
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
    }

    /// Looks at what a table has on this node.
    pub fn observe_table(&self, table: &NodeTable) {
        let [internal, external] = no_local_endpoints(table);
        for (traffic_policy, count) in [("internal", internal), ("external", external)] {
            let gauge = self
                .no_local_endpoints
                .get_or_create_owned(&PolicyLabels { traffic_policy });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
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
    pub fn observe(&self, outcome: &Outcome, known: Option<&KernelState>) {
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
        if let Some(known) = known {
            let real_servers: usize = known
                .virtual_servers
                .values()
                .map(|server| server.real_servers.len())
                .sum();
            let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
            self.virtual_servers.set(count(known.virtual_servers.len()));
            self.real_servers.set(count(real_servers));
        }
    }
}

/// Of a table, the records with a Local traffic policy that nothing on this node serves although
/// something elsewhere does: by the internal policy and by the external one.
fn no_local_endpoints(table: &NodeTable) -> [usize; 2] {
    let mut counts = [0, 0];
    for record in table.records.values() {
        let is_missing = |frontend: &&Frontend| {
            frontend.lists == Lists::Local
                && record.available.contains(frontend.family())
                && table.destinations(record, frontend).is_empty()
        };
        let missing = record.frontends.iter().filter(is_missing);
        let kinds: BTreeSet<_> = missing.map(|f| f.kind != FrontendKind::ClusterIp).collect();
        for is_external in kinds {
            counts[usize::from(is_external)] += 1;
        }
    }
    counts
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
        for (name, help, counter) in [
            ("streams", "Streams that were opened", streams),
            (
                "connect_failures",
                "Attempts that came to no stream",
                connect_failures,
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
            (
                "table_writes",
                "Times that the table was written to disk",
                table_writes,
            ),
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
        ] {
            let metric = ConstCounter::new(counter.load(Ordering::Relaxed));
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::{
        Destination, Family as IpFamily, FrontendAddress, NodeLists, Protocol, Record, RecordKey,
    };

    use super::*;

    /// A record with a cluster IP and a node port, of which the given ones are Local.
    fn add(table: &mut NodeTable, service: &str, local: &[FrontendKind], here: bool) {
        let key = RecordKey {
            cluster: "".into(),
            namespace: "ns".into(),
            service: service.into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        let frontend = |kind| Frontend {
            lists: if local.contains(&kind) {
                Lists::Local
            } else {
                Lists::Cluster
            },
            ..Frontend::new(kind, FrontendAddress::NodeAddresses(IpFamily::V4), 80)
        };
        let kinds = [
            FrontendKind::ClusterIp,
            FrontendKind::NodePort,
            FrontendKind::LoadBalancer,
        ];
        let record = Record {
            frontends: kinds.map(frontend).into(),
            available: [IpFamily::V4].into_iter().collect(),
            ..Record::new(key.clone())
        };
        if here {
            let lists = NodeLists {
                local: vec![Destination::new("10.0.0.1:80".parse().unwrap())],
                ..NodeLists::default()
            };
            table.lists.insert(key.clone(), Arc::new(lists));
        }
        table.records.insert(key, Arc::new(record));
    }

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
    fn service_ports_without_local_endpoints_are_counted_by_policy() {
        let (external, internal) = (
            [FrontendKind::NodePort, FrontendKind::LoadBalancer],
            [FrontendKind::ClusterIp],
        );
        let mut registry = Registry::default();
        let metrics = ReconcileMetrics::register(&mut registry);
        let mut table = NodeTable::default();
        add(&mut table, "a", &external, false);
        add(&mut table, "b", &external, true);
        add(&mut table, "c", &internal, false);
        add(&mut table, "d", &[], false);
        add(
            &mut table,
            "e",
            &[FrontendKind::ClusterIp, FrontendKind::NodePort],
            false,
        );
        metrics.observe_table(&table);
        let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        assert_lines(
            &registry,
            &[
                &format!("{name}{{traffic_policy=\"external\"}} 2"),
                &format!("{name}{{traffic_policy=\"internal\"}} 2"),
            ],
        );
        // Without an endpoint anywhere there is none to miss here.
        for record in table.records.values_mut() {
            Arc::make_mut(record).available = portolan_model::Families::NONE;
        }
        metrics.observe_table(&table);
        assert_lines(
            &registry,
            &[&format!("{name}{{traffic_policy=\"external\"}} 0")],
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
