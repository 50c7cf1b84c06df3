// SPDX-License-Identifier: Apache-2.0

//! Checks of queries against the list of metrics.
//!
//! Every series exists, and has the labels that the query names. What only grows is read by `rate` or
//! `increase`, and nothing else is. `histogram_quantile` reads buckets, and keeps their limits.

use std::collections::BTreeSet;

use promql_parser::parser::{
    AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, MatrixSelector, VectorSelector, parse,
};

use crate::metrics::{Metrics, Series};

/// Functions of counters.
const OF_COUNTERS: [&str; 3] = ["increase", "irate", "rate"];
/// Functions of gauges over time.
const OF_GAUGES: [&str; 7] = [
    "avg_over_time",
    "changes",
    "delta",
    "deriv",
    "max_over_time",
    "min_over_time",
    "predict_linear",
];
/// Functions of which it does not matter what they read.
const OF_ANY: [&str; 2] = ["absent", "absent_over_time"];
/// The interval that Grafana sets.
const INTERVAL: &str = "$__rate_interval";

/// Reason why a query is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is no PromQL.
    #[error("no PromQL: {0}")]
    Syntax(String),
    /// No metric has a series of this name.
    #[error("{0}: no such series")]
    Unknown(String),
    /// The series has no such label.
    #[error("{0}: no label {1}")]
    Label(String, String),
    /// A function of counters reads something else.
    #[error("{0}: not a counter, read by {1}")]
    NotCounted(String, String),
    /// A counter is read by something else than a function of counters.
    #[error("{0}: a counter, read without rate or increase")]
    Counted(String),
    /// `histogram_quantile` reads something else than buckets.
    #[error("{0}: no buckets, read by histogram_quantile")]
    NotBuckets(String),
    /// An aggregation below `histogram_quantile` drops the limits of the buckets.
    #[error("histogram_quantile: an aggregation drops the label le")]
    LimitsDropped,
    /// A selector names no metric.
    #[error("a selector without the name of a metric")]
    Nameless,
    /// The query names no metric at all.
    #[error("no metric")]
    Empty,
}

/// The names of the series of a query, if it is good.
///
/// # Errors
/// The first fault.
pub fn check(query: &str, metrics: &Metrics) -> Result<BTreeSet<String>, Fault> {
    // Grafana replaces its variables before Prometheus parses the query.
    let query = query.replace(INTERVAL, "5m");
    let expression = parse(&query).map_err(Fault::Syntax)?;
    let mut checker = Checker {
        metrics,
        names: BTreeSet::new(),
    };
    checker.expression(&expression, Reader::Nothing)?;
    match checker.names.is_empty() {
        true => Err(Fault::Empty),
        false => Ok(checker.names),
    }
}

/// The innermost function that reads a selector.
#[derive(Debug, Clone, Copy)]
enum Reader<'q> {
    /// None that matters.
    Nothing,
    /// One of [`OF_COUNTERS`].
    Rate(&'q str),
    /// One of [`OF_GAUGES`].
    Window,
    /// One of [`OF_ANY`].
    Any,
}

struct Checker<'m> {
    metrics: &'m Metrics,
    names: BTreeSet<String>,
}

impl Checker<'_> {
    fn expression(&mut self, expression: &Expr, reader: Reader<'_>) -> Result<(), Fault> {
        match expression {
            Expr::Aggregate(aggregate) => self.aggregate(aggregate, reader),
            Expr::Unary(unary) => self.expression(&unary.expr, reader),
            Expr::Binary(binary) => self.binary(binary, reader),
            Expr::Paren(paren) => self.expression(&paren.expr, reader),
            Expr::Subquery(subquery) => self.expression(&subquery.expr, Reader::Nothing),
            Expr::VectorSelector(selector) => self.selector(selector, reader).map(drop),
            Expr::MatrixSelector(MatrixSelector { vs, .. }) => self.selector(vs, reader).map(drop),
            Expr::Call(call) => self.call(call, reader),
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => Ok(()),
        }
    }

    fn binary(&mut self, binary: &BinaryExpr, reader: Reader<'_>) -> Result<(), Fault> {
        self.expression(&binary.lhs, reader)?;
        self.expression(&binary.rhs, reader)
    }

    fn call(&mut self, call: &Call, reader: Reader<'_>) -> Result<(), Fault> {
        let name = call.func.name;
        let within = match name {
            name if OF_COUNTERS.contains(&name) => Reader::Rate(name),
            name if OF_GAUGES.contains(&name) => Reader::Window,
            name if OF_ANY.contains(&name) => Reader::Any,
            _ => reader,
        };
        for argument in &call.args.args {
            if name == "histogram_quantile" {
                self.buckets(argument)?;
            }
            self.expression(argument, within)?;
        }
        Ok(())
    }

    fn aggregate(&mut self, aggregate: &AggregateExpr, reader: Reader<'_>) -> Result<(), Fault> {
        let before = std::mem::take(&mut self.names);
        self.expression(&aggregate.expr, reader)?;
        let within = std::mem::replace(&mut self.names, before);
        for name in &within {
            let Some(series) = self.metrics.series(name) else {
                continue;
            };
            for label in labels(aggregate.modifier.as_ref()) {
                if !series.has_label(label) {
                    return Err(Fault::Label(name.clone(), label.to_owned()));
                }
            }
        }
        self.names.extend(within);
        Ok(())
    }

    /// Checks what `histogram_quantile` reads: buckets, whose limits no aggregation drops.
    fn buckets(&self, expression: &Expr) -> Result<(), Fault> {
        match expression {
            Expr::Aggregate(aggregate) => {
                let keeps = match &aggregate.modifier {
                    Some(LabelModifier::Include(kept)) => kept.labels.iter().any(|it| it == "le"),
                    Some(LabelModifier::Exclude(gone)) => gone.labels.iter().all(|it| it != "le"),
                    None => false,
                };
                match keeps {
                    true => self.buckets(&aggregate.expr),
                    false => Err(Fault::LimitsDropped),
                }
            }
            Expr::Paren(paren) => self.buckets(&paren.expr),
            Expr::Call(call) => call.args.args.iter().try_for_each(|it| self.buckets(it)),
            Expr::VectorSelector(selector) => self.is_buckets(selector),
            Expr::MatrixSelector(MatrixSelector { vs, .. }) => self.is_buckets(vs),
            _ => Ok(()),
        }
    }

    fn is_buckets(&self, selector: &VectorSelector) -> Result<(), Fault> {
        let name = selector.name.as_deref().ok_or(Fault::Nameless)?;
        match self.metrics.series(name) {
            Some(Series::Buckets(_)) => Ok(()),
            _ => Err(Fault::NotBuckets(name.to_owned())),
        }
    }

    fn selector(&mut self, selector: &VectorSelector, reader: Reader<'_>) -> Result<(), Fault> {
        let name = selector.name.as_deref().ok_or(Fault::Nameless)?;
        let series = self.metrics.series(name);
        let series = series.ok_or_else(|| Fault::Unknown(name.to_owned()))?;
        let alternatives = selector.matchers.or_matchers.iter().flatten();
        for matcher in selector.matchers.matchers.iter().chain(alternatives) {
            if !series.has_label(&matcher.name) {
                return Err(Fault::Label(name.to_owned(), matcher.name.clone()));
            }
        }
        match (reader, series.is_counted()) {
            (Reader::Rate(function), false) => {
                return Err(Fault::NotCounted(name.to_owned(), function.to_owned()));
            }
            (Reader::Nothing | Reader::Window, true) => {
                return Err(Fault::Counted(name.to_owned()));
            }
            _ => {}
        }
        self.names.insert(name.to_owned());
        Ok(())
    }
}

/// The labels that an aggregation keeps or drops.
fn labels(modifier: Option<&LabelModifier>) -> impl Iterator<Item = &str> {
    let labels = modifier.map(|it| it.labels().labels.iter());
    labels.into_iter().flatten().map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        Metrics::parse(
            "| `a_total` | counter | `kind` | A |\n\
             | `g` | gauge |  | G |\n\
             | `h_seconds` | histogram | `share` | H |\n",
        )
    }

    #[test]
    fn good_queries_name_their_series() {
        for (query, expected) in [
            (
                "sum by (kind) (rate(a_total{kind=\"x\"}[$__rate_interval]))",
                "a_total",
            ),
            ("increase(a_total[1h]) > 0", "a_total"),
            ("max(g) or vector(0)", "g"),
            ("time() - min(g > 0) > 300", "g"),
            ("deriv(g[5m])", "g"),
            ("absent(a_total)", "a_total"),
            (
                "histogram_quantile(0.9, sum by (le, share) (rate(h_seconds_bucket[5m])))",
                "h_seconds_bucket",
            ),
            (
                "histogram_quantile(0.9, sum without (pod) (rate(h_seconds_bucket[5m])))",
                "h_seconds_bucket",
            ),
            (
                "rate(h_seconds_sum[5m]) / rate(h_seconds_sum[5m])",
                "h_seconds_sum",
            ),
        ] {
            let names = check(query, &metrics());
            assert_eq!(names, Ok([expected.to_owned()].into()), "{query}");
        }
    }

    #[test]
    fn bad_queries_are_refused_with_the_reason() {
        for (query, expected) in [
            ("rate(b_total[5m])", "b_total: no such series"),
            ("rate(g[5m])", "g: not a counter, read by rate"),
            ("increase(g[5m])", "g: not a counter, read by increase"),
            (
                "sum(a_total)",
                "a_total: a counter, read without rate or increase",
            ),
            (
                "a_total > 0",
                "a_total: a counter, read without rate or increase",
            ),
            (
                "deriv(a_total[5m])",
                "a_total: a counter, read without rate or increase",
            ),
            ("h_seconds", "h_seconds: no such series"),
            (
                "histogram_quantile(0.9, rate(a_total[5m]))",
                "a_total: no buckets, read by histogram_quantile",
            ),
            (
                "histogram_quantile(0.9, rate(h_seconds_count[5m]))",
                "h_seconds_count: no buckets, read by histogram_quantile",
            ),
            (
                "histogram_quantile(0.9, sum by (share) (rate(h_seconds_bucket[5m])))",
                "histogram_quantile: an aggregation drops the label le",
            ),
            (
                "histogram_quantile(0.9, sum(rate(h_seconds_bucket[5m])))",
                "histogram_quantile: an aggregation drops the label le",
            ),
            (
                "histogram_quantile(0.9, h_seconds_bucket)",
                "h_seconds_bucket: a counter, read without rate or increase",
            ),
            ("g{kind=\"x\"}", "g: no label kind"),
            ("sum by (kind) (g)", "g: no label kind"),
            ("{kind=\"x\"}", "a selector without the name of a metric"),
            ("vector(1)", "no metric"),
        ] {
            let fault = check(query, &metrics()).unwrap_err().to_string();
            assert_eq!(fault, expected, "{query}");
        }
        let fault = check("sum(", &metrics()).unwrap_err();
        assert!(matches!(fault, Fault::Syntax(_)), "{fault}");
    }
}
