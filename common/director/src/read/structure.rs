// SPDX-License-Identifier: Apache-2.0

//! The structure of a document: fields, types, ranges, patterns.
//!
//! Reads the part of JSON Schema that [`crate::schema`] makes, and finds all problems at once.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::Regex;
use serde_json::Value as Json;

use super::node::{Key, Node, Value};
use super::path::Path;
use crate::problem::{Position, alternatives};

/// A field whose structure is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The place in the file.
    pub at: Position,
    /// The path of the field.
    pub field: String,
    /// Description of the fault and of the expected value.
    pub message: String,
}

/// All that is wrong with a document's structure, by a schema of [`strict_schema`].
///
/// [`strict_schema`]: crate::strict_schema
#[must_use]
pub fn check(schema: &Json, document: &Node) -> Vec<Misfit> {
    let mut checker = Checker {
        root: schema,
        misfits: Vec::new(),
    };
    checker.value(schema, document, &Path::default());
    checker.misfits
}

struct Checker<'s> {
    root: &'s Json,
    misfits: Vec<Misfit>,
}

impl<'s> Checker<'s> {
    fn value(&mut self, schema: &'s Json, node: &Node, path: &Path) {
        let schema = self.resolved(schema);
        if let Some(allowed) = choices(schema) {
            if !node.text().is_some_and(|text| allowed.contains(&text)) {
                self.unexpected(schema, node, path);
            }
            return;
        }
        if let Some(Json::Array(branches)) = schema.get("anyOf")
            && !branches.iter().any(|branch| self.matches(branch, node))
        {
            self.unexpected(schema, node, path);
            return;
        }
        match schema.get("type").and_then(Json::as_str) {
            Some("object") => self.object(schema, node, path),
            Some("array") => self.array(schema, node, path),
            Some("string") => self.string(schema, node, path),
            Some("integer") => self.integer(schema, node, path),
            Some("boolean") if !matches!(node.value, Value::Bool(_)) => {
                self.unexpected(schema, node, path);
            }
            _ => {
                let format = schema.get("format").and_then(Json::as_str);
                if !format.is_none_or(|format| has_format(format, node.text().unwrap_or_default()))
                {
                    self.unexpected(schema, node, path);
                }
            }
        }
    }

    fn object(&mut self, schema: &'s Json, node: &Node, path: &Path) {
        let Value::Map(fields) = &node.value else {
            self.unexpected(schema, node, path);
            return;
        };
        let properties = schema.get("properties").and_then(Json::as_object);
        for (key, field) in fields {
            let known = properties.and_then(|properties| properties.get(&key.name));
            let further = schema
                .get("additionalProperties")
                .filter(|further| further.is_object());
            match known.or(further) {
                Some(schema) => self.value(schema, field, &path.field(&key.name)),
                None => self.unknown(schema, key, path),
            }
        }
        let required = schema
            .get("required")
            .and_then(Json::as_array)
            .into_iter()
            .flatten();
        for name in required.filter_map(Json::as_str) {
            if fields.iter().all(|(key, _)| key.name != name) {
                let expected = properties
                    .and_then(|properties| properties.get(name))
                    .map_or_else(String::new, |schema| self.expected(schema));
                self.report(
                    node.at,
                    &path.field(name),
                    format!("missing: expected {expected}"),
                );
            }
        }
    }

    fn unknown(&mut self, schema: &Json, key: &Key, path: &Path) {
        let properties = schema.get("properties").and_then(Json::as_object);
        let known: Vec<&String> = properties
            .into_iter()
            .flat_map(|known| known.keys())
            .collect();
        let message = match closest(&key.name, &known) {
            Some(name) => format!("unknown field: did you mean \"{name}\"?"),
            None if known.is_empty() => String::from("unknown field: expected no fields"),
            None => {
                let known: Vec<String> = known.into_iter().cloned().collect();
                format!("unknown field: expected {}", alternatives(&known))
            }
        };
        self.report(key.at, &path.field(&key.name), message);
    }

    fn array(&mut self, schema: &'s Json, node: &Node, path: &Path) {
        let Value::List(items) = &node.value else {
            self.unexpected(schema, node, path);
            return;
        };
        let bound = |name| schema.get(name).and_then(Json::as_u64);
        let length = items.len() as u64;
        let fits = bound("minItems").is_none_or(|least| length >= least)
            && bound("maxItems").is_none_or(|most| length <= most);
        if !fits {
            let message = format!("has {length} items: expected {}", self.expected(schema));
            self.report(node.at, path, message);
        }
        for (index, item) in items.iter().enumerate() {
            if let Some(schema) = schema.get("items") {
                self.value(schema, item, &path.item(index));
            }
        }
    }

    fn string(&mut self, schema: &Json, node: &Node, path: &Path) {
        let fits = node.text().is_some_and(|text| {
            let length = text.chars().count() as u64;
            let bound = |name| schema.get(name).and_then(Json::as_u64);
            let pattern = schema.get("pattern").and_then(Json::as_str);
            bound("minLength").is_none_or(|least| length >= least)
                && bound("maxLength").is_none_or(|most| length <= most)
                && pattern.is_none_or(|pattern| matches_pattern(pattern, text))
        });
        if !fits {
            self.unexpected(schema, node, path);
        }
    }

    fn integer(&mut self, schema: &Json, node: &Node, path: &Path) {
        let Value::Integer(number) = node.value else {
            self.unexpected(schema, node, path);
            return;
        };
        let bound = |name| schema.get(name).and_then(as_integer);
        let fits = bound("minimum").is_none_or(|least| number >= least)
            && bound("maximum").is_none_or(|most| number <= most);
        if !fits {
            let expected = range(schema);
            self.report(node.at, path, format!("{number}: expected {expected}"));
        }
    }

    fn unexpected(&mut self, schema: &Json, node: &Node, path: &Path) {
        let message = format!("{node}: expected {}", self.expected(schema));
        self.report(node.at, path, message);
    }

    fn report(&mut self, at: Position, path: &Path, message: String) {
        self.misfits.push(Misfit {
            at,
            field: path.as_str().to_owned(),
            message,
        });
    }

    fn matches(&self, schema: &'s Json, node: &Node) -> bool {
        let mut inner = Checker {
            root: self.root,
            misfits: Vec::new(),
        };
        inner.value(schema, node, &Path::default());
        inner.misfits.is_empty()
    }

    fn resolved(&self, schema: &'s Json) -> &'s Json {
        let name = schema.get("$ref").and_then(Json::as_str);
        name.and_then(|name| self.root.pointer(name.strip_prefix('#')?))
            .unwrap_or(schema)
    }

    /// A schema in words.
    fn expected(&self, schema: &Json) -> String {
        if let Some(words) = schema.get("x-expected").and_then(Json::as_str) {
            return words.to_owned();
        }
        if let Some(allowed) = choices(schema) {
            let allowed: Vec<String> = allowed.into_iter().map(quoted).collect();
            return alternatives(&allowed);
        }
        let kind = schema.get("type").and_then(Json::as_str);
        match kind {
            Some("array") => self.expected_list(schema),
            Some("string") => String::from("a text") + &length(schema),
            Some("integer") => format!("a whole number, {}", range(schema)),
            Some("boolean") => String::from("true or false"),
            _ => String::from("fields"),
        }
    }

    fn expected_list(&self, schema: &Json) -> String {
        let bound = |name| schema.get(name).and_then(Json::as_u64);
        match (bound("minItems"), bound("maxItems")) {
            (Some(least), Some(most)) if least == most => format!("a list of {least}"),
            (Some(least), Some(most)) => format!("a list of {least} to {most}"),
            (None, Some(most)) => format!("a list of at most {most}"),
            (Some(least), None) => format!("a list of at least {least}"),
            (None, None) => String::from("a list"),
        }
    }
}

/// The texts that an enumeration allows.
fn choices(schema: &Json) -> Option<Vec<&str>> {
    if let Some(only) = schema.get("const") {
        return Some(vec![only.as_str()?]);
    }
    if let Some(Json::Array(values)) = schema.get("enum") {
        return values.iter().map(Json::as_str).collect();
    }
    let Some(Json::Array(branches)) = schema.get("oneOf") else {
        return None;
    };
    let allowed: Option<Vec<Vec<&str>>> = branches.iter().map(choices).collect();
    allowed.map(|allowed| allowed.concat())
}

/// A choice as YAML spells it: in quotes if it would be a number otherwise.
fn quoted(choice: &str) -> String {
    if choice.parse::<f64>().is_ok() {
        format!("{choice:?}")
    } else {
        choice.to_owned()
    }
}

fn length(schema: &Json) -> String {
    let bound = |name| schema.get(name).and_then(Json::as_u64);
    match (bound("minLength"), bound("maxLength")) {
        (Some(least), Some(most)) => format!(" of {least} to {most} characters"),
        (None, Some(most)) => format!(" of at most {most} characters"),
        _ => String::new(),
    }
}

fn range(schema: &Json) -> String {
    let bound = |name| schema.get(name).and_then(as_integer);
    match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (Some(least), None) => format!("at least {least}"),
        _ => String::from("any"),
    }
}

/// Bounds come as floating-point numbers from attributes.
fn as_integer(value: &Json) -> Option<i128> {
    value
        .as_i64()
        .map(i128::from)
        .or_else(|| value.to_string().parse::<f64>().ok().map(truncated))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "bounds are whole numbers within 64 bits"
)]
fn truncated(number: f64) -> i128 {
    number as i128
}

fn has_format(format: &str, text: &str) -> bool {
    match format {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        _ => true,
    }
}

/// Patterns are few and used for each field, so that they are compiled once.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    static COMPILED: LazyLock<Mutex<HashMap<String, Option<Regex>>>> =
        LazyLock::new(Mutex::default);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if !compiled.contains_key(pattern) {
        compiled.insert(pattern.to_owned(), Regex::new(pattern).ok());
    }
    let regex = compiled.get(pattern).and_then(Option::as_ref);
    regex.is_some_and(|regex| regex.is_match(text))
}

/// The known name that an unknown one was meant to be.
fn closest<'k>(name: &str, known: &[&'k String]) -> Option<&'k str> {
    let lower = name.to_lowercase();
    known
        .iter()
        .map(|known| {
            (
                strsim::damerau_levenshtein(&lower, &known.to_lowercase()),
                known.as_str(),
            )
        })
        .filter(|(distance, known)| *distance <= known.len().max(3) / 3)
        .min()
        .map(|(_, known)| known)
}
