//! Keeps a stream open, whatever becomes of controllers.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_proto::{VERSION, v1};
use portolan_subscription::{BEHIND_PATIENCE, End, Patience, Reconnect, Resolver, Target};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::outbox::Outbox;
use super::stream::follow;
use super::subscription::Subscription;
use super::{Holding, Report, Stats, SubscribeConfig, Subscribed};

/// Subscribes until `token` is cancelled: publishes each committed table in `tables`, and tells
/// the controller what `reports` says of them. The last table stays when there is no controller,
/// also over a restart; what is held back is in `holding`. Returns at once if there are no
/// endpoints.
pub async fn run(
    config: SubscribeConfig,
    tables: watch::Sender<Option<Arc<Subscribed>>>,
    reports: watch::Receiver<Option<Report>>,
    stats: Arc<Stats>,
    holding: Holding,
    token: CancellationToken,
) {
    let mut subscription = Subscription::new(&config, tables, reports, stats, holding);
    let _ = token
        .run_until_cancelled(forever(&config, &mut subscription))
        .await;
    subscription.save_now().await;
}

async fn forever(config: &SubscribeConfig, subscription: &mut Subscription) {
    subscription.load(config.disk_patience).await;
    if config.endpoints.is_empty() {
        return;
    }
    let seed = RandomState::new().hash_one(&config.node);
    let mut reconnect: Reconnect<Target> = Reconnect::new(seed);
    let mut resolver = Resolver::default();
    let mut patience = Patience::default();
    loop {
        if reconnect.current().is_none() {
            reconnect.begin_round(resolver.resolve(&config.endpoints).await);
        }
        let (has_others, departure) = (reconnect.has_others(), reconnect.departure());
        let end = match reconnect.current() {
            Some(target) => {
                follow(subscription, target, hello(config), has_others, departure).await
            }
            // No name resolves.
            None => End::Unreachable,
        };
        if end == End::WrongCluster {
            Stats::count(&subscription.stats.wrong_cluster);
        }
        if patience.is_over(end, Instant::now()) && subscription.staging.forget_source_versions() {
            warn!(
                after = ?BEHIND_PATIENCE,
                "all controllers are behind what we have: taking what they have from now on"
            );
        }
        let wait = reconnect.after(end);
        debug!(?end, ?wait, "connecting again");
        if reconnect.current().is_none() {
            // Nobody has a newer one for now.
            subscription.put_loaded_in_force();
        }
        subscription.begin_stream();
        subscription.save_now().await;
        rest(subscription, wait).await;
    }
}

/// Waits, but for operators.
async fn rest(subscription: &mut Subscription, wait: Duration) {
    let waited = sleep(wait);
    tokio::pin!(waited);
    loop {
        tokio::select! {
            () = &mut waited => return,
            held = next_confirmation(&mut subscription.confirmations) => {
                // Nobody is there to be told.
                subscription.confirmed(held.0, held.1, &mut Outbox::default());
            }
        }
    }
}

/// The epoch and revision that an operator confirms here, on the node.
pub(super) async fn next_confirmation(
    confirmations: &mut watch::Receiver<Option<super::HeldTable>>,
) -> (u64, u64) {
    loop {
        if confirmations.changed().await.is_err() {
            return std::future::pending().await;
        }
        if let Some(held) = &*confirmations.borrow_and_update() {
            return (held.epoch, held.revision);
        }
    }
}

fn hello(config: &SubscribeConfig) -> v1::Hello {
    v1::Hello {
        version: VERSION,
        cluster: config.cluster.clone(),
        node: config.node.clone(),
        cluster_id: config.pin.id(),
        agent_version: config.agent_version.clone(),
        ..v1::Hello::default()
    }
}
