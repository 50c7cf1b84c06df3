// SPDX-License-Identifier: Apache-2.0

//! The objects as YAML and the API server spell them: the source of their schemas.
//!
//! These types take any value of the right structure. What the values mean, and whether they mean
//! anything, is for [`Cluster`](crate::Cluster) and the other checked objects.

pub(crate) mod bounds;
mod cluster;
mod cluster_set;
mod policies;
mod selector;
mod status;
mod traffic;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use cluster::{
    AccessSpec, AddressType, AgentsSpec, ClientTokensSpec, ClusterLossSpec, ClusterQuotaSpec,
    ClusterSpec, DrainSpec, EdgeSpec, EmptySpec, GatewaySpec, NetworkMode, NetworkSpec,
    SecretKeySpec,
};
pub use cluster_set::{
    ClusterSetSpec, EndpointSlices, ExportDefaultsSpec, ImportDefaultsSpec, LastResort, LossSpec,
    OwnerHints, QuotaSpec,
};
pub use policies::{Action, ExportPolicySpec, ImportPolicySpec};
pub use portolan_director::document::{API_GROUP, API_VERSION, GROUP_VERSION};
pub use selector::{ExpressionSpec, Operator, SelectorSpec, ServicesSpec};
pub use status::{ClusterCounts, ClusterStatus, Condition, PhaseName};
pub use traffic::{MemberSpec, SpillOver, ThresholdSpec, TierSpec, TrafficPolicySpec};

/// An object in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Document<S> {
    /// The version of the API: [`API_VERSION`].
    pub api_version: String,
    /// The kind of the object.
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// The desired state.
    pub spec: S,
}

/// Name and labels of an object in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// The name: a DNS label.
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[schemars(extend("x-expected" = "at most 63 lower-case letters, digits and \"-\""))]
    pub name: String,
    /// Labels; those of a Cluster are for selectors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Notes of tools and people.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}
