// SPDX-License-Identifier: Apache-2.0

//! The cluster that a request asks for.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::{Debug, Failure};

/// Name of the parameter.
const CLUSTER: &str = "cluster";

/// The state for the cluster of the parameter `cluster`, by default for the only one.
#[derive(Debug)]
pub(super) struct Scoped(pub(super) Debug);

impl FromRequestParts<Debug> for Scoped {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, debug: &Debug) -> Result<Self, Failure> {
        let cluster = wanted(parts.uri.query().unwrap_or_default());
        let cluster = debug.served(cluster.as_deref())?;
        Ok(Self(Debug {
            cluster,
            ..debug.clone()
        }))
    }
}

/// The cluster that a query names.
fn wanted(query: &str) -> Option<String> {
    let mut parameters = form_urlencoded::parse(query.as_bytes());
    let found = parameters.find(|(name, _)| name == CLUSTER);
    found.map(|(_, value)| value.into_owned())
}

/// The parameters of a query, without the cluster's.
pub(super) fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let parameters = form_urlencoded::parse(query.as_bytes());
    parameters.filter(|(name, _)| name != CLUSTER)
}

impl Debug {
    pub(crate) fn served(&self, wanted: Option<&str>) -> Result<Arc<str>, Failure> {
        match wanted {
            Some(name) => self.clusters.get(name).ok_or_else(|| {
                Failure::not_found(format!("cluster {name}: not served by this controller"))
            }),
            None => self.clusters.only().ok_or_else(|| {
                let message = "cluster: missing; name one of `portolanctl cluster list`";
                Failure::bad_request(message.to_owned())
            }),
        }
    }
}
