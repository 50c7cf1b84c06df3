// SPDX-License-Identifier: Apache-2.0

//! The definitions of the resources, from the schemas of [`spec`](crate::spec).
//!
//! An API server takes structural schemas alone: without references, with one type for each value, and without
//! `additionalProperties: false` beside properties. It has no defaults from here: a field that is absent stays absent,
//! and means what it means in a file.

use portolan_director::strict_schema;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use crate::Kind;
use crate::spec::bounds::rules;
use crate::spec::{
    API_GROUP, ClusterSetSpec, ClusterSpec, ClusterStatus, ExportPolicySpec, GROUP_VERSION,
    ImportPolicySpec, TrafficPolicySpec,
};

/// Fields of a schema that an API server takes as they are.
const TAKEN: [&str; 15] = [
    "description",
    "enum",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
];

/// The id of a Cluster, as a rule spells it.
const SAME_ID: &str = "(has(self.spec.id) ? self.spec.id : self.metadata.name) \
                       == (has(oldSelf.spec.id) ? oldSelf.spec.id : oldSelf.metadata.name)";

impl Kind {
    /// The name of its resource.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::ClusterSet => "clustersets",
            Self::Cluster => "clusters",
            Self::ExportPolicy => "exportpolicies",
            Self::ImportPolicy => "importpolicies",
            Self::TrafficPolicy => "trafficpolicies",
        }
    }

    fn spec(self) -> Value {
        match self {
            Self::ClusterSet => structural::<ClusterSetSpec>(),
            Self::Cluster => structural::<ClusterSpec>(),
            Self::ExportPolicy => structural::<ExportPolicySpec>(),
            Self::ImportPolicy => structural::<ImportPolicySpec>(),
            Self::TrafficPolicy => structural::<TrafficPolicySpec>(),
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::ClusterSet => "The set of clusters and its defaults. There is one.",
            Self::Cluster => "A member of the set of clusters.",
            Self::ExportPolicy => "Services that clusters may export, and to whom.",
            Self::ImportPolicy => "Services that clusters import, and from whom.",
            Self::TrafficPolicy => "Distribution of the connections to an import among clusters.",
        }
    }

    fn columns(self) -> Value {
        let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
        let age = column("Age", "date", ".metadata.creationTimestamp");
        match self {
            Self::ClusterSet => json!([age]),
            Self::Cluster => json!([
                column("Phase", "string", ".status.phase"),
                column("Step", "integer", ".status.step"),
                column("Contact", "date", ".status.lastContact"),
                age,
            ]),
            Self::ExportPolicy | Self::ImportPolicy | Self::TrafficPolicy => {
                json!([column("Priority", "integer", ".spec.priority"), age])
            }
        }
    }
}

/// The definitions of all kinds, as an API server takes them.
#[must_use]
pub fn definitions() -> Vec<Value> {
    Kind::ALL.map(definition).into()
}

fn definition(kind: Kind) -> Value {
    let plural = kind.plural();
    let mut of_version = json!({
        "name": GROUP_VERSION,
        "served": true,
        "storage": true,
        "schema": {"openAPIV3Schema": schema(kind)},
        "additionalPrinterColumns": kind.columns(),
    });
    if kind == Kind::Cluster {
        of_version["subresources"] = json!({"status": {}});
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{API_GROUP}")},
        "spec": {
            "group": API_GROUP,
            "scope": "Cluster",
            "names": {
                "kind": kind.as_str(),
                "listKind": format!("{kind}List"),
                "plural": plural,
                "singular": kind.as_str().to_ascii_lowercase(),
            },
            "versions": [of_version],
        },
    })
}

fn schema(kind: Kind) -> Value {
    let name = (
        "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63",
        "metadata.name: expected at most 63 lower-case letters, digits and \"-\"",
    );
    let id = (SAME_ID, "spec.id: the id of a cluster never changes");
    let rules = match kind {
        Kind::Cluster => rules([name, id]),
        _ => rules([name]),
    };
    let mut schema = json!({
        "type": "object",
        "description": kind.description(),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": kind.spec(),
        },
    });
    if kind == Kind::Cluster {
        schema["properties"]["status"] = structural::<ClusterStatus>();
    }
    merge(&mut schema, &rules);
    schema
}

/// The structural schema of a type.
fn structural<T: JsonSchema>() -> Value {
    let root = strict_schema::<T>();
    node(&root, &root)
}

/// The structural schema of `schema`, which is a part of `root`: with the types that it refers to, and without fields
/// that an API server does not take.
fn node(root: &Value, schema: &Value) -> Value {
    let mut all = Map::new();
    let reference = schema.get("$ref").and_then(Value::as_str);
    let target = reference.and_then(|name| root.pointer(name.strip_prefix('#')?));
    // The schema of a field goes before that of its type.
    for part in target.into_iter().chain([schema]) {
        all.extend(part.as_object().cloned().unwrap_or_default());
    }
    let of_type = target.and_then(|target| target.get("x-crd"));
    let bounds = of_type.into_iter().chain(schema.get("x-crd"));
    let mut found = choices(&all);
    for (name, value) in &all {
        let value = match (name.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                let properties = properties.iter();
                let properties = properties.map(|(name, one)| (name.clone(), node(root, one)));
                Value::Object(properties.collect())
            }
            ("items", value) => node(root, value),
            ("minimum" | "maximum", value) if is_bound(&all) => whole(value),
            ("minimum" | "maximum", _) => continue,
            ("additionalProperties", Value::Object(_)) => node(root, value),
            ("format", value) if *value == json!("int32") || *value == json!("int64") => {
                value.clone()
            }
            (taken, value) if TAKEN.contains(&taken) => value.clone(),
            _ => continue,
        };
        found.entry(name.clone()).or_insert(value);
    }
    let mut found = Value::Object(found);
    bounds.for_each(|bounds| merge(&mut found, bounds));
    found
}

/// Choices between values: `oneOf` constants are an `enum`, a number or a text is a type of its own.
fn choices(schema: &Map<String, Value>) -> Map<String, Value> {
    let branches = |name| schema.get(name).and_then(Value::as_array);
    let found = if let Some(branches) = branches("oneOf") {
        let constants = branches.iter().flat_map(|branch| {
            let listed = branch.get("enum").and_then(Value::as_array);
            listed
                .cloned()
                .unwrap_or_else(|| branch.get("const").cloned().into_iter().collect())
        });
        json!({"type": "string", "enum": constants.collect::<Vec<_>>()})
    } else if branches("anyOf").is_some() {
        json!({
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": true,
        })
    } else {
        return Map::new();
    };
    found.as_object().cloned().unwrap_or_default()
}

/// Returns `true` if the bounds of a number say more than its type does. Those of 64 bits are no numbers of JSON.
fn is_bound(schema: &Map<String, Value>) -> bool {
    let format = schema.get("format").and_then(Value::as_str);
    format != Some("int64")
}

/// A bound without a fraction: those of attributes are floating-point numbers.
fn whole(value: &Value) -> Value {
    let text = value.as_f64().map(|number| format!("{number:.0}"));
    let number = text.and_then(|text| text.parse::<i64>().ok());
    number.map_or_else(|| value.clone(), Value::from)
}

/// Adds fields to a value, at every depth. Rules are added to those that are there.
fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (name, value) in more {
                match into.get_mut(name) {
                    Some(Value::Array(rules)) if name == "x-kubernetes-validations" => {
                        rules.extend(value.as_array().cloned().unwrap_or_default());
                    }
                    Some(there) => merge(there, value),
                    None => _ = into.insert(name.clone(), value.clone()),
                }
            }
        }
        (into, more) => *into = more.clone(),
    }
}

#[cfg(test)]
mod tests;
