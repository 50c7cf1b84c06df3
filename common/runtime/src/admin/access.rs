// SPDX-License-Identifier: Apache-2.0

//! Access control below `/debug`.

use std::net::IpAddr;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde_json::json;

use crate::{DebugToken, Peer};

/// An error in the JSON form of all errors below `/debug`.
fn refused(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "error": message }))).into_response()
}

/// Admits requests over the Unix socket and over loopback. Over loopback, the `Host` header must name
/// this machine: a web page whose name resolves to a loopback address (DNS rebinding) sends its own.
pub(super) async fn from_this_machine(
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if let Peer::Tcp(address) = peer {
        if !address.ip().to_canonical().is_loopback() {
            return refused(StatusCode::FORBIDDEN, "/debug answers on loopback only");
        }
        if !names_this_machine(request.headers()) {
            let message = "the header Host is neither an IP address nor localhost";
            return refused(StatusCode::FORBIDDEN, message);
        }
    }
    next.run(request).await
}

/// Whether every `Host` header is an IP address or `localhost`, with or without a port.
fn names_this_machine(headers: &HeaderMap) -> bool {
    headers.get_all(header::HOST).iter().all(|value| {
        let authority = Authority::try_from(value.as_bytes());
        authority.is_ok_and(|authority| {
            let host = authority.host();
            let address = host.trim_start_matches('[').trim_end_matches(']');
            host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
        })
    })
}

/// Admits requests over the Unix socket, and requests with the token: every process of the machine can
/// connect over loopback.
pub(super) async fn with_credential(
    State(token): State<Option<DebugToken>>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if peer == Peer::Unix {
        return next.run(request).await;
    }
    let Some(token) = token else {
        let message = "actions over TCP need a token, and --debug-token-file is not set; \
                       the Unix socket of --debug-listen needs none";
        return refused(StatusCode::FORBIDDEN, message);
    };
    let shown = request.headers().get(header::AUTHORIZATION);
    let shown = shown.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    match token.matches(shown.unwrap_or_default()) {
        Ok(true) => next.run(request).await,
        Ok(false) => {
            let message = "actions over TCP need the header Authorization: Bearer TOKEN, with the \
                           token of --debug-token-file";
            refused(StatusCode::UNAUTHORIZED, message)
        }
        Err(error) => {
            tracing::warn!(%error, "--debug-token-file");
            refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
        }
    }
}
