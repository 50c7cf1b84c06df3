// SPDX-License-Identifier: Apache-2.0

//! State of one node's agent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use portolan_model::{NodeKey, SetHash};
use portolan_proto::limits::MAX_PROBLEMS;
use portolan_proto::v1;
use portolan_runtime::Rate;

use super::convergence::{Convergence, Member};
use super::everybody::AllProgrammed;
use super::health::{NodeHealth, Reported};
use super::reconnects::{RetryAfter, StreamBudget};
use super::signals::SessionSignals;
use super::{Connect, HeldTable, NodeStatus, RecordProblem, Unconfirmed};

#[derive(Debug)]
pub(super) struct AgentEntry {
    session: u64,
    /// Whether the agent has a live stream.
    connected: bool,
    sessions: u64,
    connected_at: SystemTime,
    began: Instant,
    disconnected_at: Option<SystemTime>,
    peer: Option<SocketAddr>,
    agent_version: String,
    protocol_version: u32,
    /// Signals to and from the stream; kept after its end.
    signals: Arc<SessionSignals>,
    received: Option<u64>,
    programmed: Option<Programmed>,
    refused: Vec<RecordProblem>,
    refused_total: u32,
    held: Option<HeldTable>,
    /// Health of backends that was reported on this stream.
    health: Reported,
    /// Remaining tokens for new streams; `None` before the second stream.
    budget: Option<StreamBudget>,
    /// Membership in the cluster's convergence; `None` before the first report on this stream.
    pub(super) member: Option<Member>,
}

#[derive(Debug)]
struct Programmed {
    revision: u64,
    duration_us: u64,
    records_hash: Option<SetHash>,
    own_hash: Option<SetHash>,
    errors: Vec<RecordProblem>,
    errors_total: u32,
}

impl AgentEntry {
    pub(super) fn new(connect: Connect, session: u64, signals: Arc<SessionSignals>) -> Self {
        Self {
            session,
            sessions: 1,
            connected_at: connect.now,
            began: Instant::now(),
            disconnected_at: None,
            peer: connect.peer,
            agent_version: connect.agent_version,
            protocol_version: connect.protocol_version,
            signals,
            received: None,
            programmed: None,
            refused: Vec::new(),
            refused_total: 0,
            held: None,
            health: Reported::default(),
            budget: None,
            member: None,
            connected: true,
        }
    }

    /// Takes over the state that outlives a stream: the number of sessions and the budget of streams.
    /// The programmed table is not: an agent that runs on states it again after its first Commit, and
    /// one that has restarted may program nothing.
    pub(super) fn inherit(&mut self, old: &Self) {
        self.sessions += old.sessions;
        self.budget = old.budget;
    }

    /// Takes a token for the node's next stream.
    pub(super) fn spend_stream(&mut self, rate: Rate, now: Instant) -> Result<(), RetryAfter> {
        let budget = self.budget.get_or_insert(StreamBudget::new(rate, now));
        budget.spend(rate, now)
    }

    pub(super) fn session(&self) -> u64 {
        self.session
    }

    /// Ends the stream for a newer one. Returns whether the stream was live.
    pub(super) fn replace(&mut self) -> bool {
        self.signals.replace();
        std::mem::take(&mut self.connected)
    }

    /// Ends the stream, if any, because its node is not served.
    pub(super) fn node_deleted(&self) {
        self.signals.delete();
    }

    pub(super) fn confirm(&self) -> Result<u64, Unconfirmed> {
        if !self.connected {
            return Err(Unconfirmed::Disconnected);
        }
        let held = self.held.and(self.received);
        let revision = held.ok_or(Unconfirmed::NothingHeld)?;
        self.signals.confirm(revision);
        Ok(revision)
    }

    pub(super) fn disconnect(&mut self, now: SystemTime) {
        self.connected = false;
        self.held = None;
        self.disconnected_at = Some(now);
    }

    /// Returns the agent's statement on the tables that it has programmed; `None` if it lacks the
    /// revision. A disconnected agent lacks nothing.
    pub(super) fn has_programmed(&self, revision: u64) -> Option<AllProgrammed> {
        if !self.connected {
            return Some(AllProgrammed::EQUAL);
        }
        let programmed = self.programmed.as_ref();
        let programmed = programmed.filter(|programmed| programmed.revision >= revision)?;
        // The hashes are those of the table as it was sent, with the records that the agent refused.
        let is_whole = self.refused_total == 0;
        Some(AllProgrammed {
            has_hashes: is_whole
                && programmed.records_hash.is_some()
                && programmed.own_hash.is_some(),
            errors_total: programmed.errors_total.saturating_add(self.refused_total),
        })
    }

    /// Returns `true` if this stream has carried the revision or a later one.
    fn was_sent(&self, revision: u64) -> bool {
        self.signals
            .last_sent()
            .is_some_and(|sent| revision <= sent)
    }

    pub(super) fn received(&mut self, message: v1::Received) -> bool {
        if !self.was_sent(message.revision) {
            return false;
        }
        self.received = Some(message.revision);
        self.refused_total = message.refused_total;
        self.held = message.held.map(|held| HeldTable {
            deleted: held.deleted,
            records: held.records,
            remaining_ms: held.remaining_ms,
        });
        let refused = message.refused.into_iter().take(MAX_PROBLEMS);
        self.refused = refused
            .map(|refusal| RecordProblem::new(refusal.key, refusal.reason))
            .collect();
        true
    }

    /// Records that the agent has programmed a Commit. Held deletions stay held: only `Received`
    /// reports them and their end.
    pub(super) fn programmed(&mut self, message: v1::Programmed) -> bool {
        if !self.was_sent(message.revision) {
            return false;
        }
        let errors = message.errors.into_iter().take(MAX_PROBLEMS);
        self.programmed = Some(Programmed {
            revision: message.revision,
            duration_us: message.duration_us,
            records_hash: SetHash::from_bytes(&message.records_hash),
            own_hash: SetHash::from_bytes(&message.own_hash),
            errors: errors
                .map(|error| RecordProblem::new(error.key, error.message))
                .collect(),
            errors_total: message.errors_total,
        });
        true
    }

    /// Records a report about the health of backends.
    pub(super) fn health_reported(&mut self, report: v1::Health, now: SystemTime) {
        self.health.take(report, unix_ms(now) / 1_000);
    }

    /// Size of the health report, in load balancers and backends.
    pub(super) fn health_size(&self) -> usize {
        self.health.size()
    }

    pub(super) fn forget_health(&mut self) {
        self.health = Reported::default();
    }

    /// The health of backends on this node; `None` if none was reported and the agent has gone.
    pub(super) fn health(&self, node: &NodeKey) -> Option<NodeHealth> {
        (self.connected || !self.health.is_empty()).then(|| NodeHealth {
            cluster: node.cluster.as_ref().into(),
            node: node.name.as_ref().into(),
            connected: self.connected,
            connected_at_ms: unix_ms(self.connected_at),
            balancers: self.health.balancers(),
        })
    }

    pub(super) fn status(
        &self,
        node: &NodeKey,
        convergence: &Convergence,
        now: Instant,
    ) -> NodeStatus {
        let programmed = self.programmed.as_ref();
        let revision = programmed.map(|p| p.revision);
        // Time before the stream began is not the agent's delay.
        let behind = convergence
            .behind_since(revision)
            .map(|since| since.max(self.began));
        NodeStatus {
            cluster: node.cluster.as_ref().into(),
            node: node.name.as_ref().into(),
            connected: self.connected,
            connected_at_ms: unix_ms(self.connected_at),
            disconnected_at_ms: self.disconnected_at.map(unix_ms),
            sessions: self.sessions,
            peer: self.peer.map(|peer| peer.to_string()),
            agent_version: self.agent_version.clone(),
            protocol_version: self.protocol_version,
            sent: self.signals.last_sent(),
            received: self.received,
            programmed: revision,
            lag: convergence.head().saturating_sub(revision.unwrap_or(0)),
            behind_ms: behind.map(|since| ms(now.saturating_duration_since(since))),
            held: self.held,
            programmed_duration_us: programmed.map(|p| p.duration_us),
            records_hash: programmed.and_then(|p| p.records_hash),
            own_hash: programmed.and_then(|p| p.own_hash),
            refused: self.refused.clone(),
            refused_total: self.refused_total,
            errors: programmed.map(|p| p.errors.clone()).unwrap_or_default(),
            errors_total: programmed.map_or(0, |p| p.errors_total),
        }
    }
}

fn unix_ms(time: SystemTime) -> u64 {
    ms(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
