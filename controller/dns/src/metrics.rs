// SPDX-License-Identifier: Apache-2.0

//! Metrics of answers and exports.

use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::shared::SharedZone;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueryLabels {
    r#type: &'static str,
    rcode: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WayLabel {
    way: &'static str,
}

/// Counts answers. Clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    queries: Family<QueryLabels, Counter>,
    duration: Histogram,
}

impl Metrics {
    /// Adds the metrics to a registry: `dns_queries` by type and rcode, and
    /// `dns_query_duration_seconds`.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self {
            queries: Family::default(),
            duration: Histogram::new(exponential_buckets(0.000_001, 4.0, 12)),
        };
        registry.register(
            "dns_queries",
            "DNS queries, by type and by the answer's code",
            this.queries.clone(),
        );
        registry.register_with_unit(
            "dns_query_duration",
            "From a DNS query to its answer",
            Unit::Seconds,
            this.duration.clone(),
        );
        this
    }

    /// One answer. Without a type the query could not be read.
    pub(crate) fn answered(&self, kind: Option<RecordType>, code: ResponseCode, took: Duration) {
        let labels = QueryLabels {
            r#type: label(kind),
            rcode: code_name(code),
        };
        self.queries.get_or_create(&labels).inc();
        self.duration.observe(took.as_secs_f64());
    }
}

/// The code as name servers write it.
#[must_use]
pub fn code_name(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::BADVERS | ResponseCode::BADSIG => "BADVERS",
        _ => "other",
    }
}

/// Unusual types share one label: a client must not make metrics grow.
fn label(kind: Option<RecordType>) -> &'static str {
    match kind {
        None => "none",
        Some(RecordType::A) => "A",
        Some(RecordType::AAAA) => "AAAA",
        Some(RecordType::CNAME) => "CNAME",
        Some(RecordType::MX) => "MX",
        Some(RecordType::NS) => "NS",
        Some(RecordType::PTR) => "PTR",
        Some(RecordType::SOA) => "SOA",
        Some(RecordType::SRV) => "SRV",
        Some(RecordType::TXT) => "TXT",
        Some(_) => "other",
    }
}

/// Collector of the lag of each export: `dns_export_lag_seconds`. Nothing is exported of a zone that is not synced, so
/// that such a zone has no lags.
#[derive(Debug)]
pub struct LagCollector(pub Arc<SharedZone>);

impl Collector for LagCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let is_synced = self.0.read().is_synced();
        let lags = is_synced.then(|| self.0.lags());
        encode_lags(encoder, lags.unwrap_or_default())
    }
}

/// Writes `dns_export_lag_seconds`, which each way of exports has at most once.
///
/// # Errors
/// If the encoder cannot write.
pub fn encode_lags(
    mut encoder: DescriptorEncoder<'_>,
    lags: impl IntoIterator<Item = (&'static str, Duration)>,
) -> Result<(), std::fmt::Error> {
    let name = "dns_export_lag";
    let help = "Age of the oldest change that an export has not written, 0 if there is none";
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for (way, age) in lags {
        let label = WayLabel { way };
        ConstGauge::new(age.as_secs_f64()).encode(family.encode_family(&label)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::config;
    use crate::{NamesChange, Zone};

    #[test]
    fn a_zone_that_is_not_synced_has_no_lags() {
        let zone = Arc::new(SharedZone::new(Zone::new(config(), 0).unwrap()));
        let _subscription = zone.subscribe("etcd");
        let mut registry = Registry::default();
        registry.register_collector(Box::new(LagCollector(Arc::clone(&zone))));
        let series = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let series = "dns_export_lag_seconds{way=\"etcd\"}";
            text.matches(series).count()
        };
        assert_eq!(series(), 0);
        zone.apply([NamesChange::Synced]);
        assert_eq!(series(), 1);
    }
}
