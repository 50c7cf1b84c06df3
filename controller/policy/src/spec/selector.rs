// SPDX-License-Identifier: Apache-2.0

//! Selectors of clusters, nodes and Services.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::{expressions, key, patterns, rule};

/// Selects clusters or nodes by name, and by labels and properties together. All parts that are
/// given must hold; an empty selector selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SelectorSpec {
    /// Names; a `*` at the end stands for any rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-crd" = patterns()))]
    pub names: Vec<String>,
    /// Keys with the value that they must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-crd" = expressions()))]
    pub match_expressions: Vec<ExpressionSpec>,
}

/// One requirement of a selector, as in Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-crd" = rule(
    "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 \
     : !has(self.values) || size(self.values) == 0",
    "expected values with In and NotIn, and none otherwise",
)))]
pub struct ExpressionSpec {
    /// The key of a label or property.
    #[schemars(extend("x-crd" = key()))]
    pub key: String,
    /// The relation of its value to the values.
    #[schemars(extend("x-crd" = serde_json::json!({"maxLength": 12})))]
    pub operator: Operator,
    /// Values; for `In` and `NotIn` alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// The relation of a key's value to the values of a requirement.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[schemars(inline)]
pub enum Operator {
    /// The key's value is one of the values.
    In,
    /// The key is absent, or its value is none of the values.
    NotIn,
    /// The key is there.
    Exists,
    /// The key is absent.
    DoesNotExist,
}

/// Selects Services. All parts that are given must hold; an empty one selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-crd" = rule(
    "!has(self.selector) || !has(self.selector.names) || size(self.selector.names) == 0",
    "selector.names means nothing in the labels of Services: expected names",
)))]
pub struct ServicesSpec {
    /// Namespaces; a `*` at the end stands for any rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-crd" = patterns()))]
    pub namespaces: Vec<String>,
    /// Names; a `*` at the end stands for any rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-crd" = patterns()))]
    pub names: Vec<String>,
    /// Labels of the Service.
    #[serde(default)]
    pub selector: SelectorSpec,
}
