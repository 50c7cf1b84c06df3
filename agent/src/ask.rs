// SPDX-License-Identifier: Apache-2.0

//! Requests of commands to the running agent, over its debug socket.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

/// Longest answer that is read.
const MAX_ANSWER: usize = 32 << 20;

/// The path of the socket of `--address`.
///
/// # Errors
/// If it is no absolute path behind `unix://`.
pub(crate) fn socket_path(address: &str) -> anyhow::Result<&Path> {
    let path = address.strip_prefix("unix://").map(Path::new);
    match path.filter(|path| path.is_absolute()) {
        Some(path) => Ok(path),
        None => bail!("--address {address:?}: expected unix:///PATH"),
    }
}

/// Sends a request to the agent behind a socket; `address` is `unix:///PATH`.
///
/// # Errors
/// If the agent does not answer, or with what it says against the request.
pub(crate) async fn ask<T: DeserializeOwned>(
    address: &str,
    method: Method,
    path: &str,
    body: Vec<u8>,
) -> anyhow::Result<T> {
    let socket = socket_path(address)?;
    let (status, body) = exchange(socket, method, path, body)
        .await
        .with_context(|| address.to_owned())?;
    ensure!(
        status.is_success(),
        "{}",
        serde_json::from_slice::<serde_json::Value>(&body)
            .ok()
            .and_then(|value| Some(value["error"].as_str()?.to_owned()))
            .unwrap_or_else(|| status.to_string())
    );
    serde_json::from_slice(&body).context("the agent's answer is of another version")
}

async fn exchange(
    socket: &Path,
    method: Method,
    path: &str,
    body: Vec<u8>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream.context("no agent answers")?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Its errors are those of the request.
    let connection = tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path);
    let request = request
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json");
    let response = sender.send_request(request.body(Full::new(Bytes::from(body)))?);
    let (head, body) = response.await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    connection.abort();
    match body {
        Ok(body) => Ok((head.status, body.to_bytes())),
        Err(error) => bail!("the agent's answer: {error}"),
    }
}
