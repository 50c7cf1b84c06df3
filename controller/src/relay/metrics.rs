// SPDX-License-Identifier: Apache-2.0

//! Metrics of a relay.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan_relay::Stats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

/// Exports the counts of a relay.
#[derive(Debug)]
pub(crate) struct RelayCollector(pub(crate) Arc<Stats>);

impl Collector for RelayCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stats = &self.0;
        stats.stream.encode(&mut encoder, "upstream_")?;
        for (name, help, value) in [
            (
                "upstream_left_out",
                "Records and lists that this version cannot pass on",
                &stats.left_out,
            ),
            (
                "upstream_deletions_held",
                "Records whose deletion is held back",
                &stats.stream.guard.deletions_held,
            ),
        ] {
            let value = value.load(Ordering::Relaxed);
            let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}
