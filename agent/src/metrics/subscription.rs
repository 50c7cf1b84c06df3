//! Metrics of the subscription to a controller's tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::subscribe::Stats;

/// Reads the counters of the subscription when metrics are scraped.
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
            ("streams", "Streams opened", streams),
            (
                "connect_failures",
                "Attempts without a stream",
                connect_failures,
            ),
            (
                "wrong_cluster",
                "Attempts that ended because the controller is of another cluster",
                wrong_cluster,
            ),
            ("commits", "Tables received", commits),
            ("snapshots", "Snapshots received", snapshots),
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
                "Failures to write the table to disk",
                table_write_failures,
            ),
            (
                "table_files_set_aside",
                "Malformed table files set aside",
                table_files_set_aside,
            ),
            (
                "unknown_frames",
                "Frames of an unknown kind",
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
