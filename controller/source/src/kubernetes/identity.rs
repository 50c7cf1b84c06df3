// SPDX-License-Identifier: Apache-2.0

//! The identity of an API server's cluster.

use kube::Client;
use kube::core::Request;
use serde_json::Value;

/// A namespace that every cluster has and that is never deleted: its UID is as old as the cluster,
/// and survives a restore of the storage.
const NAMESPACE: &str = "kube-system";

/// The answer of an API server that was asked for its cluster's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterId {
    /// The UID of the namespace `kube-system`.
    Known(String),
    /// The server forbids the request, or has no such namespace now.
    Unobtainable(String),
}

/// Asks once for the UID of the namespace `kube-system`.
///
/// # Errors
/// If the server does not answer, or with an error of its own.
pub async fn cluster_id(client: &Client) -> Result<ClusterId, kube::Error> {
    let request = Request::new("/api/v1/namespaces").get(NAMESPACE, &Default::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    let namespace: Value = match client.request(request).await {
        Ok(namespace) => namespace,
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
            return Ok(ClusterId::Unobtainable(status.message.clone()));
        }
        Err(error) => return Err(error),
    };
    Ok(match namespace["metadata"]["uid"].as_str() {
        Some(uid) if !uid.is_empty() => ClusterId::Known(uid.to_owned()),
        _ => ClusterId::Unobtainable(format!("namespace {NAMESPACE}: metadata.uid: empty")),
    })
}
