//! Plain HTTP to the controller.

use anyhow::{Context as _, bail};
use axum::body::Bytes;
use axum::http::{Method, Request};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

pub(crate) struct Client {
    http: Http<HttpConnector, Empty<Bytes>>,
    base: String,
}

impl Client {
    pub(crate) fn new(base: &str) -> Self {
        Self {
            http: Http::builder(TokioExecutor::new()).build_http(),
            base: base.trim_end_matches('/').to_owned(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(Method::GET, path).await
    }

    pub(crate) async fn post(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(Method::POST, path).await
    }

    async fn ask(&self, method: Method, path: &str) -> anyhow::Result<Value> {
        let base = &self.base;
        let request = Request::builder()
            .method(method)
            .uri(format!("{base}{path}"))
            .body(Empty::new())
            .with_context(|| format!("--controller {base}"))?;
        let response = self.http.request(request).await;
        let response = response.with_context(|| format!("no controller answers at {base}"))?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        let answer: Option<Value> = serde_json::from_slice(&body).ok();
        match answer {
            Some(answer) if status.is_success() => Ok(answer),
            Some(answer) if answer["error"].is_string() => {
                bail!("{}", answer["error"].as_str().unwrap_or_default())
            }
            _ => bail!(
                "{base}: {status}: {}",
                String::from_utf8_lossy(&body).trim()
            ),
        }
    }
}

/// A name as a part of a path or a query.
pub(crate) fn encoded(name: &str) -> String {
    form_urlencoded::byte_serialize(name.as_bytes()).collect()
}
