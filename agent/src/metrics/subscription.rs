// SPDX-License-Identifier: Apache-2.0

//! Metrics of the subscription to a controller's tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::subscribe::Stats;

/// Exports the counters of the table's source.
#[derive(Debug)]
pub struct SourceCollector(pub Arc<Stats>);

impl Collector for SourceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stats = &self.0;
        let guard = &stats.stream.guard;
        for (name, help, value) in [
            (
                "refused_records_current",
                "Records of the table that were refused, or taken in part",
                &stats.refused_records,
            ),
            (
                "deletions_held_current",
                "Records whose deletion is held back",
                &guard.deletions_held,
            ),
        ] {
            let value = value.load(Ordering::Relaxed);
            let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let counters = [
            (
                "tables_held",
                "Tables whose deletions were held back",
                &guard.tables_held,
            ),
            (
                "table_writes",
                "Tables written to disk",
                &stats.table_writes,
            ),
            (
                "table_write_failures",
                "Failures to write the table to disk",
                &stats.table_write_failures,
            ),
            (
                "table_files_set_aside",
                "Malformed table files set aside",
                &stats.table_files_set_aside,
            ),
            (
                "table_read_failures",
                "Failures to read the table from disk",
                &stats.table_read_failures,
            ),
        ];
        encode_counters(&mut encoder, &counters)
    }
}

/// Exports the counters of the stream from a controller.
#[derive(Debug)]
pub struct StreamCollector(pub Arc<Stats>);

impl Collector for StreamCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.0.stream.encode(&mut encoder, "")
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
