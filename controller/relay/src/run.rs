//! Keeps a stream open, whatever becomes of controllers.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use portolan_proto::{VERSION, v1};
use portolan_subscription::{BEHIND_PATIENCE, Dialer, End, Patience, Reconnect, Resolver, Target};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::guard::Hold;
use crate::pace::Pace;
use crate::stream::follow;
use crate::{Outlets, RelayConfig};

/// What outlives a stream.
pub(crate) struct Relay<P> {
    pub(crate) config: RelayConfig,
    pub(crate) outlets: Outlets,
    pub(crate) published: P,
    pub(crate) dialer: Dialer,
    pub(crate) hold: Hold,
    pub(crate) pace: Pace,
}

/// Passes tables on until `token` is cancelled; serving begins with the first. Tells `published` of
/// each revision of ours, and how long publishing it took.
pub async fn run<P>(config: RelayConfig, outlets: Outlets, published: P, token: CancellationToken)
where
    P: FnMut(u64, Duration) + Send,
{
    let mut relay = Relay {
        dialer: Dialer::new(config.security.clone()),
        hold: Hold::new(config.hold),
        pace: Pace::default(),
        config,
        outlets,
        published,
    };
    // Ends only with the program.
    let _ = token.run_until_cancelled(forever(&mut relay)).await;
}

async fn forever<P: FnMut(u64, Duration) + Send>(relay: &mut Relay<P>) {
    let seed = RandomState::new().hash_one(&relay.config.name);
    let mut reconnect: Reconnect<Target> = Reconnect::new(seed);
    let mut resolver = Resolver::default();
    let mut patience = Patience::default();
    loop {
        if reconnect.current().is_none() {
            reconnect.begin_round(resolver.resolve(&relay.config.upstreams).await);
        }
        let (has_others, departure) = (reconnect.has_others(), reconnect.departure());
        let end = match reconnect.current() {
            Some(target) => follow(relay, target, has_others, departure).await,
            // No name resolves.
            None => End::Unreachable,
        };
        // What has arrived whole is good, unless it is held.
        if relay.hold.held().is_none() {
            relay.publish(Instant::now());
        }
        let forwarder = &mut relay.outlets.forwarder;
        if patience.is_over(end, Instant::now()) && forwarder.forget_source_versions() {
            warn!(
                after = ?BEHIND_PATIENCE,
                "all controllers are behind what we have: taking what they have from now on"
            );
        }
        let wait = reconnect.after(end);
        debug!(?end, ?wait, "connecting again");
        sleep(wait).await;
    }
}

impl<P: FnMut(u64, Duration) + Send> Relay<P> {
    /// What to say first.
    pub(crate) fn hello(&mut self) -> v1::Hello {
        self.hold.begin();
        self.pace.forget();
        self.outlets.forwarder.begin(v1::Hello {
            version: VERSION,
            cluster: self.config.cluster.clone(),
            node: self.config.name.clone(),
            agent_version: self.config.version.clone(),
            want: v1::hello::Want::AllNodes.into(),
            ..v1::Hello::default()
        })
    }

    /// Publishes what has arrived; what it was there, and our revision of it.
    pub(crate) fn publish(&mut self, now: Instant) -> Option<(u64, portolan_tablelog::Committed)> {
        let Outlets {
            forwarder,
            sessions,
            stats,
        } = &mut self.outlets;
        let (revision, committed) = forwarder.publish(now)?;
        crate::Stats::set(&stats.left_out, forwarder.left_out());
        let done = Instant::now();
        self.pace
            .published(done, sessions.connected(), self.config.cores);
        (self.published)(revision, done.saturating_duration_since(now));
        debug!(revision, upstream = committed.revision, "published");
        Some((revision, committed))
    }
}
