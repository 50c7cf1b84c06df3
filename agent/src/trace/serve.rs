// SPDX-License-Identifier: Apache-2.0

//! The route of traces in the running agent.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::question::Question;
use super::{TraceError, Tracer};

impl Tracer {
    /// `GET /debug/trace?from=FROM&to=ADDRESS:PORT`, and `&protocol=udp`.
    pub(crate) fn dumps(&self) -> Router {
        Router::new()
            .route("/trace", get(trace))
            .with_state(self.clone())
    }
}

async fn trace(
    State(tracer): State<Tracer>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, (StatusCode, Json<Value>)> {
    let answer = async {
        let question = Question::parse(&query.unwrap_or_default())?;
        tracer.trace(&question).await
    };
    match answer.await {
        Ok(trace) => Ok(Json(json!(trace))),
        Err(error) => {
            let status = match error {
                TraceError::Question(_) => StatusCode::BAD_REQUEST,
                TraceError::NoTable => StatusCode::SERVICE_UNAVAILABLE,
                TraceError::Kernel(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            Err((status, Json(json!({ "error": error.to_string() }))))
        }
    }
}
