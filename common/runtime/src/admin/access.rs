// SPDX-License-Identifier: Apache-2.0

//! Access control of dumps, pages and actions.

use std::net::IpAddr;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse as _, Response};
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
    match elsewhere(peer, request.headers()) {
        Some(message) => refused(StatusCode::FORBIDDEN, message),
        None => next.run(request).await,
    }
}

/// Admits the same requests to pages. All others get a hint, in place of any content.
pub(super) async fn pages_from_this_machine(
    State(hint): State<fn(&str) -> String>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let Some(message) = elsewhere(peer, request.headers()) else {
        return next.run(request).await;
    };
    let headers = [
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (StatusCode::FORBIDDEN, headers, Html(hint(message))).into_response()
}

/// Reason why a request is not from this machine; `None` if it is.
fn elsewhere(peer: Peer, headers: &HeaderMap) -> Option<&'static str> {
    let Peer::Tcp(address) = peer else {
        return None;
    };
    if !address.ip().to_canonical().is_loopback() {
        return Some("dumps and pages answer on loopback only");
    }
    let is_named = names_this_machine(headers);
    (!is_named).then_some("the header Host is neither an IP address nor localhost")
}

/// Returns `true` if every `Host` header is an IP address or `localhost`, with or without a port.
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
/// connect over loopback. Those that are admitted are in the audit log.
pub(super) async fn with_credential(
    State(token): State<Option<DebugToken>>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if let Peer::Tcp(_) = peer
        && let Some(refusal) = without_token(token.as_ref(), request.headers())
    {
        return refusal;
    }
    let action = request.uri().to_string();
    // An action goes on without its client, so the log must too.
    let acting = tokio::spawn(async move {
        let response = next.run(request).await;
        let (who, status) = (who(peer), response.status().as_u16());
        tracing::info!(target: "audit", %who, %action, status, "audit: an operator acted");
        response
    });
    match acting.await {
        Ok(response) => response,
        Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// The client that was admitted, in words.
fn who(peer: Peer) -> String {
    match peer {
        Peer::Tcp(address) => format!("{address} with the token"),
        Peer::Unix(Some(user)) => format!("user {user} of the socket"),
        Peer::Unix(None) => String::from("a user of the socket"),
    }
}

/// The answer to a request over TCP that does not show the token; `None` if it does.
fn without_token(token: Option<&DebugToken>, headers: &HeaderMap) -> Option<Response> {
    let Some(token) = token else {
        let message = "actions over TCP need a token, and --debug-token-file is not set; \
                       the Unix socket of --debug-listen needs none";
        return Some(refused(StatusCode::FORBIDDEN, message));
    };
    let shown = headers.get(header::AUTHORIZATION);
    let shown = shown.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    match token.matches(shown.unwrap_or_default()) {
        Ok(true) => None,
        Ok(false) => {
            let message = "actions over TCP need the header Authorization: Bearer TOKEN, with the \
                           token of --debug-token-file";
            Some(refused(StatusCode::UNAUTHORIZED, message))
        }
        Err(error) => {
            tracing::warn!(%error, "--debug-token-file");
            Some(refused(
                StatusCode::INTERNAL_SERVER_ERROR,
                &error.to_string(),
            ))
        }
    }
}
