// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent director active|standby|show`, over the socket of the agent.

use std::time::Duration;

use anyhow::ensure;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use portolan_director::Role;
use portolan_runtime::ANSWER_WITHIN;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{Activity, HostDirector, RoleError};
use crate::args::DirectorCommand;
use crate::ask::ask as ask_agent;

/// Longest time that a command waits for the kernel.
const PATIENCE: Duration = ANSWER_WITHIN;

/// The answer to a command.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// The role that the director has.
    role: Activity,
    /// Whether it is chosen by command.
    by_command: bool,
    /// Errors in the host's settings, and of their programming.
    errors: Vec<String>,
}

/// `POST`s to `/debug/director/COMMAND`, for those with a credential.
pub(crate) fn actions(director: HostDirector) -> Router {
    Router::new()
        .route("/director/{command}", post(act))
        .with_state(director)
}

async fn act(
    State(director): State<HostDirector>,
    Path(command): Path<String>,
) -> (StatusCode, Json<serde_json::Value>) {
    let answered = match command.as_str() {
        "active" => director.command(Some(Activity::Active)).await,
        "standby" => director.command(Some(Activity::Standby)).await,
        "show" => director.command(None).await,
        _ => {
            let error = format!("{command:?}: expected active, standby or show");
            return refused(StatusCode::NOT_FOUND, &error);
        }
    };
    match answered {
        Ok(Some(answer)) => (StatusCode::OK, Json(serde_json::json!(answer))),
        Ok(None) => {
            let error = format!("the kernel was not programmed within {PATIENCE:?}");
            refused(StatusCode::GATEWAY_TIMEOUT, &error)
        }
        Err(error) => refused(StatusCode::CONFLICT, &error.to_string()),
    }
}

fn refused(status: StatusCode, error: &str) -> (StatusCode, Json<serde_json::Value>) {
    (status, Json(serde_json::json!({ "error": error })))
}

impl HostDirector {
    /// Takes a role if one is given, and waits until the kernel has it; `None` if that takes too long.
    async fn command(&self, activity: Option<Activity>) -> Result<Option<Answer>, RoleError> {
        let mut done = self.0.done.subscribe();
        if let Some(activity) = activity {
            let number = self.take(activity)?;
            let reached = done.wait_for(|done| done.number >= number);
            if timeout(PATIENCE, reached).await.is_err() {
                return Ok(None);
            }
        }
        let (role, chosen) = self.role()?;
        let errors = done.borrow().errors.clone();
        Ok(Some(Answer {
            role,
            by_command: chosen == Role::Command,
            errors,
        }))
    }
}

/// Asks the agent behind a socket, and prints the role.
///
/// # Errors
/// If the agent does not answer, refuses, or could not program something.
pub async fn ask(command: DirectorCommand, address: &str) -> anyhow::Result<()> {
    let path = format!("/debug/director/{}", command.name());
    let answer: Answer = ask_agent(address, Method::POST, &path, Vec::new()).await?;
    for error in &answer.errors {
        tracing::error!("{error}");
    }
    let why = match answer.by_command {
        true => "by command",
        false => "always",
    };
    crate::once::print(&format!("{} ({why})\n", answer.role))?;
    let wrong = answer.errors.len();
    ensure!(wrong == 0, "{wrong} errors");
    Ok(())
}
