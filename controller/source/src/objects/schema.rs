// SPDX-License-Identifier: Apache-2.0

//! The used fields, as in the Kubernetes API. All others are ignored.
//!
//! Every field may be absent or null, as in Go. Numbers are wide, so that one out of range becomes
//! a problem instead of refusing the whole object.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Metadata;

/// `v1` Service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// `metadata`.
    pub metadata: Metadata,
    /// `spec`.
    pub spec: Option<ServiceSpec>,
    /// `status`.
    pub status: Option<ServiceStatus>,
}

/// `spec` of a Service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub type_: Option<String>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<String>>,
    pub ip_families: Option<Vec<String>>,
    #[serde(rename = "externalIPs")]
    pub external_ips: Option<Vec<String>>,
    pub load_balancer_source_ranges: Option<Vec<String>>,
    pub external_traffic_policy: Option<String>,
    pub internal_traffic_policy: Option<String>,
    pub session_affinity: Option<String>,
    pub session_affinity_config: Option<SessionAffinityConfig>,
    pub health_check_node_port: Option<i64>,
    pub external_name: Option<String>,
    pub publish_not_ready_addresses: Option<bool>,
    pub traffic_distribution: Option<String>,
    pub ports: Option<Vec<ServicePort>>,
}

/// `spec.sessionAffinityConfig`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    /// `clientIP`.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    /// `timeoutSeconds`.
    pub timeout_seconds: Option<i64>,
}

/// `spec.ports[]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct ServicePort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i64>,
    pub node_port: Option<i64>,
    pub app_protocol: Option<String>,
}

/// `status` of a Service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    /// `loadBalancer`.
    pub load_balancer: Option<LoadBalancerStatus>,
}

/// `status.loadBalancer`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// `ingress`.
    pub ingress: Option<Vec<LoadBalancerIngress>>,
}

/// `status.loadBalancer.ingress[]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct LoadBalancerIngress {
    pub ip: Option<String>,
    pub ip_mode: Option<String>,
}

/// `discovery.k8s.io/v1` EndpointSlice.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct EndpointSlice {
    pub metadata: Metadata,
    pub address_type: Option<String>,
    pub ports: Option<Vec<SlicePort>>,
    pub endpoints: Option<Vec<Endpoint>>,
}

/// `ports[]` of an EndpointSlice.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct SlicePort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i64>,
}

/// `endpoints[]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct Endpoint {
    pub addresses: Option<Vec<String>>,
    pub conditions: Option<Conditions>,
    pub node_name: Option<String>,
    pub hostname: Option<String>,
    pub zone: Option<String>,
    pub target_ref: Option<TargetRef>,
    pub hints: Option<Hints>,
}

/// `endpoints[].targetRef`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct TargetRef {
    pub kind: Option<String>,
    pub name: Option<String>,
}

/// `endpoints[].conditions`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct Conditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

/// `endpoints[].hints`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct Hints {
    pub for_zones: Option<Vec<HintName>>,
    pub for_nodes: Option<Vec<HintName>>,
}

/// `endpoints[].hints.forZones[]` and `forNodes[]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct HintName {
    /// `name`.
    pub name: Option<String>,
}

/// `v1` Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// `metadata`.
    pub metadata: Metadata,
    /// `spec`.
    pub spec: Option<NodeSpec>,
    /// `status`.
    pub status: Option<NodeStatus>,
}

/// `spec` of a Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Option<Vec<String>>,
    pub taints: Option<Vec<Taint>>,
}

/// `spec.taints[]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// `key`.
    pub key: Option<String>,
}

/// `status` of a Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// `addresses`.
    pub addresses: Option<Vec<NodeAddress>>,
    /// `conditions`.
    pub conditions: Option<Vec<NodeCondition>>,
}

/// `status.conditions[]` of a Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct NodeCondition {
    #[serde(rename = "type")]
    pub type_: Option<String>,
    pub status: Option<String>,
}

/// `status.addresses[]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub type_: Option<String>,
    pub address: Option<String>,
}

/// `v1` Pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// `metadata`.
    pub metadata: Metadata,
    /// `status`.
    pub status: Option<PodStatus>,
}

/// `status` of a Pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct PodStatus {
    pub phase: Option<String>,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pub pod_ips: Option<Vec<PodIp>>,
}

/// One of `status.podIPs` of a Pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct PodIp {
    pub ip: Option<String>,
}

/// `v1` Namespace.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// `metadata`.
    pub metadata: Metadata,
}

/// `multicluster.x-k8s.io` ServiceExport.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ServiceExport {
    /// `metadata`.
    pub metadata: Metadata,
    /// `spec`.
    pub spec: Option<ServiceExportSpec>,
    /// `status`.
    pub status: Option<McsStatus>,
}

/// `spec` of a ServiceExport.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct ServiceExportSpec {
    /// A null value is an empty one, as in Go.
    pub exported_labels: Option<BTreeMap<String, Option<String>>>,
    pub exported_annotations: Option<BTreeMap<String, Option<String>>>,
    /// Of KEP-5939, which no released CRD has. Whatever it is, it is reported.
    pub cluster_selectors: Option<IgnoredAny>,
}

/// `about.k8s.io` ClusterProperty.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ClusterProperty {
    /// `metadata`.
    pub metadata: Metadata,
    /// `spec`.
    pub spec: Option<ClusterPropertySpec>,
}

/// `spec` of a ClusterProperty.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ClusterPropertySpec {
    /// The value of the property that the object is named after.
    pub value: Option<String>,
}

/// `multicluster.x-k8s.io` ServiceImport.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ServiceImport {
    /// `metadata`.
    pub metadata: Metadata,
    /// `spec`.
    pub spec: Option<ServiceImportSpec>,
    /// `status`.
    pub status: Option<McsStatus>,
}

/// `spec` of a ServiceImport.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct ServiceImportSpec {
    #[serde(rename = "type")]
    pub type_: Option<String>,
    pub ports: Option<Vec<ServicePort>>,
    pub ips: Option<Vec<String>>,
    pub ip_families: Option<Vec<String>>,
    pub session_affinity: Option<String>,
    pub session_affinity_config: Option<SessionAffinityConfig>,
    pub internal_traffic_policy: Option<String>,
    pub traffic_distribution: Option<String>,
}

/// `status` of a ServiceExport or ServiceImport.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct McsStatus {
    /// `clusters`, of a ServiceImport.
    pub clusters: Option<Vec<ClusterStatus>>,
    /// `conditions`.
    pub conditions: Option<Vec<Condition>>,
}

/// `status.clusters[]` of a ServiceImport.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// The id of an exporting cluster.
    pub cluster: Option<String>,
}

/// A condition of a status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct Condition {
    #[serde(rename = "type")]
    pub type_: Option<String>,
    pub status: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub observed_generation: Option<i64>,
    pub last_transition_time: Option<String>,
}
