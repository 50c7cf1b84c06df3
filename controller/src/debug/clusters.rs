// SPDX-License-Identifier: Apache-2.0

//! `/debug/clusters`: the clusters that are served.

use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::State;
use portolan_serve::NodeStatus;
use portolan_tablelog::State as Serving;
use serde::Serialize;

use super::Debug;

#[derive(Debug, Serialize)]
pub(super) struct Answer {
    clusters: Vec<ClusterStatus>,
}

/// One cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterStatus {
    pub(crate) name: Arc<str>,
    /// Whether its source has sent all objects since the start, so that its agents are served.
    pub(crate) served: bool,
    /// Newest revision of its tables.
    pub(crate) revision: u64,
    /// Time since the last contact with its source; absent before the first, and for a single cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_contact_seconds: Option<f64>,
    /// Its state, if it is one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<&'static str>,
    /// The part of its share that it gets in imports, in twentieths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<u8>,
    /// Nodes whose agent is connected.
    pub(crate) connected: usize,
    /// Of those, the ones that have programmed the newest revision.
    pub(crate) programmed: usize,
}

pub(super) async fn clusters(State(debug): State<Debug>) -> Json<Answer> {
    let clusters = debug.cluster_statuses(&debug.sessions.snapshot());
    Json(Answer { clusters })
}

impl Debug {
    /// The clusters that are served, with numbers of these agents.
    pub(crate) fn cluster_statuses(&self, agents: &[NodeStatus]) -> Vec<ClusterStatus> {
        let names = self.clusters.names().into_iter();
        names
            .map(|name| self.cluster_status(name, agents))
            .collect()
    }

    fn cluster_status(&self, name: Arc<str>, agents: &[NodeStatus]) -> ClusterStatus {
        let feed = self.tables.feed(&name);
        let revision = self.tables.head(&name);
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = sources.get(&name).and_then(|contact| contact.silence());
        let states = self.states.lock();
        let known = states.statuses.get(&name);
        let known = known.map(|status| (status.phase.as_str(), status.step));
        drop(states);
        let (state, step) = known.unzip();
        let connected = agents.iter();
        let connected = connected.filter(|agent| agent.connected && *agent.cluster == *name);
        let (mut all, mut programmed) = (0, 0);
        for agent in connected {
            all += 1;
            programmed += usize::from(agent.programmed >= Some(revision));
        }
        ClusterStatus {
            served: self.tables.state(&feed) == Serving::Synced,
            revision,
            last_contact_seconds: silence.map(|silence| silence.as_secs_f64()),
            state,
            step,
            connected: all,
            programmed,
            name,
        }
    }
}
