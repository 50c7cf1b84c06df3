// SPDX-License-Identifier: Apache-2.0

//! The present state of the agent, for the debug dumps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{NodeTable, Record, RecordKey};
use portolan_plan::Config;
use portolan_reconcile::SharedDesired;
use serde_json::{Value, json};

use crate::choice::Choice;
use crate::subscribe::{ClusterPin, HeldDeletions, HeldView, Subscribed};
use crate::sync::Outcome;

/// The dumps, shared between the reconcile loop and the admin server.
#[derive(Debug, Clone, Default)]
pub struct Status {
    dumps: Arc<Mutex<Dumps>>,
    held: HeldView,
    pin: ClusterPin,
    choice: Option<Choice>,
}

#[derive(Debug, Default)]
struct Dumps {
    /// The last table and its desired state, rendered only on request.
    table: Option<Arc<NodeTable>>,
    revision: u64,
    state: Value,
    desired: Option<SharedDesired>,
    /// Configuration by which the kernel was programmed last; `None` for that of the start.
    config: Option<Config>,
}

impl Status {
    /// Adds the cluster that the node belongs to, and its dataplane.
    #[must_use]
    pub fn new(pin: ClusterPin, choice: Choice) -> Self {
        Self {
            pin,
            choice: Some(choice),
            ..Self::default()
        }
    }

    /// Records a reconciliation.
    pub fn update(&self, target: &Subscribed, desired: Option<SharedDesired>, outcome: &Outcome) {
        let errors: Vec<_> = outcome
            .errors
            .iter()
            .map(|(record, message)| {
                json!({ "record": record.as_ref().map(ToString::to_string), "message": message })
            })
            .collect();
        let mut dumps = self.dumps.lock().unwrap_or_else(PoisonError::into_inner);
        dumps.table = Some(Arc::clone(&target.table));
        dumps.revision = target.revision;
        dumps.desired = desired;
        dumps.state = json!({
            "epoch": format!("{:016x}", target.epoch),
            "revision": target.revision,
            "is_from_disk": target.is_from_disk,
            "objects": outcome.objects,
            "duration_us": u64::try_from(outcome.duration.as_micros()).unwrap_or(u64::MAX),
            "errors": errors,
        });
    }

    /// Records the configuration of a reconciliation, if it is not that of the start for ever.
    pub fn set_config(&self, config: Option<&Config>) {
        let mut dumps = self.dumps.lock().unwrap_or_else(PoisonError::into_inner);
        if dumps.config.as_ref() != config {
            dumps.config = config.cloned();
        }
    }

    /// The configuration by which the kernel was programmed last; `None` for that of the start.
    #[must_use]
    pub fn config(&self) -> Option<Config> {
        self.with(|dumps| dumps.config.clone())
    }

    /// The table that the kernel was made equal to last, and its revision.
    #[must_use]
    pub fn table_in_force(&self) -> Option<(Arc<NodeTable>, u64)> {
        self.with(|dumps| Some((Arc::clone(dumps.table.as_ref()?), dumps.revision)))
    }

    /// The record of each desired virtual server; `None` if the dataplane has none.
    #[must_use]
    pub fn virtual_servers(&self) -> Option<BTreeMap<VirtualServerKey, RecordKey>> {
        let desired = self.with(|dumps| dumps.desired.clone())?;
        Some(desired.read(|desired| {
            let records = desired.records.iter();
            records
                .map(|(key, record)| (*key, record.key.clone()))
                .collect()
        }))
    }

    /// The desired virtual servers of load balancers with their records; `None` if the dataplane has none.
    #[must_use]
    pub fn balanced_servers(&self) -> Option<Vec<(VirtualServerKey, Arc<Record>)>> {
        let desired = self.with(|dumps| dumps.desired.clone())?;
        Some(desired.read(|desired| {
            let records = desired.records.iter();
            let balanced = records.filter(|(_, record)| record.balancing.is_some());
            balanced
                .map(|(key, record)| (*key, Arc::clone(record)))
                .collect()
        }))
    }

    /// Returns `true` if conntrack must know connections of IPVS now: for rules, or for a masqueraded server.
    #[must_use]
    pub fn needs_conntrack(&self) -> bool {
        let desired = self.with(|dumps| dumps.desired.clone());
        desired.is_some_and(|desired| {
            desired.read(|desired| !desired.state.rules.is_empty() || desired.masquerades())
        })
    }

    /// The held deletions.
    #[must_use]
    pub fn held(&self) -> &HeldView {
        &self.held
    }

    /// `/debug/status`, `/debug/table`, `/debug/desired`.
    pub fn dumps(&self) -> Router {
        Router::new()
            .route("/status", get(status))
            .route("/table", get(table))
            .route("/desired", get(desired))
            .with_state(self.clone())
    }

    /// A `POST` to `/debug/confirm`, for those with a credential.
    pub fn actions(&self) -> Router {
        Router::new()
            .route("/confirm", post(confirm))
            .with_state(self.clone())
    }

    fn with<T>(&self, render: impl FnOnce(&Dumps) -> T) -> T {
        render(&self.dumps.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn status(State(status): State<Status>) -> Json<Value> {
    let mut state = status.with(|dumps| dumps.state.clone());
    let held = status.held.held();
    let pin = status.pin.status();
    if state.is_null() && (held.is_some() || pin.refused.is_some() || status.choice.is_some()) {
        state = json!({});
    }
    if let Value::Object(state) = &mut state {
        state.insert("cluster".to_owned(), json!(pin));
        if let Some(choice) = status.choice {
            state.insert("dataplane".to_owned(), json!(choice.dataplane));
            state.insert("dataplane_reason".to_owned(), json!(choice.reason));
        }
    }
    if let (Value::Object(state), Some(held)) = (&mut state, held) {
        state.insert("held".to_owned(), held_json(&held));
    }
    Json(state)
}

fn held_json(held: &HeldDeletions) -> Value {
    let remaining = held
        .until
        .map(|u| u.saturating_duration_since(Instant::now()));
    json!({
        "epoch": format!("{:016x}", held.epoch),
        "revision": held.revision,
        "deleted": held.loss.lost.records,
        "records": held.loss.of.records,
        "deleted_endpoints": held.loss.lost.endpoints,
        "endpoints": held.loss.of.endpoints,
        "confirmed_in_seconds": remaining.map(|remaining| remaining.as_secs()),
    })
}

/// Confirms the held deletions, on behalf of an operator.
async fn confirm(State(status): State<Status>) -> (StatusCode, Json<Value>) {
    match status.held.confirm() {
        Some(held) => (StatusCode::OK, Json(held_json(&held))),
        None => (
            StatusCode::CONFLICT,
            Json(json!({ "error": "no deletions are held back" })),
        ),
    }
}

async fn table(State(status): State<Status>) -> Json<Option<Arc<NodeTable>>> {
    Json(status.with(|dumps| dumps.table.clone()))
}

async fn desired(State(status): State<Status>) -> Json<Value> {
    Json(status.with(|dumps| {
        let Some(desired) = &dumps.desired else {
            return Value::Null;
        };
        desired.read(render_desired)
    }))
}

fn render_desired(desired: &portolan_plan::Desired) -> Value {
    let servers: Vec<_> = desired
        .state
        .virtual_servers
        .iter()
        .map(|(key, server)| {
            let record = desired
                .records
                .get(key)
                .map(|record| record.key.to_string());
            json!({ "key": key.to_string(), "record": record, "server": server })
        })
        .collect();
    let sets: serde_json::Map<_, _> = desired
        .state
        .sets
        .iter()
        .map(|(name, set)| {
            let entries: Vec<_> = set.entries.iter().map(ToString::to_string).collect();
            (name.clone(), json!(entries))
        })
        .collect();
    json!({
        "virtual_servers": servers,
        "sets": sets,
        "routes": desired.state.routes,
        "refused": desired.refused.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;
    use crate::choice::Reason;

    #[tokio::test]
    async fn the_dataplane_is_shown_before_the_first_table() {
        let choice = Choice {
            dataplane: "nftables",
            reason: Reason::Probe,
        };
        let status = Status::new(ClusterPin::default(), choice);
        let request = Request::get("/status").body(Body::empty()).unwrap();
        let answer = status.dumps().oneshot(request).await.unwrap();
        let body = axum::body::to_bytes(answer.into_body(), 9999)
            .await
            .unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["dataplane"], "nftables");
        assert_eq!(body["dataplane_reason"], "probe");
    }

    #[tokio::test]
    async fn nothing_can_be_confirmed_that_is_not_held_and_looking_confirms_nothing() {
        let status = Status::default();
        for (method, expected) in [
            ("POST", StatusCode::CONFLICT),
            ("GET", StatusCode::METHOD_NOT_ALLOWED),
        ] {
            let request = Request::builder().method(method).uri("/confirm");
            let request = request.body(Body::empty()).unwrap();
            let answer = status.actions().oneshot(request).await.unwrap();
            assert_eq!(answer.status(), expected, "{method}");
            if expected == StatusCode::CONFLICT {
                let body = axum::body::to_bytes(answer.into_body(), 9999)
                    .await
                    .unwrap();
                let body: Value = serde_json::from_slice(&body).unwrap();
                // As all actions answer.
                assert_eq!(body, json!({ "error": "no deletions are held back" }));
            }
        }
    }
}
