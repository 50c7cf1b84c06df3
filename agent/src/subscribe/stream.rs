//! One stream, from connecting to its end.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use portolan_proto::v1;
use portolan_subscription::{Departure, End, Opened, Stay, Target, cluster_of, ended_early};
use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout_at};
use tonic::{Code, Status, Streaming};
use tracing::{debug, error, info, warn};

use super::client::next_confirmation;
use super::latency::Latency;
use super::outbox::Outbox;
use super::subscription::Subscription;
use super::{Committed, Stats, Taken};

/// An open stream.
struct Stream<'a> {
    subscription: &'a mut Subscription,
    frames: Streaming<v1::Frame>,
    messages: mpsc::Sender<v1::AgentMessage>,
    outbox: Outbox,
    latency: Latency,
    epoch: u64,
    committed: bool,
    /// How long to wait for the next frame: only before the first Commit, if there are others.
    deadline: Option<Instant>,
    stay: Stay,
}

/// Connects, and follows the stream until it ends.
pub(super) async fn follow(
    subscription: &mut Subscription,
    target: &Target,
    hello: v1::Hello,
    has_others: bool,
    departure: Departure,
) -> End {
    let hello = subscription.staging.begin(hello);
    let Opened { frames, messages } = match subscription.dialer.open(target, hello).await {
        Ok(opened) => opened,
        Err(end) => {
            Stats::count(&subscription.stats.connect_failures);
            if let Some(id) = subscription.dialer.take_other_cluster() {
                subscription.refused_by(&id);
            }
            return end;
        }
    };
    info!(%target, "connected");
    subscription.begin_stream();
    Stats::count(&subscription.stats.streams);
    let stats = Arc::clone(&subscription.stats);
    let _connected = Connected::new(&stats);
    let (since, patience) = (Instant::now(), subscription.first_commit_timeout);
    let mut stream = Stream {
        subscription,
        frames,
        messages,
        outbox: Outbox::default(),
        latency: Latency::default(),
        epoch: 0,
        committed: false,
        deadline: has_others.then(|| since + patience),
        stay: Stay::new(departure, since),
    };
    stream.run().await
}

/// Shows that there is a stream while it lives, also if it is dropped in the middle.
struct Connected<'a>(&'a Stats);

impl<'a> Connected<'a> {
    fn new(stats: &'a Stats) -> Self {
        stats.connected.store(true, Ordering::Relaxed);
        Self(stats)
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.connected.store(false, Ordering::Relaxed);
    }
}

impl Stream<'_> {
    async fn run(&mut self) -> End {
        // What the kernel has may be what this controller sent before.
        self.subscription.reports.mark_changed();
        let mut reporting = true;
        let messages = self.messages.clone();
        loop {
            let (save_at, held_until) =
                (self.subscription.save_at(), self.subscription.hold.until());
            tokio::select! {
                frame = next_frame(&mut self.frames, self.deadline) => {
                    if let Some(end) = self.take(frame) {
                        return end;
                    }
                }
                changed = self.subscription.reports.changed(), if reporting => {
                    reporting = changed.is_ok();
                    if let Some(report) = self.subscription.reports.borrow_and_update().as_ref() {
                        self.outbox.reported(report);
                        for duration in self.latency.reported(report, SystemTime::now()) {
                            let histogram = &self.subscription.stats.network_programming;
                            histogram.observe(duration.as_secs_f64());
                        }
                    }
                }
                () = at(self.stay.leave_at()) => return End::Goaway,
                () = at(save_at) => self.subscription.save(),
                () = at(held_until) => self.subscription.expired(&mut self.outbox),
                (epoch, revision) = next_confirmation(&mut self.subscription.confirmations) => {
                    self.subscription.confirmed(epoch, revision, &mut self.outbox);
                }
                Ok(permit) = messages.reserve(), if self.outbox.has_mail() => {
                    if let Some(message) = self.outbox.take() {
                        permit.send(message);
                    }
                }
            }
        }
    }

    /// Takes a frame, or how the stream ended; `Some` if that is the end.
    fn take(&mut self, frame: Result<Option<v1::Frame>, Status>) -> Option<End> {
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Some(self.broken(&Status::ok("closed by the controller"))),
            Err(status) => return Some(self.broken(&status)),
        };
        let patience = self.subscription.first_commit_timeout;
        self.deadline = self.deadline.map(|_| Instant::now() + patience);
        match self.subscription.staging.take(frame) {
            Ok(Taken::Welcome(welcome)) => {
                self.epoch = welcome.epoch;
                self.check_cluster(&welcome.cluster_id)
            }
            Ok(Taken::Staged) => None,
            Ok(Taken::Unknown) => {
                Stats::count(&self.subscription.stats.unknown_frames);
                None
            }
            Ok(Taken::Committed(committed)) => {
                self.commit(committed);
                None
            }
            Ok(Taken::Asked(buckets)) => {
                self.outbox.asked(buckets);
                None
            }
            Ok(Taken::Confirmed(confirm)) => {
                let (epoch, revision) = (self.epoch, confirm.revision);
                self.subscription
                    .confirmed(epoch, revision, &mut self.outbox);
                None
            }
            Ok(Taken::Goaway(goaway)) => {
                let spread = Duration::from_millis(goaway.spread_ms.into());
                let stay = self.stay.goaway(spread, Instant::now());
                info!(?stay, "the controller is about to stop");
                None
            }
            Err(reason) => {
                Stats::count(&self.subscription.stats.hash_mismatches);
                error!(%reason, "the table is not what the controller sent; asking for all of it");
                Some(End::Suspect)
            }
        }
    }

    /// Leaves a controller of another cluster before anything of its table is taken.
    fn check_cluster(&mut self, id: &str) -> Option<End> {
        self.subscription.pin.check(id).err()?;
        Some(End::WrongCluster)
    }

    fn commit(&mut self, committed: Committed) {
        self.committed = true;
        self.deadline = None;
        let stats = &self.subscription.stats;
        Stats::count(&stats.commits);
        if committed.snapshot {
            Stats::count(&stats.snapshots);
        }
        Stats::set(&stats.refused_records, committed.refused.len());
        debug!(
            revision = committed.revision,
            snapshot = committed.snapshot,
            records = committed.table.records.len(),
            refused = committed.refused.len(),
            "table received"
        );
        self.latency.committed(&committed);
        self.subscription.committed(committed, &mut self.outbox);
    }

    fn broken(&self, status: &Status) -> End {
        if self.stay.leave_at().is_some() {
            debug!(code = ?status.code(), reason = status.message(), "the controller has stopped");
            return End::Goaway;
        }
        if self.committed && status.code() == Code::Unauthenticated {
            // With tokens this happens every hour or so.
            info!(
                reason = status.message(),
                "connecting again with what we have now"
            );
            return self.stay.broken(Instant::now());
        }
        warn!(code = ?status.code(), reason = status.message(), "stream ended");
        if status.code() == Code::Aborted {
            return End::Suspect;
        }
        if let Some(id) = cluster_of(status) {
            self.subscription.refused_by(id);
            return End::WrongCluster;
        }
        if self.committed {
            self.stay.broken(Instant::now())
        } else {
            ended_early(status)
        }
    }
}

/// At a time, or never.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => pending().await,
    }
}

async fn next_frame(
    frames: &mut Streaming<v1::Frame>,
    deadline: Option<Instant>,
) -> Result<Option<v1::Frame>, Status> {
    match deadline {
        None => frames.message().await,
        Some(deadline) => timeout_at(deadline.into(), frames.message())
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("no table in time"))),
    }
}
