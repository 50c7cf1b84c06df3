// SPDX-License-Identifier: Apache-2.0

//! Fields about the health of a `LoadBalancer`: rules, hooks and announcements.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Period, command_schema, is_zero};

/// Rules about the health of all backends together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HealthDocument {
    /// State of a backend that no check has judged yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Probe"))]
    pub initial_state: Option<InitialState>,
    /// Action for a backend that is down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Quiesce"))]
    pub on_failure: Option<OnFailure>,
    /// Weight of healthy backends below which there is no quorum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = 1))]
    pub quorum: Option<u32>,
    /// The quorum is gained at quorum + hysteresis and lost below quorum - hysteresis.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hysteresis: u32,
    /// Share of the weight, in percent, below which failing backends keep theirs.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 100))]
    pub minimum_healthy_percent: u32,
    /// Time over which a backend that came up reaches its weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "0s"))]
    pub slow_start: Option<Period>,
}

/// State of a backend that no check has judged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum InitialState {
    /// No new connections until a check passes.
    Probe,
    /// Its weight until a check fails.
    Up,
}

/// Action for a backend that is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum OnFailure {
    /// Weight 0: its connections go on.
    Quiesce,
    /// It leaves the virtual server, and its connections break.
    Remove,
}

/// Programs that changes of state start, each with its arguments and without a shell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HooksDocument {
    /// Started when the quorum is gained or lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "command_schema")]
    pub on_quorum: Vec<String>,
    /// Started when a backend comes up or goes down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "command_schema")]
    pub on_backend: Vec<String>,
}

/// When the addresses of an object are announced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Announce {
    /// While there is a quorum or a sorry server.
    #[default]
    WhenHealthy,
    /// Always.
    Always,
    /// Never.
    Never,
}
