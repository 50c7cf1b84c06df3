//! The admin server: `/livez`, `/readyz`, `/metrics`, and below `/debug/` dumps, for this machine
//! only, and actions, for those with a credential only.

mod access;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;

use crate::{DebugToken, Liveness, Readiness};

/// The metrics of a program, complete before it starts.
pub type Metrics = Arc<Registry>;

/// What the admin server answers.
#[derive(Debug, Clone, Default)]
pub struct Admin {
    /// For `/metrics`, in the OpenMetrics text format.
    pub metrics: Metrics,
    /// For `/livez`.
    pub liveness: Liveness,
    /// For `/readyz`.
    pub readiness: Readiness,
    /// Routes below `/debug`, answered over the Unix socket, and on loopback: they show names and
    /// addresses.
    pub debug: Router,
    /// Routes below `/debug` that change something: answered over the Unix socket, and on loopback
    /// to those who have the token.
    pub actions: Router,
    /// The token, if there is one.
    pub token: Option<DebugToken>,
}

impl Admin {
    /// All routes, to be served on all listeners.
    pub fn router(self) -> Router {
        let actions = self
            .actions
            .layer(from_fn_with_state(self.token, access::with_credential));
        let debug = self.debug.merge(actions);
        Router::new()
            .route("/livez", get(livez).with_state(self.liveness))
            .route("/readyz", get(readyz).with_state(self.readiness))
            .route("/metrics", get(metrics).with_state(self.metrics))
            .nest("/debug", debug.layer(from_fn(access::from_this_machine)))
    }
}

async fn livez(State(liveness): State<Liveness>) -> Response {
    let stuck = liveness.stuck();
    if stuck.is_empty() {
        "ok\n".into_response()
    } else {
        let body = format!("stuck: {}\n", stuck.join(", "));
        (StatusCode::INTERNAL_SERVER_ERROR, body).into_response()
    }
}

async fn readyz(State(readiness): State<Readiness>) -> Response {
    let pending = readiness.pending();
    if pending.is_empty() {
        "ok\n".into_response()
    } else {
        let body = format!("waiting for: {}\n", pending.join(", "));
        (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
    }
}

async fn metrics(State(metrics): State<Metrics>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &metrics) {
        Ok(()) => {
            let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, format)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests;
