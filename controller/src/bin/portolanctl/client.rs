//! Plain HTTP to the controller, over TCP or its Unix socket.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use axum::body::Bytes;
use axum::http::{Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

pub(crate) struct Client {
    controller: String,
    token_file: Option<PathBuf>,
}

impl Client {
    pub(crate) fn new(controller: &str, token_file: Option<PathBuf>) -> Self {
        let controller = controller.trim_end_matches('/').to_owned();
        Self {
            controller,
            token_file,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(Method::GET, path).await
    }

    pub(crate) async fn post(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(Method::POST, path).await
    }

    async fn ask(&self, method: Method, path: &str) -> anyhow::Result<Value> {
        let at = &self.controller;
        let answered = match at.strip_prefix("unix://") {
            Some(socket) => {
                let stream = UnixStream::connect(Path::new(socket)).await;
                let stream = stream.with_context(|| format!("no controller answers at {at}"))?;
                let request = self.request(method, path, "localhost")?;
                send(stream, request).await
            }
            None => {
                let authority = authority(at)?;
                let stream = TcpStream::connect(&authority).await;
                let stream = stream.with_context(|| format!("no controller answers at {at}"))?;
                let request = self.request(method, path, &authority)?;
                send(stream, request).await
            }
        };
        let (head, body) = answered.with_context(|| at.clone())?.into_parts();
        let answer: Option<Value> = serde_json::from_slice(&body).ok();
        match answer {
            Some(answer) if head.status.is_success() => Ok(answer),
            Some(answer) if answer["error"].is_string() => {
                bail!("{}", answer["error"].as_str().unwrap_or_default())
            }
            _ => bail!(
                "{at}: {}: {}",
                head.status,
                String::from_utf8_lossy(&body).trim()
            ),
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        host: &str,
    ) -> anyhow::Result<Request<Empty<Bytes>>> {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(header::HOST, host);
        if let Some(path) = &self.token_file {
            let token = std::fs::read_to_string(path);
            let token = token.with_context(|| format!("--token-file {}", path.display()))?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        Ok(request.body(Empty::new())?)
    }
}

/// Host and port of `http://host:port`.
fn authority(controller: &str) -> anyhow::Result<String> {
    let uri: Option<Uri> = controller.parse().ok();
    let uri = uri.filter(|uri| uri.scheme_str() == Some("http"));
    match uri.as_ref().and_then(Uri::authority) {
        Some(authority) if authority.port().is_some() => Ok(authority.to_string()),
        Some(authority) => Ok(format!("{authority}:80")),
        None => bail!("--controller {controller:?}: expected http://HOST:PORT or unix:///PATH"),
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
) -> anyhow::Result<Response<Bytes>> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Its errors are those of the request.
    tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

/// A name as a part of a path or a query.
pub(crate) fn encoded(name: &str) -> String {
    form_urlencoded::byte_serialize(name.as_bytes()).collect()
}
