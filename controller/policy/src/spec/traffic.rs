// SPDX-License-Identifier: Apache-2.0

//! The fields of `TrafficPolicy`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::{expressions, keys, members, patterns, percent, rule, threshold, tiers};
use super::{ExpressionSpec, SelectorSpec, ServicesSpec};

/// `TrafficPolicy.spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficPolicySpec {
    /// Decides between policies that select a Service equally closely; the highest applies.
    #[serde(default)]
    pub priority: i32,
    /// The Services, by the names of their imports.
    #[serde(default)]
    pub services: ServicesSpec,
    /// The importing clusters.
    #[serde(default)]
    pub clusters: SelectorSpec,
    /// Clusters in order of preference, at most 8 tiers. What no tier names is not used. Without
    /// tiers all clusters are one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-crd" = tiers()))]
    pub tiers: Vec<TierSpec>,
    /// Ready endpoints below which a tier or weighted cluster gives load away: a percentage of those
    /// that are not terminating (`70%`), or a number. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = threshold()))]
    pub min_healthy: Option<ThresholdSpec>,
    /// Way in which load is given away. Default Proportional with `minHealthy`, else AllAtOnce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill_over: Option<SpillOver>,
    /// Percentage of health of all tiers together, below which all endpoints are used alike; 0 for
    /// never.
    #[serde(default)]
    #[schemars(extend("x-crd" = percent()))]
    pub panic_threshold: i64,
    /// Real servers of one record and family, 1 to 4000. Default: the set's `endpointsPerImport`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4000))]
    pub max_endpoints: Option<u32>,
    /// The kernel's scheduler. Default: the rule of a single cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<portolan_director::SchedulerName>,
}

/// Clusters that are preferred alike: exactly one field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-crd" = rule(
    "[has(self.clusters), has(self.sameAs), has(self.rest) && self.rest].filter(given, given).size() == 1",
    "expected exactly one of clusters, sameAs and rest",
)))]
pub struct TierSpec {
    /// Clusters that the selectors name; with weights, or without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = members()))]
    pub clusters: Option<Vec<MemberSpec>>,
    /// Clusters that have the importing cluster's value of all these properties.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = keys()))]
    pub same_as: Option<Vec<String>>,
    /// `true`: all clusters that no tier before names. Only in the last tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<bool>,
}

/// Clusters of a tier: the importing one itself, or those that a selector names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-crd" = rule(
    "!has(self.local) || !self.local || !((has(self.names) && size(self.names) > 0) \
     || (has(self.matchLabels) && size(self.matchLabels) > 0) \
     || (has(self.matchExpressions) && size(self.matchExpressions) > 0))",
    "expected either local or a selector",
)))]
pub struct MemberSpec {
    /// Whether it is the importing cluster.
    #[serde(default)]
    pub local: bool,
    /// As in a selector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-crd" = patterns()))]
    pub names: Vec<String>,
    /// As in a selector.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// As in a selector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-crd" = expressions()))]
    pub match_expressions: Vec<ExpressionSpec>,
    /// Weight of each of these clusters in the tier, 0 to 1000; 0 takes it out of use. All members of
    /// a tier have one, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = serde_json::json!({"minimum": 0, "maximum": 1000})))]
    pub weight: Option<i64>,
}

/// A number of endpoints, or a percentage as in `70%`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline, extend("x-expected" = "a number of endpoints, or a percentage such as \"70%\""))]
pub enum ThresholdSpec {
    /// A number of endpoints.
    Number(i64),
    /// A percentage, as in `70%`.
    Text(String),
}

/// Way in which a tier below its health gives load away.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[schemars(inline)]
pub enum SpillOver {
    /// In proportion to the health that it lacks.
    Proportional,
    /// All of it.
    AllAtOnce,
}
