// SPDX-License-Identifier: Apache-2.0

//! The objects as a file spells them: the source of the JSON schema, of the parser's structural
//! checks and of the writer.
//!
//! A document says nothing about the meaning of its fields together; that is what
//! [`LoadBalancer`](crate::LoadBalancer) and [`Director`](crate::Director) are for.

mod balancer;
mod check;
mod director;
mod health;
mod http;
mod period;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use balancer::{
    AdministrativeState, BackendDocument, ForwardingDocument, FrontendDocument, LoadBalancerSpec,
    Method, PersistenceDocument, PersistenceEngine, SchedulerFlag, SchedulerName,
    SorryServerDocument, TunnelDocument, TunnelKind,
};
pub use balancer::{FamilyName, ProtocolName, TunnelChecksum};
pub use check::{
    AgentDocument, CheckDocument, DnsDocument, ExecDocument, FileDocument, GrpcDocument,
    IcmpDocument, SourceDocument, StepDocument, TcpDocument, TlsDocument, UdpDocument, VerifyName,
    ViaName, WeightSource,
};
pub use director::{
    Binding, CheckDefaultsDocument, ChecksDocument, DirectorSpec, GratuitousDocument, Role,
    ScriptsDocument, SyncDocument, SysctlMode, SysctlValue, SysctlsDocument, TimeoutsDocument,
    VipsDocument,
};
pub use health::{Announce, HealthDocument, HooksDocument, InitialState, OnFailure};
pub use http::{ExpectedHeader, HeaderDocument, HttpDocument, HttpVersionName, StatusDocument};
pub use period::Period;

/// The API group of these kinds, and of those of the policy of several clusters.
pub const API_GROUP: &str = "portolan.dev";

/// The version of the group.
pub const GROUP_VERSION: &str = "v1alpha1";

/// Group and version, as an object names them.
pub const API_VERSION: &str = "portolan.dev/v1alpha1";

/// The namespace of a `LoadBalancer` whose file names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A `LoadBalancer`: virtual servers that share one list of backends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "LoadBalancer")]
pub struct LoadBalancerDocument {
    /// The version of the API.
    pub api_version: ApiVersion,
    /// The kind of the object.
    pub kind: LoadBalancerKind,
    /// Name and labels.
    pub metadata: Metadata,
    /// The desired state.
    pub spec: LoadBalancerSpec,
}

/// A `Director`: the settings of one host. Its name is the node's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Director")]
pub struct DirectorDocument {
    /// The version of the API.
    pub api_version: ApiVersion,
    /// The kind of the object.
    pub kind: DirectorKind,
    /// Name and labels.
    pub metadata: Metadata,
    /// The settings.
    pub spec: DirectorSpec,
}

/// The version of the API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ApiVersion {
    /// The first version.
    #[default]
    #[serde(rename = "portolan.dev/v1alpha1")]
    V1Alpha1,
}

/// The kind of a [`LoadBalancerDocument`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum LoadBalancerKind {
    /// Virtual servers that share one list of backends.
    #[default]
    LoadBalancer,
}

/// The kind of a [`DirectorDocument`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum DirectorKind {
    /// The settings of one host.
    #[default]
    Director,
}

/// Name and labels of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// The name: at most 253 lower-case letters, digits, `-` and `.`.
    #[schemars(
        length(max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    #[schemars(extend("x-expected" = "at most 253 lower-case letters, digits, \"-\" and \".\""))]
    pub name: String,
    /// The namespace; a Director has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[schemars(extend("default" = "default"))]
    #[schemars(extend("x-expected" = "at most 63 lower-case letters, digits and \"-\""))]
    pub namespace: Option<String>,
    /// Labels, for selection by tools.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Notes of tools and people.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The version of the stored object that this one is a change of, for objects in etcd: nothing is written
    /// if the stored one has changed since. Means nothing in files of a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 18), regex(pattern = r"^[0-9]+$"))]
    #[schemars(extend("x-expected" = "at most 18 digits, in quotes"))]
    pub resource_version: Option<String>,
}

impl Metadata {
    /// The resource version as the revision of etcd that it is.
    pub(crate) fn revision(&self) -> Option<i64> {
        // Its digits fit, as the schema says.
        self.resource_version.as_ref()?.parse().ok()
    }
}

/// Returns `true` if a field need not be written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// Returns `true` if a number need not be written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// The schema of an address.
fn address_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string",
        "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}],
        "x-expected": "an IPv4 or IPv6 address",
    })
}

/// The schema of a list of addresses.
fn addresses_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let address = address_schema(generator);
    schemars::json_schema!({"type": "array", "items": address})
}

/// The schema of a program and its arguments.
fn command_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_version_is_that_of_the_group() {
        assert_eq!(API_VERSION, format!("{API_GROUP}/{GROUP_VERSION}"));
    }
}
