//! What a relay counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan_relay::Stats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Reads the counts when metrics are scraped.
#[derive(Debug)]
pub(crate) struct RelayCollector(pub(crate) Arc<Stats>);

impl Collector for RelayCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stats = &self.0;
        for (name, help, count) in [
            (
                "upstream_streams",
                "Streams opened to controllers behind us",
                &stats.streams,
            ),
            (
                "upstream_connect_failures",
                "Attempts that came to no stream",
                &stats.connect_failures,
            ),
            (
                "upstream_commits",
                "Transitions that came whole",
                &stats.commits,
            ),
            (
                "upstream_snapshots",
                "Those of them with all tables",
                &stats.snapshots,
            ),
            (
                "upstream_hash_mismatches",
                "Transitions dropped because they did not fit their hashes",
                &stats.mismatches,
            ),
        ] {
            let metric = ConstCounter::new(count.load(Ordering::Relaxed));
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let connected = u64::from(stats.connected.load(Ordering::Relaxed));
        for (name, help, value) in [
            (
                "upstream_connected",
                "Whether there is a stream now",
                connected,
            ),
            (
                "upstream_left_out",
                "Records and lists that this version cannot pass on",
                stats.left_out.load(Ordering::Relaxed),
            ),
            (
                "upstream_deletions_held",
                "Records that the tables would delete which are held back",
                stats.deletions_held.load(Ordering::Relaxed),
            ),
        ] {
            let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}
