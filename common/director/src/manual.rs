// SPDX-License-Identifier: Apache-2.0

//! The manual page portolan.yaml(5), from the schema: each field with its path, its values and what it means.

use std::collections::BTreeSet;

use roff::{Inline, Roff, bold, italic, roman};
use serde_json::Value;

use crate::schema::{DIRECTOR, LOAD_BALANCER};

/// The page, as groff reads it.
#[must_use]
pub fn manual() -> String {
    let mut roff = Roff::new();
    roff.control("TH", ["portolan.yaml", "5", "", "Portolan", "File formats"]);
    section(&mut roff, "NAME");
    roff.text([roman(
        "portolan.yaml - load balancers and settings of a director",
    )]);
    section(&mut roff, "DESCRIPTION");
    for text in INTRODUCTION {
        roff.control("PP", []);
        roff.text([roman(*text)]);
    }
    section(&mut roff, "EXAMPLE");
    roff.control("nf", []);
    roff.text(
        EXAMPLE
            .lines()
            .flat_map(|line| [roman(line), roman("\n")])
            .collect::<Vec<_>>(),
    );
    roff.control("fi", []);
    for (kind, schema) in [("LoadBalancer", &*LOAD_BALANCER), ("Director", &*DIRECTOR)] {
        section(&mut roff, kind);
        let mut page = Page {
            definitions: &schema["$defs"],
            written: BTreeSet::new(),
            roff: &mut roff,
        };
        page.text(schema);
        page.fields("", schema);
    }
    section(&mut roff, "SEE ALSO");
    roff.text([
        bold("portolan-agent"),
        roman("(1), "),
        bold("ipvsadm"),
        roman("(8)"),
    ]);
    roff.render()
}

const INTRODUCTION: &[&str] = &[
    "portolan-agent reads *.yaml, *.yml and *.json of /etc/portolan (its flag --file). A file has objects of the \
     kinds LoadBalancer and Director, and may have Kubernetes objects (Service, EndpointSlice, Node) beside them.",
    "Unknown fields are errors. Durations have a unit: 500ms, 5s, 2m, 1h, 1d. While any file has an error, the last \
     good configuration stays in force. `portolan-agent config check /etc/portolan` prints all errors.",
];

const EXAMPLE: &str = "apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: web}
spec:
  frontends: [{addresses: [192.0.2.10], port: 80}]
  sourceNat: true
  backends:
  - {address: 10.0.0.11, port: 8080, weight: 3}
  - {address: 10.0.0.12, port: 8080}
  checks: [{http: {path: /healthz}}]
";

/// The fields of one kind.
struct Page<'a> {
    definitions: &'a Value,
    /// Definitions that have been written: a second use refers to the first.
    written: BTreeSet<(&'a str, String)>,
    roff: &'a mut Roff,
}

impl<'a> Page<'a> {
    fn text(&mut self, schema: &Value) {
        if let Some(text) = schema["description"].as_str() {
            self.roff.text([roman(text)]);
        }
    }

    /// Writes the fields of an object at a path, which ends with a dot unless it is empty.
    fn fields(&mut self, path: &str, object: &'a Value) {
        let Some(properties) = object["properties"].as_object() else {
            return;
        };
        let required = object["required"].as_array();
        for (name, field) in properties {
            let is_required = required.is_some_and(|names| names.iter().any(|n| n == name));
            self.field(&format!("{path}{name}"), field, is_required);
        }
    }

    fn field(&mut self, path: &str, field: &'a Value, is_required: bool) {
        let (suffix, inner) = match field.get("items") {
            Some(items) => ("[]", items),
            None => ("", field),
        };
        let name = inner["$ref"].as_str().and_then(|r| r.rsplit('/').next());
        let definition = name.map_or(inner, |name| &self.definitions[name]);
        let path = format!("{path}{suffix}");
        self.roff.control("TP", []);
        self.roff
            .text(heading(&path, field, definition, is_required));
        self.text(field);
        self.choices(definition);
        if definition["properties"].is_null() {
            return;
        }
        let first = self.written.iter().find(|(of, _)| Some(*of) == name);
        if let Some((_, first)) = first {
            let text = format!("Its fields are those of {first}.");
            self.roff.control("br", []);
            self.roff.text([roman(text)]);
            return;
        }
        self.written.extend(name.map(|name| (name, path.clone())));
        self.fields(&format!("{path}."), definition);
    }

    /// Writes the values of an enumeration.
    fn choices(&mut self, schema: &Value) {
        for choice in schema["oneOf"].as_array().into_iter().flatten() {
            let Some(value) = choice["const"].as_str() else {
                continue;
            };
            let meaning = choice["description"].as_str().unwrap_or_default();
            self.roff.control("br", []);
            self.roff
                .text([italic(value), roman(format!(": {meaning}"))]);
        }
    }
}

fn section(roff: &mut Roff, name: &str) {
    roff.control("SH", [name]);
}

/// The line above a field's text: its path, its kind of value, and what applies without it.
fn heading(path: &str, field: &Value, definition: &Value, is_required: bool) -> Vec<Inline> {
    let mut notes = vec![kind(definition)];
    notes.extend(range(definition));
    if let Some(most) = field["maxItems"].as_u64() {
        notes.push(format!("at most {most}"));
    }
    if is_required {
        notes.push("required".to_owned());
    }
    if let Some(default) = field.get("default").and_then(plain) {
        notes.push(format!("default {default}"));
    }
    vec![bold(path), roman(format!(" ({})", notes.join(", ")))]
}

fn kind(schema: &Value) -> String {
    let expected = schema["x-expected"].as_str();
    let of_enumeration = schema["oneOf"].as_array().map(|_| "a word");
    let kind = expected.or(of_enumeration).or(schema["type"].as_str());
    kind.unwrap_or("any value").to_owned()
}

fn range(schema: &Value) -> Option<String> {
    let bound = |name: &str| schema[name].as_i64();
    match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => Some(format!("{least} to {most}")),
        (Some(least), None) => Some(format!("{least} or more")),
        _ => None,
    }
}

/// A default of one word; those of objects follow from their fields.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    /// The paths of all fields, each definition taken once.
    fn names(schema: &Value, found: &mut BTreeSet<String>) {
        let properties: Option<&Map<String, Value>> = schema["properties"].as_object();
        found.extend(
            properties
                .into_iter()
                .flat_map(|fields| fields.keys().cloned()),
        );
        let definitions = schema["$defs"].as_object();
        for definition in definitions.into_iter().flat_map(|all| all.values()) {
            names(definition, found);
        }
    }

    #[test]
    fn each_field_of_the_schema_is_on_the_page() {
        let page = manual();
        let mut all = BTreeSet::new();
        names(&LOAD_BALANCER, &mut all);
        names(&DIRECTOR, &mut all);
        assert!(all.len() > 100, "{}", all.len());
        for name in all {
            let ends = [format!("{name}\\fR"), format!("{name}[]\\fR")];
            assert!(ends.iter().any(|end| page.contains(end)), "{name}");
        }
    }

    #[test]
    fn a_field_has_its_path_bounds_and_default() {
        let page = manual();
        for expected in [
            "\\fBspec.backends[].weight\\fR (integer, 0 to 65535, default 1)",
            "\\fBspec.backends[].address\\fR (an IPv4 or IPv6 address, required)",
            "Its fields are those of spec.backends[].checks[].",
            "\\fIDrain\\fR: No new connections",
        ] {
            assert!(page.contains(expected), "{expected}\n{page}");
        }
    }

    #[test]
    fn the_example_is_good() {
        let file = crate::File {
            name: "example.yaml",
            text: EXAMPLE,
        };
        let answer = crate::check_files(&[file], &crate::Already::default(), None);
        assert_eq!(answer.code, 0, "{}", answer.text);
    }
}
