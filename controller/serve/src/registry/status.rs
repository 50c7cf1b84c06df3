//! One agent, for people and metrics.

use portolan_model::{Protocol, SetHash};
use portolan_proto::limits::problem_text;
use portolan_proto::v1;
use serde::Serialize;

/// What is known of one node's agent. Revisions are of this controller's epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// The cluster; empty for a single one.
    pub cluster: String,
    /// The node.
    pub node: String,
    /// Whether it has a stream now.
    pub connected: bool,
    /// When its last stream began, in milliseconds of Unix time.
    pub connected_at_ms: u64,
    /// When its last stream ended, in milliseconds of Unix time; `None` while it is connected.
    pub disconnected_at_ms: Option<u64>,
    /// How many streams it has had, this one included.
    pub sessions: u64,
    /// Where it connected from.
    pub peer: Option<String>,
    /// The agent's own version.
    pub agent_version: String,
    /// The version of the protocol that is spoken.
    pub protocol_version: u32,
    /// The last revision that was sent on its last stream.
    pub sent: Option<u64>,
    /// The last revision that it has staged.
    pub received: Option<u64>,
    /// The last revision that its kernel has.
    pub programmed: Option<u64>,
    /// How long that took from the arrival of the Commit, in microseconds.
    pub programmed_duration_us: Option<u64>,
    /// How many revisions that is behind the newest.
    pub lag: u64,
    /// For how long there has been something that it has not programmed, in milliseconds; `None`
    /// if there is nothing.
    pub behind_ms: Option<u64>,
    /// A table that the agent holds back because it would delete too much.
    pub held: Option<HeldTable>,
    /// The hash of the shared records that its kernel has.
    pub records_hash: Option<SetHash>,
    /// The hash of what is its own that its kernel has.
    pub own_hash: Option<SetHash>,
    /// What it could not take, the first of them.
    pub refused: Vec<RecordProblem>,
    /// How many it could not take.
    pub refused_total: u32,
    /// What its kernel refused, the first of them.
    pub errors: Vec<RecordProblem>,
    /// How many its kernel refused.
    pub errors_total: u32,
}

/// A table that an agent does not program before it is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HeldTable {
    /// How many records it would delete.
    pub deleted: u32,
    /// How many records the agent has.
    pub records: u32,
    /// When it said so, after how long it would take the table for confirmed, in milliseconds; 0
    /// for never.
    pub remaining_ms: u32,
}

/// What is wrong with one record on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordProblem {
    /// The record, as `namespace/service[:port]/PROTOCOL`; `None` if it belongs to none.
    pub record: Option<String>,
    /// What is wrong, in words.
    pub message: String,
}

impl RecordProblem {
    /// Names a record as [`portolan_model::RecordKey`] does; its protocol may be one that we do
    /// not know ourselves.
    pub(super) fn new(key: Option<v1::RecordKey>, message: String) -> Self {
        let record = key.map(|key| {
            let port = if key.port.is_empty() { "" } else { ":" };
            let protocol = match v1::Protocol::try_from(key.protocol) {
                Ok(v1::Protocol::Tcp) => Protocol::Tcp.to_string(),
                Ok(v1::Protocol::Udp) => Protocol::Udp.to_string(),
                Ok(v1::Protocol::Sctp) => Protocol::Sctp.to_string(),
                _ => format!("protocol {}", key.protocol),
            };
            let (namespace, service) = (key.namespace, key.service);
            problem_text(format!(
                "{namespace}/{service}{port}{}/{protocol}",
                key.port
            ))
        });
        Self {
            record,
            message: problem_text(message),
        }
    }
}
