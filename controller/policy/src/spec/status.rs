// SPDX-License-Identifier: Apache-2.0

//! The fields of a `Cluster` that the controller writes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `Cluster.status`, which the replica that leads writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The phase of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<PhaseName>,
    /// The part of its share that it gets in imports, in twentieths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 20))]
    pub step: Option<u32>,
    /// The time of the last contact with its source, to a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = serde_json::json!({"format": "date-time"})))]
    pub last_contact: Option<String>,
    /// Times that it was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losses: Option<i64>,
    /// Numbers of its exports and imports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<ClusterCounts>,
    /// Conditions: `Accepted`, `Connected` and `SelfPreservation`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-crd" = serde_json::json!({
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })))]
    pub conditions: Vec<Condition>,
}

/// A phase of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
#[expect(missing_docs, reason = "the states of docs/clusters.md")]
pub enum PhaseName {
    Connecting,
    Ready,
    Stale,
    Lost,
    Returning,
    Draining,
    Drained,
}

/// Numbers of exports and imports of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterCounts {
    /// Services that it exports.
    #[serde(default)]
    pub exports: i64,
    /// Services that it imports.
    #[serde(default)]
    pub imports: i64,
}

/// A condition, as in Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[schemars(extend("x-crd" = serde_json::json!({"enum": ["True", "False", "Unknown"]})))]
    pub status: String,
    /// The reason in one word.
    pub reason: String,
    /// The reason in words.
    #[serde(default)]
    pub message: String,
    /// The version of the spec that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The time at which the status changed.
    #[schemars(extend("x-crd" = serde_json::json!({"format": "date-time"})))]
    pub last_transition_time: String,
}
