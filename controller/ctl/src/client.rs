// SPDX-License-Identifier: Apache-2.0

//! HTTP requests to a controller: over TCP, its Unix socket, or a port forwarded to its pod.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::body::Bytes;
use axum::http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::args::ConnectArgs;
use crate::forward::{Pod, pods};

/// Default address of dumps.
const ADMIN: &str = "http://127.0.0.1:9444";
/// Default address of actions, which need a token over TCP.
const SOCKET: &str = "unix:///run/portolan/controller.sock";

/// One controller.
#[derive(Debug)]
pub(crate) struct Client {
    address: Address,
    token_file: Option<PathBuf>,
    cluster: Option<String>,
    timeout: Duration,
}

#[derive(Debug)]
enum Address {
    Tcp(String),
    Unix(PathBuf),
    Pod(Box<Pod>),
}

/// A connection of any kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The controllers that the flags name; never none.
pub(crate) async fn clients(args: &ConnectArgs, is_action: bool) -> anyhow::Result<Vec<Client>> {
    let client = |address| Client {
        address,
        token_file: args.token_file.clone(),
        cluster: args.cluster().map(str::to_owned),
        timeout: args.timeout,
    };
    if args.wants_pods() {
        let pods = timeout(args.timeout, pods(args)).await;
        let pods = pods.context("the API server does not answer in time")??;
        return Ok(pods
            .into_iter()
            .map(|pod| client(Address::Pod(Box::new(pod))))
            .collect());
    }
    let default = match is_action && args.token_file.is_none() {
        true => SOCKET,
        false => ADMIN,
    };
    if args.controller.is_empty() {
        return Ok(vec![args.client("--controller", default)?]);
    }
    let addresses = args.controller.iter();
    addresses
        .map(|text| args.client("--controller", text))
        .collect()
}

/// An error that the other side answered with: it would be the same at another controller.
#[derive(Debug)]
pub(crate) struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// An error of a controller that follows another one, which must be asked.
#[derive(Debug)]
pub(crate) struct Follower(String);

impl fmt::Display for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Follower {}

impl ConnectArgs {
    /// Returns `true` if controllers are named.
    pub(crate) fn names_controllers(&self) -> bool {
        !self.controller.is_empty() || self.wants_pods()
    }

    /// The cluster. An empty variable names none.
    pub(crate) fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref().filter(|name| !name.is_empty())
    }

    fn wants_pods(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some() || self.namespace.is_some()
    }

    /// A client of the program at this address.
    pub(crate) fn client(&self, flag: &str, text: &str) -> anyhow::Result<Client> {
        Ok(Client {
            address: address(text).with_context(|| flag.to_owned())?,
            token_file: self.token_file.clone(),
            cluster: self.cluster().map(str::to_owned),
            timeout: self.timeout,
        })
    }
}

/// The agent at an address, which is shown no token.
pub(crate) fn of_agent(text: &str, timeout: Duration) -> anyhow::Result<Client> {
    Ok(Client {
        address: address(text).context("--address")?,
        token_file: None,
        cluster: None,
        timeout,
    })
}

impl Client {
    /// The same client with the file of a token, which each request shows.
    pub(crate) fn with_token(self, token_file: Option<PathBuf>) -> Self {
        Self { token_file, ..self }
    }

    /// Name of the controller in messages.
    pub(crate) fn name(&self) -> String {
        match &self.address {
            Address::Tcp(authority) => format!("http://{authority}"),
            Address::Unix(path) => format!("unix://{}", path.display()),
            Address::Pod(pod) => format!("pod {pod}"),
        }
    }

    /// An error of a request, with the name of the controller.
    pub(crate) fn named(&self, error: &anyhow::Error) -> String {
        let (name, text) = (self.name(), format!("{error:#}"));
        match text.contains(&name) {
            true => text,
            false => format!("{name}: {text}"),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.request_json(Method::GET, path, String::new()).await
    }

    pub(crate) async fn post(&self, path: &str) -> anyhow::Result<Value> {
        self.send(path, String::new()).await
    }

    /// POSTs a text.
    pub(crate) async fn send(&self, path: &str, text: String) -> anyhow::Result<Value> {
        self.request_json(Method::POST, path, text).await
    }

    /// Status and body of a path whose answer is plain text.
    pub(crate) async fn get_text(&self, path: &str) -> anyhow::Result<(u16, String)> {
        let (head, body) = self
            .request(Method::GET, path, String::new())
            .await?
            .into_parts();
        let text = String::from_utf8_lossy(&body).trim().to_owned();
        Ok((head.status.as_u16(), text))
    }

    async fn request_json(
        &self,
        method: Method,
        path: &str,
        text: String,
    ) -> anyhow::Result<Value> {
        let (head, body) = self.request(method, path, text).await?.into_parts();
        let answer: Option<Value> = serde_json::from_slice(&body).ok();
        let answer = match answer {
            Some(answer) if head.status.is_success() => return Ok(answer),
            answer => answer.unwrap_or_default(),
        };
        // A program that starts or stops: another one may have the answer.
        let is_passing = head.status == StatusCode::SERVICE_UNAVAILABLE;
        let error = match answer["error"].as_str() {
            Some(error) if is_passing => format!("{}: {error}", self.name()),
            Some(error) => error.to_owned(),
            None => {
                let text = String::from_utf8_lossy(&body);
                format!("{}: {}: {}", self.name(), head.status, text.trim())
            }
        };
        match head.status {
            _ if is_passing => bail!(error),
            StatusCode::MISDIRECTED_REQUEST => Err(Follower(error).into()),
            _ => Err(Refused(error).into()),
        }
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        text: String,
    ) -> anyhow::Result<Response<Bytes>> {
        let exchange = async {
            let stream = self.connect().await;
            let stream = stream.with_context(|| format!("nobody answers at {}", self.name()))?;
            let request = self.build(method, path, text)?;
            let answer = exchange(stream, request).await;
            answer.with_context(|| self.name())
        };
        let answer = timeout(self.timeout, exchange).await;
        answer.with_context(|| format!("{}: no answer in {:?}", self.name(), self.timeout))?
    }

    async fn connect(&self) -> anyhow::Result<Box<dyn Stream>> {
        Ok(match &self.address {
            Address::Tcp(authority) => Box::new(TcpStream::connect(authority).await?),
            Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Address::Pod(pod) => Box::new(pod.connect().await?),
        })
    }

    /// A path with the cluster that dumps and actions are about.
    fn in_cluster<'p>(&self, path: &'p str) -> Cow<'p, str> {
        let Some(cluster) = self
            .cluster
            .as_ref()
            .filter(|_| path.starts_with("/debug/"))
        else {
            return Cow::Borrowed(path);
        };
        let mark = if path.contains('?') { '&' } else { '?' };
        let start = format!("{path}{mark}");
        let length = start.len();
        let mut serializer = form_urlencoded::Serializer::for_suffix(start, length);
        Cow::Owned(serializer.append_pair("cluster", cluster).finish())
    }

    fn build(
        &self,
        method: Method,
        path: &str,
        text: String,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let host = match &self.address {
            Address::Tcp(authority) => authority,
            Address::Unix(_) | Address::Pod(_) => "localhost",
        };
        let path = self.in_cluster(path);
        let mut request = Request::builder().method(method).uri(&*path);
        request = request.header(header::HOST, host);
        if let Some(path) = &self.token_file {
            let token = std::fs::read_to_string(path);
            let token = token.with_context(|| format!("--token-file {}", path.display()))?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        Ok(request.body(Full::new(Bytes::from(text)))?)
    }
}

/// Parses `http://HOST[:PORT]` or `unix:///PATH`.
fn address(text: &str) -> anyhow::Result<Address> {
    let text = text.trim_end_matches('/');
    if let Some(path) = text.strip_prefix("unix://") {
        return Ok(Address::Unix(Path::new(path).to_owned()));
    }
    let uri: Option<Uri> = text.parse().ok();
    let uri = uri.filter(|uri| uri.scheme_str() == Some("http"));
    match uri.as_ref().and_then(Uri::authority) {
        Some(authority) if authority.port().is_some() => Ok(Address::Tcp(authority.to_string())),
        Some(authority) => Ok(Address::Tcp(format!("{authority}:80"))),
        None => bail!("{text:?}: expected http://HOST:PORT or unix:///PATH"),
    }
}

async fn exchange(
    stream: Box<dyn Stream>,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Bytes>> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Errors of the connection are errors of the request.
    tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

/// A name as a part of a path or a query.
pub(crate) fn encoded(name: &str) -> String {
    form_urlencoded::byte_serialize(name.as_bytes()).collect()
}

#[cfg(test)]
mod tests;
