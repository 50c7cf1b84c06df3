// SPDX-License-Identifier: Apache-2.0

//! Metrics that are read at the time of a scrape.

use std::fmt;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// The values of a histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramValues {
    /// Sum of all values.
    pub sum: f64,
    /// Upper bounds, and the number of values of each bucket alone. The last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
}

impl HistogramValues {
    fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

/// Encodes the metrics of a collector.
#[derive(Debug)]
pub struct Scrape<'a>(DescriptorEncoder<'a>);

impl<'a> Scrape<'a> {
    /// Encodes into a scrape's response.
    #[must_use]
    pub fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// Encodes a counter, without the suffix `_total` of its name.
    ///
    /// # Errors
    /// If the response cannot be written.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    /// Encodes a counter for each of several label sets.
    ///
    /// # Errors
    /// If the response cannot be written.
    pub fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Encodes a gauge.
    ///
    /// # Errors
    /// If the response cannot be written.
    pub fn gauge<N: EncodeGaugeValue>(&mut self, name: &str, help: &str, value: N) -> fmt::Result {
        let encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    /// Encodes a gauge for each of several label sets.
    ///
    /// # Errors
    /// If the response cannot be written.
    pub fn gauges<L: EncodeLabelSet, N: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, N)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Encodes a histogram.
    ///
    /// # Errors
    /// If the response cannot be written.
    pub fn histogram(&mut self, name: &str, help: &str, values: &HistogramValues) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(values.sum, values.count(), &values.buckets, None)
    }

    /// Encodes a histogram for each of several label sets.
    ///
    /// # Errors
    /// If the response cannot be written.
    pub fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        histograms: impl IntoIterator<Item = (L, HistogramValues)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, values) in histograms {
            family
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(
                    values.sum,
                    values.count(),
                    &values.buckets,
                    None,
                )?;
        }
        Ok(())
    }
}

/// A count as the value of a gauge.
#[must_use]
pub fn gauge_value(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Debug, EncodeLabelSet)]
    struct ColourLabel {
        colour: &'static str,
    }

    #[derive(Debug)]
    struct Lights;

    impl Collector for Lights {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let mut scrape = Scrape::new(encoder);
            scrape.counter("switched", "Times switched", 3)?;
            scrape.gauge("volts", "Voltage", 11.5)?;
            let colours = ["red", "green"].map(|colour| ColourLabel { colour });
            scrape.gauges("lit", "Lights on", colours.into_iter().zip([1, 0]))?;
            let times = HistogramValues {
                sum: 7.5,
                buckets: vec![(0.5, 2), (f64::INFINITY, 1)],
            };
            scrape.histogram("repair_seconds", "Times of repairs", &times)?;
            let of_red = [(ColourLabel { colour: "red" }, times)];
            scrape.histograms("change_seconds", "Times of changes", of_red)?;
            let colour = ColourLabel { colour: "red" };
            scrape.counters("broken", "Lights broken", [(colour, u64::MAX)])
        }
    }

    #[test]
    fn metrics_are_encoded_with_their_labels() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Lights));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "# TYPE switched counter",
            "switched_total 3",
            "volts 11.5",
            "lit{colour=\"green\"} 0",
            "broken_total{colour=\"red\"} 18446744073709551615",
            "repair_seconds_sum 7.5",
            "repair_seconds_count 3",
            "repair_seconds_bucket{le=\"0.5\"} 2",
            "repair_seconds_bucket{le=\"+Inf\"} 3",
            "change_seconds_bucket{le=\"+Inf\",colour=\"red\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert_eq!(gauge_value(u64::MAX), i64::MAX);
    }
}
