// SPDX-License-Identifier: Apache-2.0

//! The fields of a `Cluster`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SelectorSpec;
use super::bounds::{account, duration, networks, percent, rule, rules, with};

/// `Cluster.spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-crd" = with(
    serde_json::json!({"required": ["access", "network"]}),
    rule(
        "!has(self.access.edge) || !has(self.access.edge.tokens) || !has(self.agents) || !has(self.agents.tokens) \
         || !self.agents.tokens.serviceAccounts.exists(one, one in self.access.edge.tokens.serviceAccounts)",
        "agents and edge controllers have a ServiceAccount in common: expected others, which tell them apart",
    ),
)))]
pub struct ClusterSpec {
    /// The id, which DNS names and the label `source-cluster` show: a DNS label. Default: the
    /// object's name. It never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[schemars(extend("x-expected" = "at most 63 lower-case letters, digits and \"-\""))]
    pub id: Option<String>,
    /// The property `region.topology.k8s.io`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Further properties, for selectors and `sameAs`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
    /// Way in which the cluster is reached.
    #[serde(default)]
    pub access: AccessSpec,
    /// Its agents, where they connect to this controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<AgentsSpec>,
    /// Its networks.
    pub network: NetworkSpec,
    /// Its loss, where it differs from the set's.
    #[serde(default)]
    pub loss: ClusterLossSpec,
    /// The operator's drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainSpec>,
    /// Bounds.
    #[serde(default)]
    pub quota: ClusterQuotaSpec,
}

/// Way in which a cluster is reached: exactly one field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-crd" = rule(
    "[has(self.kubeconfigSecret), has(self.kubeconfigFile), has(self.edge), has(self.files), has(self.local)]\
     .filter(given, given).size() == 1",
    "expected exactly one of kubeconfigSecret, kubeconfigFile, edge, files and local",
)))]
pub struct AccessSpec {
    /// A Secret in the controller's namespace with a kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig_secret: Option<SecretKeySpec>,
    /// A file with a kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig_file: Option<String>,
    /// A controller in the cluster connects to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge: Option<EdgeSpec>,
    /// Files with the cluster's objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub files: Option<Vec<String>>,
    /// The cluster that the controller runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<EmptySpec>,
}

/// A controller in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EdgeSpec {
    /// The ServiceAccount tokens that it may show. Default: none, so that it needs a certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<ClientTokensSpec>,
}

/// Agents of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentsSpec {
    /// The ServiceAccount tokens that they may show. Default: none, so that they need certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<ClientTokensSpec>,
}

/// The ServiceAccount tokens of a cluster's agents or edge controllers. Exactly one of `jwks` and `jwksFile` is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-crd" = rule(
    "has(self.jwks) != has(self.jwksFile)",
    "expected exactly one of jwks and jwksFile",
)))]
pub struct ClientTokensSpec {
    /// The issuer of the tokens: `--service-account-issuer` of the cluster's API server.
    #[schemars(length(min = 1, max = 1024))]
    pub issuer: String,
    /// The issuer's public keys, as a JSON Web Key Set: the answer of `/openid/v1/jwks` of the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks: Option<String>,
    /// A file with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub jwks_file: Option<String>,
    /// The ServiceAccounts of these clients, as namespace/name.
    #[schemars(extend("x-crd" = account()))]
    pub service_accounts: Vec<String>,
    /// The audience that tokens must have. Default `portolan-controller`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub audience: Option<String>,
}

/// A key of a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeySpec {
    /// The name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key. Default `kubeconfig`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub key: Option<String>,
}

/// No fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmptySpec {}

/// Networks of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-crd" = rules([
    (
        "!has(self.mode) || self.mode != 'Gateway' || has(self.gateway)",
        "gateway: missing: expected the gateways of a cluster in mode Gateway",
    ),
    (
        "!has(self.gateway) || (has(self.nodeCIDRs) && size(self.nodeCIDRs) > 0)",
        "nodeCIDRs: empty: expected the networks of nodes of a cluster with gateways",
    ),
])))]
pub struct NetworkSpec {
    /// Way in which pods of other clusters reach those of this one.
    #[serde(default)]
    pub mode: NetworkMode,
    /// The networks of pods: with those of nodes, the bound on what may be exported.
    #[serde(rename = "podCIDRs")]
    #[schemars(extend("x-crd" = networks(1, 64)))]
    pub pod_cidrs: Vec<String>,
    /// The networks of nodes.
    #[serde(default, rename = "nodeCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-crd" = networks(0, 64)))]
    pub node_cidrs: Vec<String>,
    /// The networks of cluster IPs.
    #[serde(
        default,
        rename = "serviceCIDRs",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(extend("x-crd" = networks(0, 64)))]
    pub service_cidrs: Vec<String>,
    /// The ranges of the imports' virtual addresses in this cluster, one for each family.
    #[serde(
        default,
        rename = "clusterSetIPs",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(extend("x-crd" = networks(0, 2)))]
    pub cluster_set_ips: Vec<String>,
    /// The gateways; needed in mode Gateway. Clusters in mode Gateway reach a Flat one by its gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewaySpec>,
}

/// Way in which pods of other clusters reach those of one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum NetworkMode {
    /// Pods of other Flat clusters have a route here, and back.
    #[default]
    Flat,
    /// By addresses of nodes alone.
    Gateway,
}

/// Gateways of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewaySpec {
    /// The nodes.
    #[serde(default)]
    pub nodes: SelectorSpec,
    /// The type of their addresses.
    #[serde(default)]
    pub address: AddressType,
    /// The range of their ports, as in `20000-29999`.
    #[schemars(extend("x-crd" = with(
        serde_json::json!({"maxLength": 11, "pattern": "^[0-9]{1,5}-[0-9]{1,5}$"}),
        rule(
            "!self.matches('^[0-9]{1,5}-[0-9]{1,5}$') || (int(self.split('-')[0]) >= 1 \
             && int(self.split('-')[0]) <= int(self.split('-')[1]) && int(self.split('-')[1]) <= 65535)",
            "expected a range of ports from 1 to 65535 such as 20000-29999",
        ),
    )))]
    pub ports: String,
}

/// A type of a Node's addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum AddressType {
    /// Within the cluster's network.
    #[default]
    #[serde(rename = "InternalIP")]
    Internal,
    /// From elsewhere.
    #[serde(rename = "ExternalIP")]
    External,
}

/// The loss of a cluster, where it differs from the set's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterLossSpec {
    /// Time after which the cluster is lost once it is stale; 0s for never.
    #[serde(default, rename = "staleTTL", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = duration()))]
    pub stale_ttl: Option<String>,
    /// Time that the cluster is in contact before it returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = duration()))]
    pub return_after: Option<String>,
    /// Time over which its share rises again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = duration()))]
    pub ramp_up: Option<String>,
}

/// A drain by the operator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DrainSpec {
    /// The percentage of its load that the cluster keeps.
    #[serde(default)]
    #[schemars(extend("x-crd" = percent()))]
    pub to: i64,
    /// The time that this takes. Default 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd" = duration()))]
    pub over: Option<String>,
}

/// Bounds of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterQuotaSpec {
    /// Exports. Default: the set's `exportsPerCluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exports: Option<u32>,
    /// Ready endpoints of all exports, of which the newest are refused. Default 50000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<u32>,
}
