//! Dumps for people and tests, on loopback: `/debug/nodes`, `/debug/table/NODE`, `/debug/problems`.

use std::sync::{Arc, PoisonError};

use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use portolan_model::{NodeKey, NodeTable};
use portolan_serve::{Registry, Tables};
use serde_json::{Value, json};

use crate::writer::SharedTrouble;

/// What the dumps show.
#[derive(Debug, Clone)]
pub(crate) struct Debug {
    pub(crate) cluster: Arc<str>,
    pub(crate) tables: Tables,
    pub(crate) sessions: Arc<Registry>,
    pub(crate) trouble: SharedTrouble,
}

impl Debug {
    pub(crate) fn routes(self) -> Router {
        Router::new()
            .route("/nodes", get(nodes))
            .route("/table/{node}", get(table))
            .route("/problems", get(problems))
            .with_state(self)
    }
}

/// The newest revision, and what each node has of it.
async fn nodes(State(debug): State<Debug>) -> Json<Value> {
    Json(json!({
        "epoch": format!("{:016x}", debug.tables.epoch()),
        "revision": debug.tables.head(&debug.cluster),
        "nodes": debug.sessions.snapshot(),
    }))
}

/// The table of a node as it is now, whether its agent has it or not.
async fn table(State(debug): State<Debug>, Path(node): Path<String>) -> Json<NodeTable> {
    let key = NodeKey {
        cluster: Arc::clone(&debug.cluster),
        name: node.into(),
    };
    Json(debug.tables.table(&key))
}

/// What is wrong with objects and files at present.
async fn problems(State(debug): State<Debug>) -> Json<Value> {
    let trouble = debug.trouble.lock().unwrap_or_else(PoisonError::into_inner);
    Json(json!(*trouble))
}
