// SPDX-License-Identifier: Apache-2.0

//! `/debug/clusters`: the clusters that are served.

use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::State;
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
struct ClusterStatus {
    name: Arc<str>,
    /// Whether its source has sent all objects since the start, so that its agents are served.
    served: bool,
    /// Newest revision of its tables.
    revision: u64,
    /// Time since the last contact with its source; absent before the first, and for a single cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_contact_seconds: Option<f64>,
    /// Nodes whose agent is connected.
    connected: usize,
    /// Of those, the ones that have programmed the newest revision.
    programmed: usize,
}

pub(super) async fn clusters(State(debug): State<Debug>) -> Json<Answer> {
    let agents = debug.sessions.snapshot();
    let status = |name: Arc<str>| {
        let feed = debug.tables.feed(&name);
        let revision = debug.tables.head(&name);
        let sources = debug.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = sources.get(&name).and_then(|contact| contact.silence());
        let connected = agents.iter();
        let connected = connected.filter(|agent| agent.connected && *agent.cluster == *name);
        let (mut all, mut programmed) = (0, 0);
        for agent in connected {
            all += 1;
            programmed += usize::from(agent.programmed >= Some(revision));
        }
        ClusterStatus {
            served: debug.tables.state(&feed) == Serving::Synced,
            revision,
            last_contact_seconds: silence.map(|silence| silence.as_secs_f64()),
            connected: all,
            programmed,
            name,
        }
    };
    let clusters = debug.clusters.names().into_iter().map(status).collect();
    Json(Answer { clusters })
}
