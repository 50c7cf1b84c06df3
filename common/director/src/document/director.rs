// SPDX-License-Identifier: Apache-2.0

//! The fields of a `Director`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Period;
use super::check::SourceDocument;

/// `Director.spec`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DirectorSpec {
    /// Settings of the virtual addresses that the host answers for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vips: Option<VipsDocument>,
    /// The kernel's connection synchronisation; off if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncDocument>,
    /// Whether connections survive a change of director without synchronisation; needs mh.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub stateless_failover: bool,
    /// The kernel's connection timeouts; unchanged if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<TimeoutsDocument>,
    /// The kernel's settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysctls: Option<SysctlsDocument>,
    /// Bits of the firewall mark that the agent may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = 0x3fff_0000))]
    pub marks: Option<u32>,
    /// Routing table for the virtual addresses that are announced; 0 for none.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub announce_table: u32,
    /// Limits and defaults of health checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<ChecksDocument>,
    /// Whether a director on standby checks its backends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub checks_on_standby: Option<bool>,
    /// Directory whose files name backends to drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^/"), extend("x-expected" = "an absolute path"))]
    pub maintenance_directory: Option<String>,
    /// Programs that checks and hooks may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<ScriptsDocument>,
}

/// Settings of the virtual addresses that the host answers for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VipsDocument {
    /// Binding that makes an address the host's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Route"))]
    pub binding: Option<Binding>,
    /// The interface to the clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::check::interface_schema")]
    pub interface: Option<String>,
    /// Condition that makes the director active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Always"))]
    pub role: Option<Role>,
    /// ARP and neighbour announcements when it becomes active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announce: Option<GratuitousDocument>,
}

/// Binding that makes a virtual address the host's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Binding {
    /// A local route.
    #[default]
    Route,
    /// An address on an interface.
    Address,
    /// A binding by somebody else.
    External,
}

/// Condition that makes a director active.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Role {
    /// It is active while it runs.
    #[default]
    Always,
    /// `portolan-agent director active` and `standby`.
    Command,
}

/// Announcements of an address to its neighbours.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GratuitousDocument {
    /// Number of announcements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100), extend("default" = 3))]
    pub count: Option<u32>,
    /// Time between two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "200ms"))]
    pub interval: Option<Period>,
}

/// The kernel's connection synchronisation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SyncDocument {
    /// The interface to the other directors.
    #[schemars(schema_with = "super::check::interface_schema")]
    pub interface: String,
    /// Directors with equal ids share connections.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    #[schemars(range(max = 255))]
    pub id: u32,
    /// The multicast group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::address_schema", extend("default" = "224.0.0.81"))]
    pub group: Option<IpAddr>,
    /// The UDP port of the first thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = 8848))]
    pub port: Option<u16>,
    /// Time to live of the packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = 1))]
    pub ttl: Option<u8>,
    /// Largest message in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 68), extend("default" = 1472))]
    pub max_length: Option<u16>,
    /// Number of threads, each with its own port: a power of 2 up to 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64), extend("default" = 1))]
    pub ports: Option<u32>,
    /// A connection is sent at this inbound packet, and again each time the second number is
    /// through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = [3, 50]))]
    pub threshold: Option<[u32; 2]>,
    /// Time after which an unchanged connection is sent again; never if 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "0s"))]
    pub refresh_period: Option<Period>,
    /// Number of times that an unchanged connection is sent within a refresh period.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    #[schemars(range(max = 3))]
    pub retries: u32,
}

/// The kernel's connection timeouts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimeoutsDocument {
    /// Of established TCP connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Period>,
    /// Of TCP connections after a FIN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_fin: Option<Period>,
    /// Of UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<Period>,
}

/// The kernel's settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SysctlsDocument {
    /// Action of the agent for a setting that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Set"))]
    pub mode: Option<SysctlMode>,
    /// Values by name, as `sysctl` spells it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, SysctlValue>,
}

/// Action of the agent for a setting that differs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum SysctlMode {
    /// It sets it.
    #[default]
    Set,
    /// It reports it.
    Check,
    /// Nothing.
    Ignore,
}

/// A value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline, extend("x-expected" = "a whole number or a text"))]
pub enum SysctlValue {
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

/// Limits and defaults of health checks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChecksDocument {
    /// Checks that run at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535), extend("default" = 512))]
    pub concurrency: Option<u32>,
    /// Checks that start in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000), extend("default" = 2000))]
    pub per_second: Option<u32>,
    /// Programs that run at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096), extend("default" = 32))]
    pub exec_concurrency: Option<u32>,
    /// Source of checks that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceDocument>,
    /// Timers of checks that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults: Option<CheckDefaultsDocument>,
}

/// Timers of checks that name none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckDefaultsDocument {
    /// Time between two checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "5s"))]
    pub interval: Option<Period>,
    /// Time to the next check after a result that contradicts the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "1s"))]
    pub fast_interval: Option<Period>,
    /// Time for a whole exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "2s"))]
    pub timeout: Option<Period>,
    /// Passes in a row after which a backend is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000), extend("default" = 2))]
    pub rise: Option<u32>,
    /// Failures in a row after which a backend is down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000), extend("default" = 3))]
    pub fall: Option<u32>,
}

/// Programs that checks and hooks may start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScriptsDocument {
    /// The user that runs them; the agent's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub user: Option<String>,
    /// Directories that programs must be in; any if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<String>,
}
