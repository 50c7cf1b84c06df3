// SPDX-License-Identifier: Apache-2.0

//! Status of one agent, for operators and metrics.

use portolan_model::{Protocol, SetHash};
use portolan_proto::limits::problem_text;
use portolan_proto::v1;
use serde::Serialize;

/// Status of one node's agent. Revisions are of this controller's epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// The cluster; empty for a single one.
    pub cluster: String,
    /// The node's name, or `relay/` and the name of a relay.
    pub node: String,
    /// Whether the agent has a stream now.
    pub connected: bool,
    /// Start of the last stream, in milliseconds of Unix time.
    pub connected_at_ms: u64,
    /// End of the last stream, in milliseconds of Unix time; `None` while connected.
    pub disconnected_at_ms: Option<u64>,
    /// Number of streams so far, including the last.
    pub sessions: u64,
    /// Address of the last stream's peer.
    pub peer: Option<String>,
    /// The agent's own version.
    pub agent_version: String,
    /// Protocol version of the last stream.
    pub protocol_version: u32,
    /// The last revision sent on the last stream.
    pub sent: Option<u64>,
    /// The last revision that the agent has staged on the last stream.
    pub received: Option<u64>,
    /// The last revision that the agent has stated as programmed on the last stream.
    pub programmed: Option<u64>,
    /// Time from the arrival of that Commit until it was programmed, in microseconds.
    pub programmed_duration_us: Option<u64>,
    /// Difference between the newest published revision and `programmed`; 0 stands for an absent
    /// `programmed`.
    pub lag: u64,
    /// Age of the oldest known revision that is not programmed, in milliseconds, counted at the
    /// earliest from the start of the last stream; `None` if the agent is up to date.
    pub behind_ms: Option<u64>,
    /// Deletions that the agent holds back because its first table lacked too many records.
    pub held: Option<HeldTable>,
    /// Hash of the shared records in the kernel.
    pub records_hash: Option<SetHash>,
    /// Hash of the node's own part in the kernel.
    pub own_hash: Option<SetHash>,
    /// The first of the records that the agent refused.
    pub refused: Vec<RecordProblem>,
    /// Number of records that the agent refused.
    pub refused_total: u32,
    /// The first of the records that the kernel refused.
    pub errors: Vec<RecordProblem>,
    /// Number of records that the kernel refused.
    pub errors_total: u32,
}

/// Deletions of a table that an agent holds back until they are confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HeldTable {
    /// Number of records that are held back from deletion.
    pub deleted: u32,
    /// Number of records in force.
    pub records: u32,
    /// Time from the agent's report until the deletions count as confirmed, in milliseconds; 0 for
    /// never.
    pub remaining_ms: u32,
}

/// A problem of one record on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordProblem {
    /// The record, as `namespace/service[:port]/PROTOCOL`; `None` if the problem belongs to no
    /// record.
    pub record: Option<String>,
    /// Description of the problem.
    pub message: String,
}

impl RecordProblem {
    /// Formats the key as [`portolan_model::RecordKey`] does. A protocol unknown to this version is
    /// written by its number.
    pub(super) fn new(key: Option<v1::RecordKey>, message: String) -> Self {
        let record = key.map(|key| record_name(&key));
        Self {
            record,
            message: problem_text(message),
        }
    }
}

/// A record as `namespace/service[:port]/PROTOCOL`.
pub(super) fn record_name(key: &v1::RecordKey) -> String {
    let v1::RecordKey {
        namespace,
        service,
        port,
        protocol,
    } = key;
    let colon = if port.is_empty() { "" } else { ":" };
    let protocol = protocol_name(*protocol);
    problem_text(format!("{namespace}/{service}{colon}{port}/{protocol}"))
}

pub(super) fn protocol_name(number: i32) -> String {
    match v1::Protocol::try_from(number) {
        Ok(v1::Protocol::Tcp) => Protocol::Tcp.to_string(),
        Ok(v1::Protocol::Udp) => Protocol::Udp.to_string(),
        Ok(v1::Protocol::Sctp) => Protocol::Sctp.to_string(),
        _ => format!("protocol {number}"),
    }
}
