//! The agent's metrics. Names that begin with `kubeproxy_` are kube-proxy's, with its meaning.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_plan::KernelState;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
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
}

impl ReconcileMetrics {
    /// Adds the metrics to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self {
            // kube-proxy's buckets: 1 ms to 16 s.
            duration: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            last: Gauge::default(),
            objects: Counter::default(),
            errors: Gauge::default(),
            virtual_servers: Gauge::default(),
            real_servers: Gauge::default(),
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
        let registry = registry.sub_registry_with_prefix("portolan_agent");
        registry.register(
            "objects_changed",
            "Kernel objects changed",
            this.objects.clone(),
        );
        registry.register(
            "errors_current",
            "What the last reconciliation could not do",
            this.errors.clone(),
        );
        registry.register(
            "virtual_servers",
            "Virtual servers in the kernel, foreign ones included",
            this.virtual_servers.clone(),
        );
        registry.register(
            "real_servers",
            "Real servers in the kernel, foreign ones included",
            this.real_servers.clone(),
        );
        this
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
            unknown_frames,
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
