// SPDX-License-Identifier: Apache-2.0

//! Dumps of the controller below `/debug`: `clusters`, `nodes`, `health`, `table/NODE`, `diff/NODE`, `programmed`,
//! `explain`, `federation`, `problems`; and actions, which need a credential: `confirm/NODE`, `drain/CLUSTER`,
//! `undrain/CLUSTER`. With several clusters
//! the parameter `cluster` names one.

mod clusters;
mod failure;
mod federation;
mod inquiry;
mod programmed;
mod scoped;

use std::sync::{Arc, PoisonError};

use axum::extract::{Path, RawQuery, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use portolan_model::{NodeInfo, NodeKey, NodeTable};
use portolan_select::Explanation;
use portolan_serve::{NodeStatus, Registry, ServedClusters, Standing};
use portolan_source::HeldDeletions;
use portolan_tablelog::TableReader;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::clusters::{ClusterSources, ClusterStates};
use crate::deletions;
use crate::writer::{Question, SharedTrouble};
pub(crate) use clusters::ClusterStatus;
pub(crate) use failure::Failure;
use scoped::Scoped;

/// The state that dumps show.
#[derive(Debug, Clone)]
pub(crate) struct Debug {
    /// The cluster that a request asks for.
    pub(crate) cluster: Arc<str>,
    pub(crate) clusters: ServedClusters,
    /// Contacts with the clusters' sources; empty for a single cluster.
    pub(crate) sources: ClusterSources,
    /// Their states.
    pub(crate) states: ClusterStates,
    pub(crate) tables: TableReader,
    pub(crate) sessions: Arc<Registry>,
    pub(crate) trouble: SharedTrouble,
    /// `None` on a relay, which has no objects.
    pub(crate) questions: Option<mpsc::Sender<Question>>,
    /// The deletions that are held back; `None` on a relay.
    pub(crate) holds: Option<Arc<HeldDeletions>>,
}

impl Debug {
    /// Routes of dumps.
    pub(crate) fn dumps(&self) -> Router {
        Router::new()
            .route("/clusters", get(clusters::clusters))
            .route("/nodes", get(nodes))
            .route("/health", get(health))
            .route("/table/{node}", get(table))
            .route("/diff/{node}", get(diff))
            .route("/programmed", get(programmed::programmed))
            .route("/explain", get(explain))
            .route("/federation", get(federation::federation))
            .route("/plan-policy", post(federation::plan_policy))
            .route("/problems", get(problems))
            .with_state(self.clone())
            .merge(
                self.holds
                    .as_ref()
                    .map(deletions::dumps)
                    .unwrap_or_default(),
            )
    }

    /// Routes of actions.
    pub(crate) fn actions(&self) -> Router {
        Router::new()
            .route("/confirm/{node}", post(confirm))
            .route("/drain/{cluster}", post(federation::drain))
            .route("/undrain/{cluster}", post(federation::undrain))
            .with_state(self.clone())
            .merge(
                self.holds
                    .as_ref()
                    .map(deletions::actions)
                    .unwrap_or_default(),
            )
    }

    /// The answer to the question of a query.
    pub(crate) async fn explain(&self, query: &str) -> Result<Explanation, Failure> {
        let mut inquiry = inquiry::parse(&self.cluster, query)?;
        inquiry.has_agent = self.agent(&inquiry.node).is_some();
        let asked = |answer| Question::Address { inquiry, answer };
        let answer = self.ask(asked).await?;
        let answer = answer.ok_or_else(|| Failure::unavailable("the source has not synced yet"))?;
        answer.map_err(|error| Failure::not_found(error.to_string()))
    }

    /// The current table of a node, whether its agent has it or not.
    pub(crate) fn table(&self, node: &str) -> Result<NodeTable, Failure> {
        let key = self.key(node);
        let table = self.tables.table(&key).of_own_groups();
        let is_known = table.node != NodeInfo::default() || !table.lists.is_empty();
        if is_known || self.agent(&key).is_some() {
            Ok(table)
        } else {
            let message = format!("node {node}: no Node, endpoint or agent has this name");
            Err(Failure::not_found(message))
        }
    }

    pub(crate) fn key(&self, node: &str) -> NodeKey {
        NodeKey {
            cluster: Arc::clone(&self.cluster),
            name: node.into(),
        }
    }

    /// The status of a node's agent.
    pub(crate) fn agent(&self, node: &NodeKey) -> Option<NodeStatus> {
        let mut all = self.sessions.snapshot().into_iter();
        all.find(|one| (&*one.cluster, &*one.node) == (&*node.cluster, &*node.name))
    }
}

/// The newest revision, and the status of each node's agent.
async fn nodes(Scoped(debug): Scoped) -> Json<Value> {
    let mut nodes = debug.sessions.snapshot();
    nodes.retain(|status| *status.cluster == *debug.cluster);
    Json(json!({
        "epoch": format!("{:016x}", debug.tables.epoch()),
        "revision": debug.tables.head(&debug.cluster),
        "nodes": nodes,
    }))
}

/// Returns the report of each node on the backends of load balancers.
async fn health(Scoped(debug): Scoped) -> Json<Value> {
    let mut nodes = debug.sessions.backend_health();
    nodes.retain(|health| *health.cluster == *debug.cluster);
    Json(json!({ "nodes": nodes }))
}

/// The current table of a node, whether its agent has it or not.
async fn table(
    Scoped(debug): Scoped,
    Path(node): Path<String>,
) -> Result<Json<NodeTable>, Failure> {
    debug.table(&node).map(Json)
}

/// The difference between a node's kernel, as its agent reported it, and its table.
async fn diff(Scoped(debug): Scoped, Path(node): Path<String>) -> Result<Json<Standing>, Failure> {
    let agent = debug
        .agent(&debug.key(&node))
        .ok_or_else(|| Failure::not_found(format!("node {node}: its agent has not connected")))?;
    Ok(Json(agent.standing(&debug.tables)))
}

/// The endpoints that a node uses for an address, with reasons.
async fn explain(
    Scoped(debug): Scoped,
    RawQuery(query): RawQuery,
) -> Result<Json<Explanation>, Failure> {
    debug.explain(&query.unwrap_or_default()).await.map(Json)
}

/// Confirms the table that a node's agent holds back.
async fn confirm(Scoped(debug): Scoped, Path(node): Path<String>) -> Result<Json<Value>, Failure> {
    let confirmed = debug.sessions.confirm(&debug.key(&node));
    let revision =
        confirmed.map_err(|error| Failure::not_found(format!("node {node}: {error}")))?;
    tracing::warn!(node, revision, "an operator confirmed the table");
    Ok(Json(json!({ "node": node, "revision": revision })))
}

/// Current problems of objects and files.
async fn problems(State(debug): State<Debug>) -> Json<Value> {
    let trouble = debug.trouble.lock().unwrap_or_else(PoisonError::into_inner);
    Json(json!(*trouble))
}
