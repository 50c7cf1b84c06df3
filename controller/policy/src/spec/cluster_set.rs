// SPDX-License-Identifier: Apache-2.0

//! The fields of a `ClusterSet`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Action;
use super::bounds::{duration, percent};

/// `ClusterSet.spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterSetSpec {
    /// Default for an export that no ExportPolicy selects.
    #[serde(default)]
    pub exports: ExportDefaultsSpec,
    /// Default for an import that no ImportPolicy selects.
    #[serde(default)]
    pub imports: ImportDefaultsSpec,
    /// Whether wishes of the Services' owners count where no TrafficPolicy applies.
    #[serde(default)]
    pub owner_hints: OwnerHints,
    /// The EndpointSlices that are written into importing clusters.
    #[serde(default)]
    pub endpoint_slices: EndpointSlices,
    /// The loss of clusters, and their return.
    #[serde(default)]
    pub loss: LossSpec,
    /// Bounds.
    #[serde(default)]
    pub quota: QuotaSpec,
}

/// Default for an export that no ExportPolicy selects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExportDefaultsSpec {
    /// Whether a ServiceExport is enough.
    #[serde(default)]
    pub default: Action,
    /// Whether every Service is exported without a ServiceExport.
    #[serde(default)]
    pub automatic: bool,
}

/// Default for an import that no ImportPolicy selects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImportDefaultsSpec {
    /// Whether it is allowed.
    #[serde(default)]
    pub default: Action,
}

/// Whether wishes of the Services' owners count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum OwnerHints {
    /// They count where no TrafficPolicy applies.
    #[default]
    Honour,
    /// They do not count.
    Ignore,
}

/// The EndpointSlices that are written into importing clusters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum EndpointSlices {
    /// None.
    #[default]
    Off,
    /// Those of headless Services.
    Headless,
    /// Those of all Services.
    All,
}

/// The loss of clusters, and their return.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LossSpec {
    /// Time after which a stale cluster is lost; 0s for never. Default 5m.
    #[serde(default, rename = "staleTTL", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = duration()))]
    pub stale_ttl: Option<String>,
    /// Time that a cluster is in contact before it returns. Default 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = duration()))]
    pub return_after: Option<String>,
    /// Time over which its share rises again. Default 2m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = duration()))]
    pub ramp_up: Option<String>,
    /// Percentage of clusters that may be out of contact at once before none is lost any more.
    /// Default 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = percent()))]
    pub mass_loss: Option<i64>,
    /// Treatment of a Service whose clusters are all lost.
    #[serde(default)]
    pub last_resort: LastResort,
}

/// Treatment of a Service whose clusters are all lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum LastResort {
    /// It keeps the last known endpoints.
    #[default]
    Keep,
    /// It has no endpoints.
    Refuse,
}

/// Bounds of a set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QuotaSpec {
    /// Clusters. Default 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub clusters: Option<u32>,
    /// Exports of one cluster. Default 5000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exports_per_cluster: Option<u32>,
    /// Endpoints of one export. Default 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints_per_export: Option<u32>,
    /// Endpoints of one import in one family, 1 to 4000. Default 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4000))]
    pub endpoints_per_import: Option<u32>,
}
