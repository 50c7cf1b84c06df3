//! Keeps a stream open, whatever becomes of controllers.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_proto::{VERSION, v1};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::inner::Inner;
use super::outbox::Outbox;
use super::reconnect::{End, Reconnect};
use super::resolve::{Resolver, Target};
use super::stream::follow;
use super::{Holding, Report, Stats, SubscribeConfig, Subscribed};

/// After so long without a table, because all controllers say that they are behind the one we have,
/// it is rather that one which was ahead: of an API server that was restored from a backup.
const BEHIND_PATIENCE: Duration = Duration::from_secs(300);

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
    let mut inner = Inner::new(&config, tables, reports, stats, holding);
    let _ = token
        .run_until_cancelled(forever(&config, &mut inner))
        .await;
    inner.save_now().await;
}

async fn forever(config: &SubscribeConfig, inner: &mut Inner) {
    inner.load(config.disk_patience).await;
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
            Some(target) => follow(inner, target, hello(config), has_others, departure).await,
            // No name resolves.
            None => End::Unreachable,
        };
        if patience.is_over(end, Instant::now()) && inner.staging.forget_source_versions() {
            warn!(
                after = ?BEHIND_PATIENCE,
                "all controllers are behind what we have: taking what they have from now on"
            );
        }
        let wait = reconnect.after(end);
        debug!(?end, ?wait, "connecting again");
        if reconnect.current().is_none() {
            // Nobody has a newer one for now.
            inner.put_loaded_in_force();
        }
        inner.begin_stream();
        inner.save_now().await;
        rest(inner, wait).await;
    }
}

/// Waits, but for operators.
async fn rest(inner: &mut Inner, wait: Duration) {
    let waited = sleep(wait);
    tokio::pin!(waited);
    loop {
        tokio::select! {
            () = &mut waited => return,
            held = next_confirmation(&mut inner.confirmations) => {
                // Nobody is there to be told.
                inner.confirmed(held.0, held.1, &mut Outbox::default());
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

/// Since when controllers are there, and all of them behind.
#[derive(Debug, Default)]
struct Patience {
    since: Option<Instant>,
}

impl Patience {
    /// Takes note of how a stream ended; whether this has gone on for too long.
    fn is_over(&mut self, end: End, now: Instant) -> bool {
        match end {
            End::Behind => {
                let since = *self.since.get_or_insert(now);
                let is_over = now.duration_since(since) >= BEHIND_PATIENCE;
                self.since = self.since.filter(|_| !is_over);
                is_over
            }
            // One that is not there says nothing.
            End::Unreachable | End::Refused => false,
            End::Broken { .. } | End::Suspect | End::Goaway => {
                self.since = None;
                false
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_when_all_controllers_were_behind_for_long() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut patience = Patience::default();
        assert!(!patience.is_over(End::Behind, at(0)));
        assert!(!patience.is_over(End::Unreachable, at(100)));
        assert!(!patience.is_over(End::Behind, at(299)));
        assert!(patience.is_over(End::Behind, at(300)));
        assert!(!patience.is_over(End::Behind, at(301)), "it begins anew");
        // One that served us ends it.
        assert!(!patience.is_over(End::Broken { lasted: true }, at(500)));
        assert!(!patience.is_over(End::Behind, at(700)));
    }
}
