// SPDX-License-Identifier: Apache-2.0

//! The fields of `ExportPolicy` and `ImportPolicy`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SelectorSpec, ServicesSpec};

/// Action of a policy.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[schemars(inline)]
pub enum Action {
    /// It allows.
    #[default]
    Allow,
    /// It denies.
    Deny,
}

/// `ExportPolicy.spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExportPolicySpec {
    /// Of several policies for an export the one with the highest priority applies.
    #[serde(default)]
    pub priority: i32,
    /// The exporting clusters.
    #[serde(default)]
    pub clusters: SelectorSpec,
    /// The Services.
    #[serde(default)]
    pub services: ServicesSpec,
    /// Action of the policy.
    #[serde(default)]
    pub action: Action,
    /// Whether the Services are exported without a ServiceExport.
    #[serde(default)]
    pub automatic: bool,
    /// The clusters that may import them.
    #[serde(default)]
    pub to: SelectorSpec,
}

/// `ImportPolicy.spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImportPolicySpec {
    /// Of several policies for an import the one with the highest priority applies.
    #[serde(default)]
    pub priority: i32,
    /// The importing clusters.
    #[serde(default)]
    pub clusters: SelectorSpec,
    /// The exporting clusters.
    #[serde(default)]
    pub from: SelectorSpec,
    /// The Services, by the names that they are exported under.
    #[serde(default)]
    pub services: ServicesSpec,
    /// Action of the policy.
    #[serde(default)]
    pub action: Action,
    /// The namespace that they have in the importing clusters, if another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[schemars(extend("x-expected" = "at most 63 lower-case letters, digits and \"-\""))]
    pub namespace_as: Option<String>,
    /// The nodes that get the virtual address.
    #[serde(default)]
    pub nodes: SelectorSpec,
}
