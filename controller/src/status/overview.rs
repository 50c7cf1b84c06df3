// SPDX-License-Identifier: Apache-2.0

//! View models of agents, clusters, problems and held deletions.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use portolan_runtime::Readiness;
use portolan_serve::{NodeStatus, RecentChange, RecordProblem};
use portolan_source::HeldKey;
use portolan_source::deletions::HeldLoss;
use portolan_status::{
    Change, ClusterRow, HeldDeletions, NodeDetails, NodeRow, Overview, ProblemRow, RecordFault,
    Shares, split_problem,
};

use super::StatusPages;
use crate::debug::{ClusterStatus, Debug};

/// Changes on the overview.
const CHANGES: usize = 10;
/// Problems on the overview.
const PROBLEMS: usize = 5;
/// Records that a node lacks, on its page.
const CHANGED: usize = 100;

impl StatusPages {
    pub(super) fn overview(&self) -> Overview {
        let agents = self.debug.sessions.snapshot();
        let mut problems = self.problems();
        let problems_total = problems.len();
        problems.truncate(PROBLEMS);
        let changes = self.debug.sessions.recent_changes();
        Overview {
            clusters: clusters(&self.debug, &agents),
            shares: shares(&agents),
            changes: changes.into_iter().take(CHANGES).map(change).collect(),
            problems,
            problems_total,
            held: held(&self.debug),
        }
    }

    /// All problems, with their ages.
    pub(super) fn problems(&self) -> Vec<ProblemRow> {
        let (texts, now) = (self.notice(), Instant::now());
        let ages = self.ages();
        let row = |text: &String| {
            let (object, field, message) = split_problem(text);
            ProblemRow {
                object: object.to_owned(),
                field: field.to_owned(),
                message: message.to_owned(),
                since: ages.since(text, now),
            }
        };
        texts.iter().map(row).collect()
    }
}

fn shares(agents: &[NodeStatus]) -> Shares {
    let count = |is: fn(&NodeStatus) -> bool| agents.iter().filter(|agent| is(agent)).count();
    Shares {
        connected: count(|agent| agent.connected),
        newest: count(|agent| agent.connected && agent.behind_ms.is_none()),
        disconnected: count(|agent| !agent.connected),
        with_errors: count(|agent| agent.errors_total > 0),
        with_refusals: count(|agent| agent.refused_total > 0),
        holding: count(|agent| agent.held.is_some()),
    }
}

fn change(change: RecentChange) -> Change {
    Change {
        cluster: change.cluster,
        revision: change.revision,
        age: change.age,
        reached: change.reached,
    }
}

pub(super) fn clusters(debug: &Debug, agents: &[NodeStatus]) -> Vec<ClusterRow> {
    let row = |cluster: ClusterStatus| ClusterRow {
        name: cluster.name.to_string(),
        state: cluster.state.zip(cluster.step),
        served: cluster.served,
        revision: cluster.revision,
        silence: cluster.last_contact_seconds.map(Duration::from_secs_f64),
        connected: cluster.connected,
        programmed: cluster.programmed,
    };
    debug
        .cluster_statuses(agents)
        .into_iter()
        .map(row)
        .collect()
}

fn held(debug: &Debug) -> Vec<HeldDeletions> {
    let held = debug.holds.as_ref().map(|holds| holds.held());
    let now = Instant::now();
    let row = |((cluster, kind), loss): (HeldKey, HeldLoss)| HeldDeletions {
        cluster: cluster.to_string(),
        kind: kind.to_string(),
        objects: loss.lost.objects,
        of: loss.of.objects,
        remaining: loss.until.map(|until| until.saturating_duration_since(now)),
    };
    held.into_iter().flatten().map(row).collect()
}

pub(super) fn node_row(agent: &NodeStatus) -> NodeRow {
    NodeRow {
        cluster: agent.cluster.clone(),
        node: agent.node.clone(),
        connected: agent.connected,
        version: agent.agent_version.clone(),
        peer: agent.peer.clone().unwrap_or_default(),
        sent: agent.sent,
        received: agent.received,
        programmed: agent.programmed,
        took: agent.programmed_duration_us.map(Duration::from_micros),
        lag: agent.lag,
        behind: agent.behind_ms.map(Duration::from_millis),
        refused: agent.refused_total,
        errors: agent.errors_total,
        held: agent.held.map(|held| (held.deleted, held.records)),
        streams: agent.sessions,
    }
}

pub(super) fn node_details(debug: &Debug, agent: &NodeStatus) -> NodeDetails {
    let faults = |all: &[RecordProblem]| {
        let fault = |one: &RecordProblem| RecordFault {
            record: one.record.clone().unwrap_or_default(),
            message: one.message.clone(),
        };
        all.iter().map(fault).collect()
    };
    let changed = agent.standing(&debug.tables).changed.map(|changed| {
        let named = changed.into_iter().take(CHANGED).map(|one| {
            let record = one
                .record
                .unwrap_or_else(|| "the node's own facts".to_owned());
            match one.deleted {
                true => format!("{record}: deleted"),
                false => record,
            }
        });
        named.collect()
    });
    NodeDetails {
        row: node_row(agent),
        refused: faults(&agent.refused),
        errors: faults(&agent.errors),
        changed,
    }
}

/// A digest of what pages show and followers want to know of at once. Times are left out: they change
/// always.
pub(super) fn digest(debug: &Debug, readiness: &Readiness) -> u64 {
    let mut hasher = DefaultHasher::new();
    readiness.pending().hash(&mut hasher);
    // Agents follow below; counting them for each cluster would cost more.
    for cluster in debug.cluster_statuses(&[]) {
        (&cluster.name, cluster.revision).hash(&mut hasher);
        (cluster.served, cluster.state, cluster.step).hash(&mut hasher);
    }
    for agent in debug.sessions.snapshot() {
        (&agent.cluster, &agent.node, agent.connected).hash(&mut hasher);
        (agent.programmed, agent.errors_total, agent.refused_total).hash(&mut hasher);
        agent.held.map(|held| held.deleted).hash(&mut hasher);
    }
    for held in held(debug) {
        (held.cluster, held.kind, held.objects).hash(&mut hasher);
    }
    let trouble = debug.trouble.lock();
    let trouble = trouble.unwrap_or_else(std::sync::PoisonError::into_inner);
    (&trouble.objects, &trouble.files).hash(&mut hasher);
    hasher.finish()
}
