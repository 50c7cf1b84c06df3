// SPDX-License-Identifier: Apache-2.0

//! Values of the chart, and their text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

/// Values by path, each with the field that it comes from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Values(BTreeMap<String, (Value, &'static str)>);

impl Values {
    pub(crate) fn set(&mut self, path: &str, value: Value, field: &'static str) {
        self.0.insert(path.to_owned(), (value, field));
    }

    /// The value at a path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.0.get(path).map(|(value, _)| value)
    }

    /// Returns `true` if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The values as one object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut root = Value::Null;
        for (path, (value, _)) in &self.0 {
            let mut place = &mut root;
            for name in path.split('.') {
                place = &mut place[name];
            }
            *place = value.clone();
        }
        root
    }
}

/// The text of values.yaml; a comment on each line names the field that the value comes from.
#[must_use]
pub fn render(values: &Values) -> String {
    let mut text = String::from("# Values of the chart that differ from its defaults.\n");
    if values.is_empty() {
        text.push_str("{}\n");
    }
    let mut open: Vec<&str> = Vec::new();
    for (path, (value, field)) in &values.0 {
        let mut names: Vec<&str> = path.split('.').collect();
        let last = names.pop().unwrap_or_default();
        let shared = open.iter().zip(&names).take_while(|(a, b)| a == b).count();
        for (depth, name) in names.iter().enumerate().skip(shared) {
            let _ = writeln!(text, "{}{name}:", "  ".repeat(depth));
        }
        // A text in JSON is one in YAML, and needs no rules of its own for quotes.
        let _ = writeln!(
            text,
            "{}{last}: {value}  # {field}",
            "  ".repeat(names.len())
        );
        open = names;
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_nested_and_name_their_field() {
        let mut values = Values::default();
        assert_eq!(render(&values).lines().last(), Some("{}"));
        values.set("agent.kernel.strictARP", true.into(), "ipvs.strictARP");
        values.set("agent.kernel.timeouts.tcp", "15m".into(), "ipvs.tcpTimeout");
        values.set(
            "agent.kernel.clusterCIDRs",
            json!(["10.0.0.0/8"]),
            "clusterCIDR",
        );
        values.set("log.level", "debug".into(), "logging.verbosity");
        let expected = "\
agent:
  kernel:
    clusterCIDRs: [\"10.0.0.0/8\"]  # clusterCIDR
    strictARP: true  # ipvs.strictARP
    timeouts:
      tcp: \"15m\"  # ipvs.tcpTimeout
log:
  level: \"debug\"  # logging.verbosity
";
        let text = render(&values);
        assert_eq!(text.split_once('\n').unwrap().1, expected);
        let read = portolan_source::file::read_yaml(&text).unwrap();
        assert_eq!(read, values.to_json());
    }
}
