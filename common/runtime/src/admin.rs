// SPDX-License-Identifier: Apache-2.0

//! The admin server: `/livez`, `/readyz`, `/metrics`; pages for browsers, and below `/debug/` dumps, which
//! answer on this machine only, and actions, which need a credential.

mod access;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use crate::{BUILD, DebugToken, Liveness, Readiness};

/// The metrics of a program, all of them registered before it serves.
pub type Metrics = Arc<Registry>;

/// The content of the admin server.
#[derive(Debug, Clone, Default)]
pub struct Admin {
    /// For `/metrics`, in the OpenMetrics text format.
    pub metrics: Metrics,
    /// For `/livez`.
    pub liveness: Liveness,
    /// For `/readyz`.
    pub readiness: Readiness,
    /// Routes of dumps below `/debug`. They show names and addresses, and therefore answer over the
    /// Unix socket and on loopback only.
    pub debug: Router,
    /// Routes of actions below `/debug`, which answer over the Unix socket, and on loopback with the
    /// token.
    pub actions: Router,
    /// The token for actions over TCP.
    pub token: Option<DebugToken>,
    /// Pages for browsers; `None` for a program without any.
    pub pages: Option<Pages>,
}

/// Pages for browsers, which show what dumps do and answer where dumps do.
#[derive(Debug, Clone)]
pub struct Pages {
    /// Their routes, from the root.
    pub routes: Router,
    /// The page for browsers that are not admitted, of the reason.
    pub hint: fn(&str) -> String,
}

impl Admin {
    /// The routes other than those below `/debug`, for a listener beside the Unix socket.
    pub fn router_without_debug(self) -> Router {
        Router::new()
            .route("/livez", get(livez).with_state(self.liveness))
            .route("/readyz", get(readyz).with_state(self.readiness))
            .route("/metrics", get(metrics).with_state(self.metrics))
    }

    /// All routes, for all listeners.
    pub fn router(self) -> Router {
        let actions = self.actions.clone().layer(from_fn_with_state(
            self.token.clone(),
            access::with_credential,
        ));
        let debug = self.debug.clone().route("/version", get(version));
        let debug = debug.merge(actions);
        let pages = self.pages.clone().map(|pages| {
            let layer = from_fn_with_state(pages.hint, access::pages_from_this_machine);
            pages.routes.layer(layer)
        });
        self.router_without_debug()
            .merge(pages.unwrap_or_default())
            .nest("/debug", debug.layer(from_fn(access::from_this_machine)))
    }
}

/// The build, in the fields of `portolan_build_info`.
async fn version() -> Json<Value> {
    Json(json!({ "version": BUILD.version, "revision": BUILD.revision, "rustc": BUILD.rustc }))
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
