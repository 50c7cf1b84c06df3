// SPDX-License-Identifier: Apache-2.0

//! The JSON schema of the files, from the types of [`document`](crate::document).
//!
//! The parser checks structure against the same schema, so that an editor and the parser accept
//! the same files. `x-expected` says in words what a pattern asks for.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::document::{DirectorDocument, LoadBalancerDocument};

/// The schema of a `LoadBalancer`.
pub(crate) static LOAD_BALANCER: LazyLock<Value> =
    LazyLock::new(strict_schema::<LoadBalancerDocument>);

/// The schema of a `Director`.
pub(crate) static DIRECTOR: LazyLock<Value> = LazyLock::new(strict_schema::<DirectorDocument>);

/// The schema of a document of either kind (JSON Schema 2020-12).
#[must_use]
pub fn schema() -> Value {
    let mut definitions = Map::new();
    let mut kinds = Vec::new();
    for of_kind in [&*LOAD_BALANCER, &*DIRECTOR] {
        let Value::Object(mut root) = of_kind.clone() else {
            continue;
        };
        root.remove("$schema");
        if let Some(Value::Object(inner)) = root.remove("$defs") {
            definitions.extend(inner);
        }
        kinds.push(Value::Object(root));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Portolan director",
        "oneOf": kinds,
        "$defs": definitions,
    })
}

/// The same as text, as `config schema` prints it.
#[must_use]
pub fn schema_text() -> String {
    format!("{:#}\n", schema())
}

/// The JSON schema of a type, as [`read::check`](crate::read::check) takes it: without null, and with
/// bounds for all integers.
#[must_use]
pub fn strict_schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with_transform(RecursiveTransform(Strict));
    settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

/// Takes out null, which stands for nothing in these files, and bounds integers.
#[derive(Debug, Clone)]
struct Strict;

impl Transform for Strict {
    fn transform(&mut self, schema: &mut Schema) {
        let Some(object) = schema.as_object_mut() else {
            return;
        };
        without_null_type(object);
        without_null_branch(object);
        if let Some(Value::Array(values)) = object.get_mut("enum") {
            values.retain(|value| !value.is_null());
        }
        let bounds = match object.get("format").and_then(Value::as_str) {
            Some("uint32") => Some((0, i64::from(u32::MAX))),
            Some("int32") => Some((i64::from(i32::MIN), i64::from(i32::MAX))),
            Some("int64") => Some((i64::MIN, i64::MAX)),
            _ => None,
        };
        if let Some((least, most)) = bounds {
            object.entry("minimum").or_insert_with(|| least.into());
            object.entry("maximum").or_insert_with(|| most.into());
        }
    }
}

fn without_null_type(object: &mut Map<String, Value>) {
    let Some(Value::Array(types)) = object.get_mut("type") else {
        return;
    };
    types.retain(|name| name != "null");
    if let [only] = types.as_slice() {
        let only = only.clone();
        object.insert(String::from("type"), only);
    }
}

/// `anyOf: [X, null]` becomes X.
fn without_null_branch(object: &mut Map<String, Value>) {
    let Some(Value::Array(branches)) = object.get_mut("anyOf") else {
        return;
    };
    let before = branches.len();
    branches.retain(|branch| branch != &json!({"type": "null"}));
    if branches.len() == before {
        return;
    }
    if let [Value::Object(only)] = branches.as_slice() {
        let only = only.clone();
        object.remove("anyOf");
        for (name, value) in only {
            object.entry(name).or_insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_field_may_be_null_and_none_may_be_unknown() {
        let text = schema_text();
        assert!(!text.contains("null"), "{text}");
        let definitions = schema()["$defs"].clone();
        for (name, definition) in definitions.as_object().unwrap() {
            if definition["type"] == "object" {
                assert_eq!(definition["additionalProperties"], json!(false), "{name}");
            }
        }
    }
}
