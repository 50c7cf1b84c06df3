// SPDX-License-Identifier: Apache-2.0

//! Panels of dashboards. The type of a metric decides on its query.

use serde_json::{Value, json};

use crate::metrics::{Kind, Metrics};

/// Presentation of a panel's queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// One number.
    Number,
    /// One number that should be 0; it is red otherwise.
    Fault,
    /// Lines over time.
    Lines,
    /// A table of the present values.
    Table,
}

/// One query of a panel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Query {
    text: String,
    legend: String,
}

/// A panel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panel {
    title: String,
    description: String,
    look: Look,
    unit: &'static str,
    width: u32,
    queries: Vec<Query>,
}

/// Makes panels of metrics.
#[derive(Debug, Clone, Copy)]
pub struct Maker<'m> {
    metrics: &'m Metrics,
    /// Matchers of every selector, such as `instance=~"$instance"`.
    matchers: &'static str,
}

impl<'m> Maker<'m> {
    /// A maker of panels over series with these matchers.
    #[must_use]
    pub fn new(metrics: &'m Metrics, matchers: &'static str) -> Self {
        Self { metrics, matchers }
    }

    /// A panel of a metric: the value of a gauge, or the rate of a counter. `aggregate` is an aggregation
    /// such as `sum by (kind)`; empty for none.
    ///
    /// # Panics
    /// If there is no such metric, or it is a histogram or an info.
    #[must_use]
    pub fn of(&self, look: Look, title: &str, aggregate: &str, metric: &str) -> Panel {
        let text = match self.kind(metric) {
            Kind::Gauge => self.selector(metric),
            Kind::Counter => format!("rate({}[$__rate_interval])", self.selector(metric)),
            kind => panic!("{metric}: {kind:?}"),
        };
        self.panel(
            look,
            title,
            metric,
            aggregated(aggregate, &text),
            legend(aggregate),
        )
    }

    /// A panel of how often a counter counted in a time, such as `24h`.
    ///
    /// # Panics
    /// If there is no such counter.
    #[must_use]
    pub fn increase(&self, look: Look, title: &str, metric: &str, time: &str) -> Panel {
        assert_eq!(self.kind(metric), Kind::Counter, "{metric}");
        let text = format!("sum(increase({}[{time}]))", self.selector(metric));
        self.panel(look, title, metric, text, String::new())
    }

    /// A panel of the age of a gauge that is a time in seconds since 1970.
    ///
    /// # Panics
    /// If there is no such gauge.
    #[must_use]
    pub fn age(&self, title: &str, metric: &str) -> Panel {
        assert_eq!(self.kind(metric), Kind::Gauge, "{metric}");
        let text = format!("time() - ({} > 0)", self.selector(metric));
        let legend = "{{instance}}".to_owned();
        self.panel(Look::Lines, title, metric, text, legend)
            .unit("s")
    }

    /// A panel of quantiles of a histogram, by a label of its own or over all.
    ///
    /// # Panics
    /// If there is no such histogram.
    #[must_use]
    pub fn quantiles(&self, title: &str, metric: &str, by: Option<&str>) -> Panel {
        assert_eq!(self.kind(metric), Kind::Histogram, "{metric}");
        let labels = by.map_or_else(|| "le".to_owned(), |by| format!("le, {by}"));
        let buckets = self.selector(&format!("{metric}_bucket"));
        let query = |quantile: &str| {
            format!(
                "histogram_quantile({quantile}, sum by ({labels}) (rate({buckets}[$__rate_interval])))"
            )
        };
        let legend = |quantile: &str| match by {
            Some(by) => format!("{quantile}, {{{{{by}}}}}"),
            None => quantile.to_owned(),
        };
        let panel = self.panel(Look::Lines, title, metric, query("0.99"), legend("p99"));
        panel.unit("s").with(query("0.5"), legend("p50"))
    }

    /// A panel of a query of its own. Its meaning is that of a metric.
    ///
    /// # Panics
    /// If there is no such metric.
    #[must_use]
    pub fn query(&self, look: Look, title: &str, metric: &str, text: &str, legend: &str) -> Panel {
        self.panel(look, title, metric, text.to_owned(), legend.to_owned())
    }

    fn kind(&self, metric: &str) -> Kind {
        let found = self.metrics.get(metric);
        found
            .unwrap_or_else(|| panic!("{metric}: no such metric"))
            .kind
    }

    fn selector(&self, series: &str) -> String {
        match self.matchers {
            "" => series.to_owned(),
            matchers => format!("{series}{{{matchers}}}"),
        }
    }

    fn panel(&self, look: Look, title: &str, metric: &str, text: String, legend: String) -> Panel {
        let found = self.metrics.get(metric);
        let found = found.unwrap_or_else(|| panic!("{metric}: no such metric"));
        Panel {
            title: title.to_owned(),
            description: format!("{}.", found.meaning),
            look,
            unit: "none",
            width: if matches!(look, Look::Number | Look::Fault) {
                4
            } else {
                12
            },
            queries: vec![Query { text, legend }],
        }
    }
}

/// An aggregation of an expression.
fn aggregated(aggregate: &str, text: &str) -> String {
    match aggregate {
        "" => text.to_owned(),
        aggregate if aggregate.contains(" by ") => format!("{aggregate} ({text})"),
        aggregate => format!("{aggregate}({text})"),
    }
}

/// The legend of an aggregation: its labels.
fn legend(aggregate: &str) -> String {
    let labels = aggregate
        .split_once("by (")
        .map(|(_, rest)| rest.trim_end_matches(')'));
    let labels = match (labels, aggregate) {
        (Some(labels), _) => labels,
        (None, "") => "instance",
        (None, _) => return String::new(),
    };
    let labels: Vec<_> = labels
        .split(", ")
        .map(|it| format!("{{{{{it}}}}}"))
        .collect();
    labels.join(" ")
}

impl Panel {
    /// The panel with a unit of Grafana's: `s`, `bytes`, `ops` ...
    #[must_use]
    pub fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    /// The panel with a width in 24ths.
    #[must_use]
    pub fn width(self, width: u32) -> Self {
        Self { width, ..self }
    }

    /// The panel with one more query.
    #[must_use]
    pub fn with(mut self, text: String, legend: String) -> Self {
        self.queries.push(Query { text, legend });
        self
    }

    /// Its height in rows of the grid.
    fn height(&self) -> u32 {
        match self.look {
            Look::Number | Look::Fault => 4,
            Look::Lines | Look::Table => 8,
        }
    }

    /// Its size in columns and rows of the grid.
    pub(crate) fn size(&self) -> (u32, u32) {
        (self.width, self.height())
    }

    /// The panel in Grafana's form, at a place of the grid.
    pub(crate) fn json(&self, id: usize, (x, y): (u32, u32)) -> Value {
        let datasource = json!({ "type": "prometheus", "uid": "${datasource}" });
        let queries = self.queries.iter().enumerate().map(|(index, query)| {
            let is_table = self.look == Look::Table;
            json!({
                "refId": char::from(b'A' + u8::try_from(index).unwrap_or(0)).to_string(),
                "expr": query.text,
                "legendFormat": query.legend,
                "instant": is_table,
                "format": if is_table { "table" } else { "time_series" },
                "datasource": datasource,
            })
        });
        let (kind, thresholds) = match self.look {
            Look::Number => ("stat", json!([{ "color": "text", "value": null }])),
            Look::Fault => (
                "stat",
                json!([{ "color": "green", "value": null }, { "color": "red", "value": 1 }]),
            ),
            Look::Lines => ("timeseries", json!([{ "color": "green", "value": null }])),
            Look::Table => ("table", json!([{ "color": "text", "value": null }])),
        };
        json!({
            "id": id,
            "type": kind,
            "title": self.title,
            "description": self.description,
            "gridPos": { "x": x, "y": y, "w": self.width, "h": self.height() },
            "datasource": datasource,
            "targets": queries.collect::<Vec<_>>(),
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit,
                    "thresholds": { "mode": "absolute", "steps": thresholds },
                },
                "overrides": [],
            },
            "options": {},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_metric_decides_on_its_query() {
        let metrics = Metrics::parse(
            "| `a_total` | counter | `kind` | All a |\n| `g` | gauge |  | G |\n\
             | `h_seconds` | histogram | `share` | H |\n",
        );
        let maker = Maker::new(&metrics, "instance=~\"$instance\"");
        let text = |panel: &Panel| panel.queries[0].text.clone();
        let counter = maker.of(Look::Lines, "A", "sum by (kind)", "a_total");
        assert_eq!(
            text(&counter),
            "sum by (kind) (rate(a_total{instance=~\"$instance\"}[$__rate_interval]))"
        );
        assert_eq!(counter.queries[0].legend, "{{kind}}");
        assert_eq!(counter.description, "All a.");
        let gauge = maker.of(Look::Number, "G", "max", "g");
        assert_eq!(text(&gauge), "max(g{instance=~\"$instance\"})");
        let plain = Maker::new(&metrics, "");
        let histogram = plain.quantiles("H", "h_seconds", Some("share"));
        assert_eq!(
            text(&histogram),
            "histogram_quantile(0.99, sum by (le, share) (rate(h_seconds_bucket[$__rate_interval])))"
        );
        assert_eq!(histogram.queries[1].legend, "p50, {{share}}");
    }

    #[test]
    #[should_panic(expected = "h_seconds: Histogram")]
    fn a_histogram_has_no_value() {
        let metrics = Metrics::parse("| `h_seconds` | histogram |  | H |\n");
        let _ = Maker::new(&metrics, "").of(Look::Lines, "H", "", "h_seconds");
    }
}
