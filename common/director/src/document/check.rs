// SPDX-License-Identifier: Apache-2.0

//! The fields of a health check.

use std::net::IpAddr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::http::HttpDocument;
use super::{Period, command_schema, is_false, is_zero};

/// The schema of the name of a network interface.
pub(super) fn interface_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "pattern": "^[!-.0-~]{1,15}$",
        "x-expected": "the name of an interface, 1 to 15 characters",
    })
}

/// The schema of bytes in hexadecimal.
fn hex_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "pattern": "^([0-9a-fA-F]{2})*$",
        "x-expected": "bytes in hexadecimal, two digits each",
    })
}

/// The schema of an absolute path.
fn path_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": "^/", "x-expected": "an absolute path"})
}

/// A health check: exactly one kind, and what all kinds have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckDocument {
    /// Address to check instead of the backend's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::address_schema")]
    pub address: Option<IpAddr>,
    /// Port to check instead of the backend's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// The way to the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Direct"))]
    pub via: Option<ViaName>,
    /// The frontend of a check by way of the service; the first of a fitting protocol if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<String>,
    /// Source of the packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceDocument>,
    /// Time between two checks; 5s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Period>,
    /// Time to the next check after a result that contradicts the state; 1s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast_interval: Option<Period>,
    /// Time for a whole exchange; 2s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Period>,
    /// Passes in a row after which a backend is up; 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub rise: Option<u32>,
    /// Failures in a row after which a backend is down; 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub fall: Option<u32>,
    /// Whether each failure is logged, and not only changes of state.
    #[serde(default, skip_serializing_if = "is_false")]
    pub log_failures: bool,
    /// A TCP connection, then a conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpDocument>,
    /// A TLS handshake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsDocument>,
    /// An HTTP request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpDocument>,
    /// A datagram.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<UdpDocument>,
    /// A DNS question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<DnsDocument>,
    /// The gRPC health service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcDocument>,
    /// An ICMP echo request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp: Option<IcmpDocument>,
    /// A program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecDocument>,
    /// HAProxy's agent check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentDocument>,
    /// A number in a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileDocument>,
}

/// The way of a check to its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ViaName {
    /// To the backend's address.
    Direct,
    /// To the virtual address, the way clients come: it finds a missing virtual address or tunnel.
    Service,
}

/// Source of a check's packets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SourceDocument {
    /// The address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::address_schema")]
    pub address: Option<IpAddr>,
    /// The interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "interface_schema")]
    pub interface: Option<String>,
    /// The firewall mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub mark: Option<u32>,
}

/// A conversation over TCP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TcpDocument {
    /// The steps; a connection passes if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub steps: Vec<StepDocument>,
}

/// One step of a conversation: sends first, then waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepDocument {
    /// A text to send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<String>,
    /// Bytes to send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "hex_schema")]
    pub send_hex: Option<String>,
    /// Regular expression that the answer must match. What follows the match belongs to the next step, also the rest of
    /// its line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
}

/// A TLS handshake.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsDocument {
    /// The server's name in the handshake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub server_name: Option<String>,
    /// Certificates that pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "None"))]
    pub verify: Option<VerifyName>,
    /// File of the authorities; verify Ca only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub ca: Option<String>,
    /// File of the client's certificate chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub certificate: Option<String>,
    /// File of the client's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub key: Option<String>,
    /// Protocols to offer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alpn: Vec<String>,
    /// Days for which the server's certificate must remain valid.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 36_500))]
    pub minimum_days_valid: u32,
}

/// Certificates that pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum VerifyName {
    /// Anybody's.
    None,
    /// Those of the authorities in `ca`.
    Ca,
    /// Those of the host's authorities.
    System,
}

/// A datagram.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UdpDocument {
    /// Bytes to send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "hex_schema")]
    pub payload_hex: Option<String>,
    /// Whether silence fails.
    #[serde(default, skip_serializing_if = "is_false")]
    pub require_reply: bool,
    /// First bytes of the reply, in hexadecimal; `x` stands for any digit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^([0-9a-fA-FxX]{2})*$"))]
    #[schemars(extend("x-expected" = "bytes in hexadecimal, two digits each, x for any digit"))]
    pub expect_hex: Option<String>,
    /// Shortest reply in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 0))]
    pub min_length: Option<u16>,
    /// Longest reply in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 255))]
    pub max_length: Option<u16>,
}

/// A DNS question.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DnsDocument {
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[!-~]{1,254}$"), extend("default" = "."))]
    #[schemars(extend("x-expected" = "a domain name"))]
    pub name: Option<String>,
    /// The type, as in a zone file.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[A-Z][A-Z0-9]{0,15}$"), extend("default" = "SOA"))]
    #[schemars(extend("x-expected" = "a record type such as A"))]
    pub record_type: Option<String>,
    /// Response codes that pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), extend("default" = ["NOERROR"]))]
    pub rcodes: Option<Vec<String>>,
    /// Addresses that the answer must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::addresses_schema")]
    pub answers: Vec<IpAddr>,
    /// Whether the question goes over TCP.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tcp: bool,
}

/// A question to the gRPC health service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcDocument {
    /// Name of the service; the whole server if empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// TLS; HTTP/2 by prior knowledge if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsDocument>,
}

/// An ICMP echo request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IcmpDocument {}

/// A program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecDocument {
    /// The program's absolute path, and its arguments.
    #[schemars(schema_with = "command_schema")]
    pub command: Vec<String>,
    /// Where a dynamic weight comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "None"))]
    pub weight_from: Option<WeightSource>,
}

/// Where the weight that a program gives comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum WeightSource {
    /// None.
    None,
    /// 0 passes, 1 fails, 2 to 255 pass with the weight code - 2.
    ExitCode,
    /// The first line of its output, in the words of HAProxy's agent check.
    Stdout,
}

/// HAProxy's agent check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentDocument {
    /// A text to send before the line is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<String>,
}

/// A number in a file: negative is down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileDocument {
    /// The file.
    #[schemars(schema_with = "path_schema")]
    pub path: String,
    /// Factor of the number in the weight; 0 leaves the weight alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1_000_000, max = 1_000_000), extend("default" = 0))]
    pub weight: Option<i32>,
}
