// SPDX-License-Identifier: Apache-2.0

//! Metrics of a registry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::cell;

#[derive(Debug, Default)]
struct Metric {
    help: String,
    kind: String,
    labels: BTreeSet<String>,
}

/// A table of all metrics that a registry encodes. A family without a member is not encoded: a test
/// counts something in each of them first.
///
/// # Panics
/// If a registered metric is not encoded.
#[must_use]
pub fn metrics(registry: &Registry) -> String {
    let mut found: BTreeMap<String, Metric> = BTreeMap::new();
    let mut text = String::new();
    encode(&mut text, registry).expect("metrics can be encoded");
    read(&text, &mut found);
    for name in registered(registry) {
        let is_encoded = found.keys().any(|encoded| encoded.contains(&name));
        assert!(
            is_encoded,
            "{name} has no member: count something in it first"
        );
    }
    let mut page = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for (name, metric) in found {
        let suffix = if metric.kind == "counter" {
            "_total"
        } else {
            ""
        };
        let labels: Vec<String> = metric.labels.iter().map(|it| format!("`{it}`")).collect();
        let labels = labels.join(", ");
        let help = cell(metric.help.trim_end_matches('.'));
        let _ = writeln!(
            page,
            "| `{name}{suffix}` | {} | {labels} | {help} |",
            metric.kind
        );
    }
    page
}

/// The names of all registered metrics, also of families without members, without prefixes and units.
fn registered(registry: &Registry) -> Vec<String> {
    let shown = format!("{registry:?}");
    let names = shown.split("Descriptor { name: \"").skip(1);
    let names = names.filter_map(|rest| rest.split_once('"'));
    names.map(|(name, _)| name.to_owned()).collect()
}

fn read(text: &str, found: &mut BTreeMap<String, Metric>) {
    let mut current = String::new();
    for line in text.lines() {
        if let Some((name, help)) = comment(line, "# HELP ") {
            name.clone_into(&mut current);
            help.clone_into(&mut found.entry(current.clone()).or_default().help);
        } else if let Some((name, kind)) = comment(line, "# TYPE ") {
            let metric = found.entry(name.to_owned()).or_default();
            kind.clone_into(&mut metric.kind);
        } else if let Some((_, labels)) = line.split_once('{') {
            let labels = labels.split("=\"").filter_map(|part| {
                let name = part.rsplit(['"', ',', '{']).next()?;
                let is_label = name != "le" && !name.is_empty() && !part.ends_with('"');
                is_label.then(|| name.to_owned())
            });
            let metric = found.entry(current.clone()).or_default();
            metric
                .labels
                .extend(labels.filter(|name| !name.contains(['}', ' '])));
        }
    }
}

fn comment<'t>(line: &'t str, prefix: &str) -> Option<(&'t str, &'t str)> {
    line.strip_prefix(prefix)?.split_once(' ')
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::{Histogram, linear_buckets};
    use prometheus_client::registry::Registry;

    use super::metrics;

    #[test]
    #[should_panic(expected = "problems has no member")]
    fn a_family_without_a_member_is_noticed() {
        let mut registry = Registry::default();
        let family = Family::<[(&str, &str); 1], Counter>::default();
        registry
            .sub_registry_with_prefix("a")
            .register("problems", "Problems", family);
        drop(metrics(&registry));
    }

    #[test]
    fn names_types_and_labels_are_those_of_the_encoding() {
        let mut registry = Registry::default();
        let family = Family::<[(&str, &str); 2], Counter>::default();
        family
            .get_or_create(&[("kind", "a"), ("reason", "b")])
            .inc();
        registry.register("problems", "Problems", family);
        registry.register("depth", "Depth", Gauge::<i64>::default());
        registry.register("wait", "Wait", Histogram::new(linear_buckets(1.0, 1.0, 3)));
        let page = metrics(&registry);
        let lines: Vec<&str> = page.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| `depth` | gauge |  | Depth |",
                "| `problems_total` | counter | `kind`, `reason` | Problems |",
                "| `wait` | histogram |  | Wait |",
            ]
        );
    }
}
