//! Keeps a stream open, whatever becomes of controllers.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use portolan_proto::{VERSION, v1};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::reconnect::Reconnect;
use super::stream::{Inner, follow};
use super::{Report, Staging, Stats, SubscribeConfig, Subscribed};

/// How long a controller may say nothing before its first Commit, if there are others to ask.
const FIRST_COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Subscribes until `token` is cancelled: publishes each committed table in `tables`, and tells
/// the controller what `reports` says of them. The last table stays when there is no controller.
/// Returns at once if there are no endpoints.
pub async fn run(
    config: SubscribeConfig,
    tables: watch::Sender<Option<Arc<Subscribed>>>,
    reports: watch::Receiver<Option<Report>>,
    stats: Arc<Stats>,
    token: CancellationToken,
) {
    let inner = Inner {
        staging: Staging::new(&config.cluster),
        tables,
        reports,
        stats,
        first_commit_timeout: FIRST_COMMIT_TIMEOUT,
        security: config.security.clone(),
        last_failures: HashMap::new(),
    };
    let _ = token.run_until_cancelled(forever(config, inner)).await;
}

/// As [`run`], until it is dropped.
pub(super) async fn forever(config: SubscribeConfig, mut inner: Inner) {
    let seed = RandomState::new().hash_one(&config.node);
    let mut reconnect = Reconnect::new(config.endpoints.len(), seed);
    // `None` only if there are no endpoints at all.
    while let Some(endpoint) = config.endpoints.get(reconnect.current()) {
        let hello = hello(&config);
        let end = follow(&mut inner, endpoint, hello, reconnect.has_others()).await;
        let wait = reconnect.after(end);
        debug!(?end, ?wait, "connecting again");
        if wait > Duration::ZERO {
            sleep(wait).await;
        }
    }
}

fn hello(config: &SubscribeConfig) -> v1::Hello {
    v1::Hello {
        version: VERSION,
        cluster: config.cluster.clone(),
        node: config.node.clone(),
        agent_version: config.agent_version.clone(),
        ..v1::Hello::default()
    }
}
