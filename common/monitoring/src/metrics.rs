// SPDX-License-Identifier: Apache-2.0

//! The metrics that `docs/reference` lists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

/// The references that are read.
const REFERENCES: [&str; 2] = [
    "docs/reference/agent-metrics.md",
    "docs/reference/controller-metrics.md",
];
/// Labels that Prometheus gives every series of a target.
const OF_TARGETS: [&str; 4] = ["container", "instance", "job", "pod"];
/// Series of a histogram, beside its name.
const OF_HISTOGRAMS: [&str; 3] = ["_bucket", "_count", "_sum"];

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows, until the program starts anew.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Counts by upper limits.
    Histogram,
    /// The constant 1, whose labels say something.
    Info,
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "counter" => Self::Counter,
            "gauge" => Self::Gauge,
            "histogram" => Self::Histogram,
            "info" => Self::Info,
            _ => return None,
        })
    }
}

/// One metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    /// Its type.
    pub kind: Kind,
    /// Its own labels.
    pub labels: BTreeSet<String>,
    /// Its meaning.
    pub meaning: String,
}

/// A series of a metric, as a query names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Series<'m> {
    /// The metric itself.
    Whole(&'m Metric),
    /// The buckets of a histogram.
    Buckets(&'m Metric),
    /// The sum or the count of a histogram.
    Total(&'m Metric),
}

impl<'m> Series<'m> {
    /// The metric.
    #[must_use]
    pub fn metric(self) -> &'m Metric {
        match self {
            Self::Whole(metric) | Self::Buckets(metric) | Self::Total(metric) => metric,
        }
    }

    /// Returns `true` if the series only grows.
    #[must_use]
    pub fn is_counted(self) -> bool {
        match self {
            Self::Whole(metric) => metric.kind == Kind::Counter,
            Self::Buckets(_) | Self::Total(_) => true,
        }
    }

    /// Returns `true` if the series has a label, of its own or of its target.
    #[must_use]
    pub fn has_label(self, label: &str) -> bool {
        let is_limit = label == "le" && matches!(self, Self::Buckets(_));
        is_limit || OF_TARGETS.contains(&label) || self.metric().labels.contains(label)
    }
}

/// All metrics, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metrics(BTreeMap<String, Metric>);

impl Metrics {
    /// Reads the references of the repository.
    ///
    /// # Errors
    /// If a reference cannot be read.
    pub fn read() -> io::Result<Self> {
        let mut all = Self::default();
        for path in REFERENCES {
            let text = fs::read_to_string(crate::repository(path))?;
            all.0.extend(Self::parse(&text).0);
        }
        Ok(all)
    }

    /// Parses the rows of a reference: name, type, labels, meaning. Other lines are skipped.
    #[must_use]
    pub fn parse(reference: &str) -> Self {
        Self(reference.lines().filter_map(row).collect())
    }

    /// The metric of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Metric> {
        self.0.get(name)
    }

    /// The series of this name; `None` if no metric has it.
    #[must_use]
    pub fn series(&self, name: &str) -> Option<Series<'_>> {
        let is = |metric: &&Metric, kind| metric.kind == kind;
        if let Some(base) = name.strip_suffix("_info") {
            let metric = self.get(base).filter(|it| is(it, Kind::Info))?;
            return Some(Series::Whole(metric));
        }
        if let Some(metric) = self.get(name) {
            // Neither a histogram nor an info has a series of its bare name.
            let is_series = matches!(metric.kind, Kind::Counter | Kind::Gauge);
            return is_series.then_some(Series::Whole(metric));
        }
        let part = OF_HISTOGRAMS.iter().find(|part| name.ends_with(**part))?;
        let metric = self.get(name.strip_suffix(part)?)?;
        let metric = Some(metric).filter(|it| is(it, Kind::Histogram))?;
        Some(match *part {
            "_bucket" => Series::Buckets(metric),
            _ => Series::Total(metric),
        })
    }
}

/// A row of the table of a reference.
fn row(line: &str) -> Option<(String, Metric)> {
    let mut cells = line.strip_prefix("| `")?.split(" | ");
    let name = cells.next()?.trim_end_matches('`').to_owned();
    let kind = Kind::parse(cells.next()?)?;
    let labels = cells
        .next()?
        .split(", ")
        .map(|it| it.trim().trim_matches('`'));
    let labels = labels.filter(|it| !it.is_empty()).map(str::to_owned);
    let labels = labels.collect();
    let meaning = cells.next()?.trim_end_matches(" |").to_owned();
    let metric = Metric {
        kind,
        labels,
        meaning,
    };
    Some((name, metric))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = "# Metrics\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n\
        | `a_total` | counter | `kind`, `reason` | All a |\n\
        | `b_seconds` | histogram |  | Time of b |\n\
        | `build` | info | `version` | Version |\n";

    #[test]
    fn rows_are_read_with_type_labels_and_meaning() {
        let metrics = Metrics::parse(REFERENCE);
        let a = metrics.get("a_total").unwrap();
        assert_eq!((a.kind, &*a.meaning), (Kind::Counter, "All a"));
        assert_eq!(a.labels, ["kind", "reason"].map(str::to_owned).into());
        assert!(metrics.get("b_seconds").unwrap().labels.is_empty());
        assert_eq!(metrics.0.len(), 3);
    }

    #[test]
    fn a_histogram_and_an_info_have_no_series_of_their_bare_names() {
        let metrics = Metrics::parse(REFERENCE);
        for (name, expected) in [
            ("a_total", true),
            ("a_total_count", false),
            ("a", false),
            ("b_seconds", false),
            ("b_seconds_bucket", true),
            ("b_seconds_sum", true),
            ("build", false),
            ("build_info", true),
        ] {
            assert_eq!(metrics.series(name).is_some(), expected, "{name}");
        }
        let buckets = metrics.series("b_seconds_bucket").unwrap();
        assert!(buckets.has_label("le") && buckets.has_label("instance"));
        assert!(!metrics.series("b_seconds_sum").unwrap().has_label("le"));
    }

    #[test]
    fn the_references_are_read() {
        let metrics = Metrics::read().unwrap();
        assert!(metrics.0.len() > 80, "{}", metrics.0.len());
        assert!(metrics.series("portolan_build_info").is_some());
    }
}
