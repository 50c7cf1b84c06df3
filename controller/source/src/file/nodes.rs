// SPDX-License-Identifier: Apache-2.0

//! The Nodes of a file as they are written there, for a store of objects.

use std::path::Path;

use portolan_catalog::{FieldProblem, Kind, Reason};
use serde_json::Value;

use super::document::{self, Document};
use super::problem::FileProblem;
use super::syntax::{self, Located};
use crate::objects::{self, Converted, Scope};

/// The Nodes of a YAML or JSON file, with their names. Other documents are left out, broken ones too.
///
/// # Errors
/// All that is wrong with its Nodes.
pub fn nodes(
    file: &Path,
    text: &str,
    scope: &Scope,
) -> Result<Vec<(String, Value)>, Vec<FileProblem>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let is_json = file.extension().is_some_and(|name| name == "json");
    let documents = match is_json {
        true => vec![Document::whole(text)],
        false => document::split(text),
    };
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for document in documents {
        let value = match is_json {
            true => syntax::json(document.text),
            false => syntax::yaml(document.text),
        };
        let Ok(value) = value else { continue };
        if value.get("kind").and_then(Value::as_str) != Some("Node") {
            continue;
        }
        match node(&value, scope) {
            Ok(name) => found.push((name, value)),
            Err(wrong) => {
                let located = Located::new(document);
                problems.extend(wrong.into_iter().map(|problem| {
                    let position = located.find(&problem.field);
                    let mut placed =
                        FileProblem::new(file, position, problem.field, problem.message);
                    placed.line = placed.line.or(Some(document.first_line));
                    placed
                }));
            }
        }
    }
    match problems.is_empty() {
        true => Ok(found),
        false => Err(problems),
    }
}

/// The name of a Node without a problem.
fn node(value: &Value, scope: &Scope) -> Result<String, Vec<FieldProblem>> {
    let expected = objects::api_version(Kind::Node);
    if value.get("apiVersion").and_then(Value::as_str) != Some(expected) {
        let message = format!("expected {expected}");
        return Err(vec![FieldProblem::new(
            "apiVersion",
            Reason::Malformed,
            message,
        )]);
    }
    match objects::convert(Kind::Node, value, scope) {
        Converted::Put { object, problems } if problems.is_empty() => {
            Ok(object.reference().key.name.to_string())
        }
        Converted::Put { problems, .. } | Converted::Refused { problems, .. } => Err(problems),
        Converted::NotOurs(object) => Ok(object.key.name.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_taken_as_they_are_and_problems_have_a_place() {
        let read = |text| nodes(Path::new("a.yaml"), text, &Scope::default());
        let good =
            "kind: Service\n---\napiVersion: v1\nkind: Node\nmetadata: {name: a, labels: {b: c}}\n";
        let found = read(good).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "a");
        assert_eq!(found[0].1["metadata"]["labels"]["b"], "c");
        let bad = good.to_owned() + "spec:\n  podCIDRs: [10.0.0.0/33]\n";
        let problems = read(&bad).unwrap_err();
        let line = problems[0].to_string();
        assert!(
            line.starts_with("a.yaml:7:14: spec.podCIDRs[0]: "),
            "{line}"
        );
        let problems = read(&bad.replace("apiVersion: v1", "apiVersion: v2")).unwrap_err();
        assert!(problems[0].to_string().contains("apiVersion: expected v1"));
    }
}
