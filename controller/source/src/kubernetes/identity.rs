// SPDX-License-Identifier: Apache-2.0

//! The identity of an API server's cluster.

use std::time::Duration;

use kube::Client;
use kube::core::Request;
use serde_json::Value;
use tokio::time::sleep;
use tracing::warn;

/// A namespace that every cluster has and that is never deleted: its UID is as old as the cluster,
/// and survives a restore of the storage.
const NAMESPACE: &str = "kube-system";

/// The pauses between attempts begin and end with these.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// The UID of the namespace `kube-system`; retried until there is an answer. `None` if the server
/// forbids it or has no such namespace, which is logged.
pub async fn cluster_id(client: &Client) -> Option<String> {
    let mut pause = FIRST_PAUSE;
    loop {
        let why = match ask(client).await {
            Ok(uid) => return Some(uid),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                warn!(
                    reason = status.message,
                    "cannot get the namespace {NAMESPACE}: agents cannot tell this cluster from \
                     others; it takes permission to `get` it, or --cluster-id"
                );
                return None;
            }
            Err(error) => error,
        };
        if pause == FIRST_PAUSE {
            warn!(error = %why, "the cluster's identity is not known yet; asking again (said once)");
        }
        sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

async fn ask(client: &Client) -> Result<String, kube::Error> {
    let request = Request::new("/api/v1/namespaces").get(NAMESPACE, &Default::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    let namespace: Value = client.request(request).await?;
    let uid = namespace["metadata"]["uid"].as_str().unwrap_or_default();
    Ok(uid.to_owned())
}
