// SPDX-License-Identifier: Apache-2.0

//! The fields of a `LoadBalancer`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::CheckDocument;
use super::health::{Announce, HealthDocument, HooksDocument};
use super::{Period, addresses_schema, is_false, is_zero};

/// `LoadBalancer.spec`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadBalancerSpec {
    /// Frontends that clients connect to.
    #[schemars(length(min = 1, max = 256))]
    pub frontends: Vec<FrontendDocument>,
    /// The kernel's scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "wlc"))]
    pub scheduler: Option<SchedulerName>,
    /// The scheduler's flags; `[Fallback]` for sh and mh, none for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_flags: Option<Vec<SchedulerFlag>>,
    /// Whether every datagram is scheduled by itself; acts on UDP and on marks.
    #[serde(default, skip_serializing_if = "is_false")]
    pub one_packet: bool,
    /// Clients that stay with their backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<PersistenceDocument>,
    /// Forwarding of packets to the backends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarding: Option<ForwardingDocument>,
    /// Whether backends see the director as their client; method Masquerade only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub source_nat: bool,
    /// The servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    pub backends: Vec<BackendDocument>,
    /// The server that answers while the backends have no quorum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sorry_server: Option<SorryServerDocument>,
    /// Health checks, all of which a backend must pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub checks: Vec<CheckDocument>,
    /// Rules about the health of all backends together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthDocument>,
    /// Time that the connections of a removed backend have to end; the agent's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<Period>,
    /// Programs that changes of state start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<HooksDocument>,
    /// When the addresses are announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "WhenHealthy"))]
    pub announce: Option<Announce>,
    /// Labels of the Nodes that serve it; all if empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
}

/// Frontend that clients connect to: addresses with ports, or a firewall mark.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FrontendDocument {
    /// Its name, unique in the object; `PROTOCOL-PORT` or `mark-N` in lower case if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[schemars(extend("x-expected" = "at most 63 lower-case letters, digits and \"-\""))]
    pub name: Option<String>,
    /// The virtual addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "addresses_schema", length(max = 256))]
    pub addresses: Vec<IpAddr>,
    /// A firewall mark that rules of the operator set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub mark: Option<u32>,
    /// The family of the mark; both if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<FamilyName>,
    /// The transport protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "TCP"))]
    pub protocol: Option<ProtocolName>,
    /// The port; 0 stands for all ports and needs persistence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Ports and ranges of ports, as in `21,20000-20999`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*$"))]
    #[schemars(extend("x-expected" = "ports and ranges such as \"21,20000-20999\""))]
    pub ports: Option<String>,
    /// Clients that may connect, as prefixes; all if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<String>,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
pub enum ProtocolName {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum FamilyName {
    /// IPv4.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6,
}

/// A scheduler of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[expect(
    missing_docs,
    reason = "the kernel's names; portolan_model::ipvs::SCHEDULERS"
)]
pub enum SchedulerName {
    Rr,
    Wrr,
    Lc,
    Wlc,
    Lblc,
    Lblcr,
    Dh,
    Sh,
    Sed,
    Nq,
    Fo,
    Ovf,
    Mh,
    Twos,
}

/// A flag of a scheduler.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[schemars(inline)]
pub enum SchedulerFlag {
    /// sh, mh: hash the client's port too.
    Port,
    /// sh, mh: choose another backend if the one of the hash takes no connections.
    Fallback,
    /// The kernel's `sched-flag-1`.
    Flag1,
    /// The kernel's `sched-flag-2`.
    Flag2,
    /// The kernel's `sched-flag-3`.
    Flag3,
}

/// Clients that stay with their backend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PersistenceDocument {
    /// Time without a connection after which a client may change, 1s to 31d, in whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "6m"))]
    pub timeout: Option<Period>,
    /// IPv4 clients with equal first bits count as one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32), extend("default" = 32))]
    pub ipv4_prefix_length: Option<u8>,
    /// IPv6 clients with equal first bits count as one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 128), extend("default" = 128))]
    pub ipv6_prefix_length: Option<u8>,
    /// Identifier of a client instead of its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<PersistenceEngine>,
}

/// Identifier of a client instead of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum PersistenceEngine {
    /// The Call-ID of SIP over UDP.
    Sip,
}

/// Forwarding of packets to a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForwardingDocument {
    /// The method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Masquerade"))]
    pub method: Option<Method>,
    /// The tunnel; method Tunnel only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<TunnelDocument>,
}

/// The method that forwards packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Method {
    /// NAT of the destination; answers come back through the director.
    Masquerade,
    /// The packet unchanged to the backend's link-layer address.
    Direct,
    /// The packet unchanged within another.
    Tunnel,
}

/// A tunnel to a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TunnelDocument {
    /// The encapsulation.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "IPIP"))]
    pub kind: Option<TunnelKind>,
    /// The server's UDP port; GUE only, and required there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// The checksum of the outer packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "None"))]
    pub checksum: Option<TunnelChecksum>,
}

/// The encapsulation of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
pub enum TunnelKind {
    /// IP in IP.
    Ipip,
    /// Generic UDP encapsulation.
    Gue,
    /// Generic routing encapsulation.
    Gre,
}

/// The checksum of a tunnel's outer packet.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[schemars(inline)]
pub enum TunnelChecksum {
    /// None.
    None,
    /// Over the whole packet; GUE and GRE.
    Full,
    /// Remote checksum offload; GUE.
    Remote,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendDocument {
    /// Its name, unique in the object; its address and port if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// Its address.
    #[schemars(schema_with = "super::address_schema")]
    pub address: IpAddr,
    /// Its port; the frontend's if absent, the client's if 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Its share of new connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 1))]
    pub weight: Option<u16>,
    /// Connections above which it gets no new ones; 0 for no limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 2_147_483_647))]
    pub max_connections: u32,
    /// Connections below which it gets new ones again; 0 for three quarters of the limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 2_147_483_647))]
    pub resume_connections: u32,
    /// Forwarding of packets to it, instead of the object's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarding: Option<ForwardingDocument>,
    /// Health checks instead of the object's; none if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub checks: Option<Vec<CheckDocument>>,
    /// Administrative state that the operator wants of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Enabled"))]
    pub administrative_state: Option<AdministrativeState>,
}

/// Administrative state that the operator wants of a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum AdministrativeState {
    /// It serves.
    #[default]
    Enabled,
    /// No new connections; present ones go on.
    Drain,
    /// It leaves after the drain.
    Disabled,
}

/// The server that answers while the backends have no quorum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SorryServerDocument {
    /// Its address.
    #[schemars(schema_with = "super::address_schema")]
    pub address: IpAddr,
    /// Its port; the frontend's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Forwarding of packets to it, instead of the object's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarding: Option<ForwardingDocument>,
    /// Whether it stays in the virtual server with weight 0 while it is not needed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub keep_idle: bool,
}
