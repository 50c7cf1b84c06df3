// SPDX-License-Identifier: Apache-2.0

//! The follower: reads all keys, watches them from there, and reads them again when the watch cannot go on.

use std::sync::Arc;
use std::time::Duration;

use portolan_catalog::Kind;
use portolan_etcd::{Client, EtcdError, Prefix, Range, Watch};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::feed::Feed;
use crate::kubernetes::Stats;
use crate::sink::Closed;

/// Pause between two questions for a sign of life.
const ASK: Duration = Duration::from_secs(5);
/// A watch that is silent for longer is dead: it was asked twice.
const SILENCE: Duration = Duration::from_secs(15);
/// First and longest pause after an error.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Follows the keys of a fleet.
pub(super) struct Follower {
    client: Client,
    range: Range,
    feed: Feed,
    stats: Arc<Stats>,
    /// The revision up to which everything is known; `None` if all must be read.
    reached: Option<i64>,
    pause: Duration,
}

/// The reason why following cannot go on.
enum Stop {
    Closed(Closed),
    Trouble(EtcdError),
}

impl From<Closed> for Stop {
    fn from(closed: Closed) -> Self {
        Self::Closed(closed)
    }
}

impl From<EtcdError> for Stop {
    fn from(error: EtcdError) -> Self {
        Self::Trouble(error)
    }
}

impl Follower {
    pub(super) fn new(client: Client, prefix: &Prefix, feed: Feed, stats: Arc<Stats>) -> Self {
        Self {
            client,
            range: prefix.objects(),
            feed,
            stats,
            reached: None,
            pause: FIRST_PAUSE,
        }
    }

    /// Ends only when the sink's reader is gone.
    pub(super) async fn run(mut self) -> Result<(), Closed> {
        loop {
            match Box::pin(self.follow()).await {
                Ok(()) => {}
                Err(Stop::Closed(closed)) => return Err(closed),
                Err(Stop::Trouble(trouble)) => self.recover(&trouble).await?,
            }
        }
    }

    async fn follow(&mut self) -> Result<(), Stop> {
        let reached = match self.reached {
            Some(reached) => reached,
            None => Box::pin(self.list()).await?,
        };
        let watch = Box::pin(self.client.watch(&self.range, reached));
        let mut watch = tend(&mut self.feed, watch).await??;
        self.watch(&mut watch).await
    }

    async fn list(&mut self) -> Result<i64, Stop> {
        let listing = Box::pin(self.client.list(&self.range));
        let listing = tend(&mut self.feed, listing).await??;
        self.stats.files().note();
        let revision = listing.revision;
        self.feed.listed(listing).await?;
        self.reached = Some(revision);
        Ok(revision)
    }

    async fn watch(&mut self, watch: &mut Watch) -> Result<(), Stop> {
        let mut last = Instant::now();
        let mut ask = last;
        loop {
            let news = tokio::select! {
                biased;
                news = watch.next() => news?,
                () = self.feed.wait() => {
                    self.feed.look().await?;
                    continue;
                }
                () = sleep_until(last + SILENCE) => return Err(EtcdError::Timeout(SILENCE).into()),
                () = sleep_until(ask) => {
                    watch.ask().await?;
                    ask = Instant::now() + ASK;
                    continue;
                }
            };
            last = Instant::now();
            self.stats.files().note();
            self.pause = FIRST_PAUSE;
            self.reached = Some(news.revision);
            self.feed.changed(news).await?;
        }
    }

    async fn recover(&mut self, trouble: &EtcdError) -> Result<(), Closed> {
        match trouble {
            EtcdError::Compacted(_) => {
                info!(%trouble, "reading all keys again");
                self.reached = None;
                return Ok(());
            }
            EtcdError::WentBack { .. } => {
                warn!(%trouble, "etcd was restored from a backup, or is another one; reading all keys again");
                self.reached = None;
            }
            EtcdError::Cancelled(_) => self.reached = None,
            // The changes since are more than one answer: a listing has pages.
            error if error.is_too_large() => self.reached = None,
            _ => {}
        }
        self.stats.of(Kind::LoadBalancer).count_watch_error();
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        warn!(%trouble, retry_in = ?pause, "etcd cannot be followed; everything stays; trying again");
        self.client.fail_over();
        tend(&mut self.feed, sleep(pause)).await
    }
}

/// Waits for a future, and sends released deletions meanwhile.
async fn tend<F: Future>(feed: &mut Feed, work: F) -> Result<F::Output, Closed> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            output = &mut work => return Ok(output),
            () = feed.wait() => feed.look().await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;
    use crate::Sink;
    use crate::deletions::GuardConfig;

    /// A follower that knows everything up to revision 7, after an error. Time is paused.
    async fn after(trouble: EtcdError) -> Follower {
        let (sink, _events) = Sink::channel(1);
        let prefix: Prefix = "/portolan".parse().unwrap();
        let stats = Arc::new(Stats::default());
        let config = GuardConfig::default();
        let feed = Feed::new(prefix.clone(), "".into(), config, sink, Arc::clone(&stats));
        let client = Client::new(Vec::new(), None, SILENCE);
        let mut follower = Follower::new(client, &prefix, feed, stats);
        follower.reached = Some(7);
        follower.recover(&trouble).await.unwrap();
        follower
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_are_more_than_one_answer_are_read_as_a_listing() {
        let large = "Error, decoded message length too large: found 70000000 bytes";
        for (status, expected) in [
            (Status::out_of_range(large), None),
            (Status::out_of_range("a future revision"), Some(7)),
            (Status::unavailable(large), Some(7)),
        ] {
            let follower = after(EtcdError::Request(status.clone().into())).await;
            assert_eq!(follower.reached, expected, "{status}");
        }
    }
}
