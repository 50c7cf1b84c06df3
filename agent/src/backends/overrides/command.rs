// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent backend drain|enable|disable`, over the socket of the agent.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use portolan_health::Administrative;
use portolan_model::RecordKey;
use portolan_runtime::ANSWER_WITHIN;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use super::map::Place;
use super::{CommandError, Now, OverrideStore, balancer_name};
use crate::args::{BackendArgs, BackendCommand, BackendName};
use crate::ask::ask as ask_agent;
use crate::backends::{Health, Tables, health_of_record, second};
use crate::once::print;
use crate::subscribe::{Report, Subscribed};

/// Longest time that a command waits for the kernel.
const PATIENCE: Duration = ANSWER_WITHIN;

/// Commands about backends in the running agent.
#[derive(Debug, Clone)]
pub(crate) struct Commands {
    /// The overrides.
    pub(crate) store: OverrideStore,
    /// The verdicts.
    pub(crate) health: watch::Receiver<Health>,
    /// Tables with health.
    pub(crate) tables: Tables,
    /// Outcomes of programming.
    pub(crate) reports: watch::Receiver<Option<Report>>,
}

/// A command.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    command: BackendCommand,
    backend: BackendName,
    /// Seconds that it holds; `None` for ever.
    seconds: Option<u64>,
}

/// The answer to a command.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Answer {
    /// The backends that the command is about, and what holds for them now.
    backends: Vec<Line>,
    /// Errors of programming.
    errors: Vec<String>,
}

/// The state of a backend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Line {
    /// `NAMESPACE/NAME/ADDRESS:PORT`.
    backend: String,
    /// `enabled`, `drain` or `disabled`.
    state: String,
    /// Whether a command gives it this state.
    by_command: bool,
    /// When that ends (RFC 3339, UTC).
    until: Option<String>,
}

/// Reason why a command has no answer.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error("{0}")]
    Command(#[from] CommandError),
    #[error("the kernel was not programmed within {} s", PATIENCE.as_secs())]
    Late,
    #[error("the agent is ending")]
    Ending,
}

impl Commands {
    /// `POST`s to `/debug/backend`, for those with a credential.
    pub(crate) fn actions(self) -> Router {
        Router::new()
            .route("/backend", post(act))
            .with_state(Arc::new(self))
    }

    async fn run(&self, request: Request) -> Result<Answer, Unanswered> {
        let Request {
            command,
            backend,
            seconds,
        } = request;
        let now = Now::read();
        let (store, at) = (self.store.clone(), now.clone());
        let duration = seconds.map(Duration::from_secs);
        let places =
            tokio::task::spawn_blocking(move || store.command(command, &backend, duration, &at));
        let places = places.await.map_err(|_| Unanswered::Ending)??;
        let programmed = timeout(PATIENCE, self.programmed(&places)).await;
        let errors = programmed.map_err(|_| Unanswered::Late)??;
        Ok(Answer {
            backends: self.lines(&places, &now),
            errors,
        })
    }

    /// Waits until the kernel has the newest states of backends; returns what could not be programmed of their
    /// load balancers. A backend that the table does not have any more is not waited for.
    async fn programmed(&self, places: &[Place]) -> Result<Vec<String>, Unanswered> {
        let in_force = self.store.in_force();
        let mut health = self.health.clone();
        let judged = health.wait_for(|health| {
            places.iter().all(|place| {
                let verdicts = health.get(&place.0);
                let status = verdicts.and_then(|each| each.states.get(&place.1));
                let wanted = in_force.borrow().get(place).copied();
                status.is_some_and(|status| status.commanded == wanted) || !self.store.knows(place)
            })
        });
        drop(judged.await.map_err(|_| Unanswered::Ending)?);
        let has = |place: &Place, table: &Subscribed| {
            let verdicts = self.health.borrow().get(&place.0).cloned();
            let wanted = health_of_record(&place.0, verdicts.as_deref(), &in_force.borrow());
            let health = table.table.health.get(&place.0);
            health.is_some_and(|has| **has == wanted) || !self.store.knows(place)
        };
        let mut tables = self.tables.clone();
        let table = tables.wait_for(|table| match table {
            Some(table) => places.iter().all(|place| has(place, table)),
            None => places.is_empty(),
        });
        let table = table.await.map_err(|_| Unanswered::Ending)?.clone();
        let Some(checked) = table
            .map(|table| table.checked)
            .filter(|_| !places.is_empty())
        else {
            return Ok(Vec::new());
        };
        let mut reports = self.reports.clone();
        let is_tried = |report: &Option<Report>| {
            let report = report.as_ref();
            report.is_some_and(|report| report.checked >= checked)
        };
        let report = reports.wait_for(is_tried).await;
        let report = report.map_err(|_| Unanswered::Ending)?;
        let errors = report.iter().flat_map(|report| &report.errors);
        let is_ours = |key: &Option<RecordKey>| match key {
            Some(key) => places.iter().any(|place| place.0 == *key),
            None => true,
        };
        let own = errors.filter(|(key, _)| is_ours(key));
        Ok(own.map(|(_, error)| error.clone()).collect())
    }

    /// Returns the states of the backends of a command. Frontends that share a backend are one line.
    fn lines(&self, places: &[Place], now: &Now) -> Vec<Line> {
        let (health, overrides) = (self.health.borrow().clone(), self.store.all());
        let line = |(key, address): &Place| {
            let balancer = balancer_name(key);
            let status = health.get(key).and_then(|each| each.states.get(address));
            let commanded = overrides.of(&balancer, *address);
            let until = commanded.and_then(|each| now.wall_at(each.until?));
            let state = status.map_or(Administrative::Enabled, |status| status.administrative);
            Line {
                backend: format!("{balancer}/{address}"),
                state: state.to_string(),
                by_command: commanded.is_some(),
                until: until.map(second),
            }
        };
        let mut lines: Vec<_> = places.iter().map(line).collect();
        lines.sort_unstable();
        lines.dedup();
        lines
    }
}

async fn act(
    State(commands): State<Arc<Commands>>,
    Json(request): Json<Request>,
) -> (StatusCode, Json<serde_json::Value>) {
    let error = match commands.run(request).await {
        Ok(answer) => return (StatusCode::OK, Json(serde_json::json!(answer))),
        Err(error) => error,
    };
    let status = match &error {
        Unanswered::Command(CommandError::Refused(_)) => StatusCode::NOT_FOUND,
        Unanswered::Command(CommandError::Disk(_)) => StatusCode::INSUFFICIENT_STORAGE,
        Unanswered::Late => StatusCode::GATEWAY_TIMEOUT,
        Unanswered::Ending => StatusCode::SERVICE_UNAVAILABLE,
    };
    let error = serde_json::json!({ "error": error.to_string() });
    (status, Json(error))
}

/// Asks the agent behind a socket, and prints what holds for the backends.
///
/// # Errors
/// If the agent does not answer, knows no such backend, or could not program something.
pub async fn ask(args: &BackendArgs) -> anyhow::Result<()> {
    let request = Request {
        command: args.command,
        backend: args.backend.clone(),
        seconds: args.duration.map(|duration| duration.as_secs().max(1)),
    };
    let body = serde_json::to_vec(&request)?;
    let answer: Answer =
        ask_agent(&args.agent.address, Method::POST, "/debug/backend", body).await?;
    let mut text = String::new();
    for line in &answer.backends {
        let why = match (line.by_command, &line.until) {
            (true, Some(until)) => format!(" (by command, until {until})"),
            (true, None) => " (by command)".to_owned(),
            (false, _) => String::new(),
        };
        text.push_str(&format!("{}: {}{why}\n", line.backend, line.state));
    }
    print(&text)?;
    for error in &answer.errors {
        tracing::error!("{error}");
    }
    let wrong = answer.errors.len();
    ensure!(wrong == 0, "{wrong} errors");
    Ok(())
}
