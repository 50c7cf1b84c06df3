// SPDX-License-Identifier: Apache-2.0

//! The client of a table stream: keeps a stream open to one of several controllers.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_proto::v1;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until, timeout_at};
use tonic::{Code, Status, Streaming};
use tracing::{debug, error, info, warn};

use crate::connect::{Opened, cluster_of, ended_early};
use crate::stats::Connected;
use crate::{
    BEHIND_PATIENCE, Controllers, DeletionGuard, Dialer, End, Patience, Stay, StreamStats, Target,
};

/// Factor of the time that a lone controller may be silent: its agents would only come back to it.
const LONE: u32 = 6;

/// The owner of the tables that arrive: an agent stages them for its node, a relay forwards them.
pub trait Subscriber: Send {
    /// [`v1::Frame`], or another type that reads the same messages.
    type Frame: Message + Default + 'static;
    /// Reason why a frame cannot be taken.
    type Error: std::fmt::Display + Send;

    /// Begins a stream: drops an unfinished transition of the last one. Returns the first message.
    fn hello(&mut self) -> v1::Hello;

    /// A stream is open.
    fn connected(&mut self);

    /// Takes a frame.
    ///
    /// # Errors
    /// If the frame does not fit the earlier ones. A new stream is begun.
    fn take_frame(&mut self, frame: Self::Frame) -> Result<Taken, Self::Error>;

    /// Returns `true` if tables of a controller of this cluster may be taken.
    fn is_of_our_cluster(&mut self, id: &str) -> bool;

    /// The guard that judges the tables.
    fn guard(&mut self) -> &mut DeletionGuard;

    /// Releases held deletions.
    fn release(&mut self);

    /// Returns `true` if [`Self::next_message`] has a message.
    fn has_message(&self) -> bool;

    /// The next message to the controller.
    fn next_message(&mut self) -> Option<v1::AgentMessage>;

    /// Waits until there is something to do beside the stream, and does it. May be dropped at any
    /// time while it waits.
    fn work(&mut self) -> impl Future<Output = ()> + Send;

    /// A stream or an attempt has ended; the next attempt follows after a pause. `is_round_over`
    /// says that all controllers have been tried.
    fn ended(&mut self, is_round_over: bool) -> impl Future<Output = ()> + Send;

    /// Forgets the source versions of the last controller, so that one with older versions is
    /// believed. Returns whether there were any.
    fn forget_source_versions(&mut self) -> bool;
}

/// A frame that was taken.
#[derive(Debug)]
pub enum Taken {
    /// The first frame of the stream.
    Welcome(v1::Welcome),
    /// Part of a transition, or something else that concerns the subscriber alone.
    Part,
    /// The end of a transition.
    Commit {
        /// Whether it was a snapshot.
        is_snapshot: bool,
    },
    /// An operator confirms deletions.
    Confirm(v1::Confirm),
    /// The controller is about to stop.
    Goaway(v1::Goaway),
    /// A kind that this version does not know.
    Unknown,
}

/// The controllers, and how to connect to them.
#[derive(Debug)]
pub struct Client {
    controllers: Controllers,
    dialer: Dialer,
    first_commit_timeout: Duration,
    stats: Arc<StreamStats>,
}

impl Client {
    /// `first_commit_timeout` limits the silence of a controller before its first Commit. A lone
    /// controller gets six times as much. It is left too, because addresses of others may have
    /// become known since.
    #[must_use]
    pub fn new(
        controllers: Controllers,
        dialer: Dialer,
        first_commit_timeout: Duration,
        stats: Arc<StreamStats>,
    ) -> Self {
        Self {
            controllers,
            dialer,
            first_commit_timeout,
            stats,
        }
    }

    /// Keeps a stream open until this future is dropped.
    pub async fn run<S: Subscriber>(mut self, subscriber: &mut S) {
        let mut patience = Patience::default();
        loop {
            let end = match self.controllers.current().await {
                Some(target) => self.follow(subscriber, &target).await,
                // No name resolves.
                None => End::Unreachable,
            };
            if end == End::WrongCluster {
                StreamStats::count(&self.stats.wrong_cluster);
            }
            if patience.is_over(end, Instant::now()) && subscriber.forget_source_versions() {
                warn!(
                    after = ?BEHIND_PATIENCE,
                    "all controllers are behind the table in force: taking theirs from now on"
                );
            }
            let wait = self.controllers.after(end);
            debug!(?end, ?wait, "connecting again");
            subscriber.guard().begin_stream();
            subscriber.ended(self.controllers.is_round_over()).await;
            let waited = sleep(wait);
            tokio::pin!(waited);
            loop {
                tokio::select! {
                    () = &mut waited => break,
                    () = self.controllers.changed() => break,
                    () = subscriber.work() => {}
                }
            }
        }
    }

    /// Connects, and follows the stream until it ends.
    async fn follow<S: Subscriber>(&mut self, subscriber: &mut S, target: &Target) -> End {
        let hello = subscriber.hello();
        let Opened { frames, messages } = match self.dialer.open(target, hello).await {
            Ok(opened) => opened,
            Err(end) => {
                StreamStats::count(&self.stats.connect_failures);
                if let Some(id) = self.dialer.take_other_cluster() {
                    subscriber.is_of_our_cluster(&id);
                }
                return end;
            }
        };
        info!(%target, "connected");
        subscriber.guard().begin_stream();
        subscriber.connected();
        let since = Instant::now();
        let timeout = match self.controllers.has_others() {
            true => self.first_commit_timeout,
            false => self.first_commit_timeout.saturating_mul(LONE),
        };
        let mut stream = Stream {
            subscriber,
            connected: Connected::new(&self.stats),
            stats: &self.stats,
            frames,
            epoch: 0,
            has_commit: false,
            timeout,
            deadline: since.checked_add(timeout),
            stay: Stay::new(self.controllers.departure(), since),
        };
        stream.run(messages).await
    }
}

/// An open stream.
struct Stream<'a, S: Subscriber> {
    subscriber: &'a mut S,
    connected: Connected<'a>,
    stats: &'a StreamStats,
    frames: Streaming<S::Frame>,
    epoch: u64,
    /// Whether a Commit has come.
    has_commit: bool,
    timeout: Duration,
    /// Time limit of the next frame; `None` after the first Commit.
    deadline: Option<Instant>,
    stay: Stay,
}

impl<S: Subscriber> Stream<'_, S> {
    async fn run(&mut self, messages: mpsc::Sender<v1::AgentMessage>) -> End {
        loop {
            let held_until = self.subscriber.guard().until();
            tokio::select! {
                // Work that is due is done, also while frames keep coming.
                biased;
                () = at(self.stay.leave_at()) => return End::Goaway,
                () = at(held_until) => {
                    if self.subscriber.guard().expire(Instant::now()) {
                        warn!("deletions that were held back count as confirmed by time");
                        self.subscriber.release();
                    }
                }
                Ok(permit) = messages.reserve(), if self.subscriber.has_message() => {
                    if let Some(message) = self.subscriber.next_message() {
                        permit.send(message);
                    }
                }
                () = self.subscriber.work() => {}
                frame = next_frame(&mut self.frames, self.deadline) => {
                    if let Some(end) = self.follow_frame(frame) {
                        return end;
                    }
                }
            }
        }
    }

    /// Takes a frame, or the end of the stream; `Some` if the stream is over.
    fn follow_frame(&mut self, frame: Result<Option<S::Frame>, Status>) -> Option<End> {
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Some(self.broken(&Status::ok("closed by the controller"))),
            Err(status) => return Some(self.broken(&status)),
        };
        let now = Instant::now();
        self.deadline = self.deadline.and_then(|_| now.checked_add(self.timeout));
        match self.subscriber.take_frame(frame) {
            Ok(Taken::Welcome(welcome)) => {
                self.epoch = welcome.epoch;
                let is_ours = self.subscriber.is_of_our_cluster(&welcome.cluster_id);
                return (!is_ours).then_some(End::WrongCluster);
            }
            Ok(Taken::Part) => self.connected.part(),
            Ok(Taken::Unknown) => StreamStats::count(&self.stats.unknown_frames),
            Ok(Taken::Commit { is_snapshot }) => {
                self.has_commit = true;
                self.connected.commit();
                self.deadline = None;
                StreamStats::count(&self.stats.commits);
                if is_snapshot {
                    StreamStats::count(&self.stats.snapshots);
                }
            }
            Ok(Taken::Confirm(v1::Confirm { revision })) => {
                if self.subscriber.guard().confirm(self.epoch, revision) {
                    warn!(
                        revision,
                        "an operator confirmed deletions that were held back"
                    );
                    self.subscriber.release();
                } else {
                    warn!(
                        revision,
                        "confirmed, but no deletions of that revision are held back"
                    );
                }
            }
            Ok(Taken::Goaway(goaway)) => {
                let spread = Duration::from_millis(goaway.spread_ms.into());
                let stay = self.stay.goaway(spread, Instant::now());
                info!(?stay, "the controller is about to stop");
            }
            Err(reason) => {
                StreamStats::count(&self.stats.hash_mismatches);
                error!(%reason, "the table is not what the controller sent; asking for all of it");
                return Some(End::Suspect);
            }
        }
        None
    }

    fn broken(&mut self, status: &Status) -> End {
        let (code, reason) = (status.code(), status.message());
        if self.stay.leave_at().is_some() {
            debug!(?code, reason, "the controller has stopped");
            return End::Goaway;
        }
        if self.has_commit && code == Code::Unauthenticated {
            // With tokens this happens every hour or so.
            info!(reason, "connecting again with new credentials");
            return self.stay.broken(Instant::now());
        }
        warn!(?code, reason, "stream ended");
        if code == Code::Aborted {
            return End::Suspect;
        }
        if let Some(id) = cluster_of(status) {
            self.subscriber.is_of_our_cluster(id);
            return End::WrongCluster;
        }
        if self.has_commit {
            self.stay.broken(Instant::now())
        } else {
            ended_early(status)
        }
    }
}

/// Waits for a time, or for ever.
pub async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => pending().await,
    }
}

async fn next_frame<F>(
    frames: &mut Streaming<F>,
    deadline: Option<Instant>,
) -> Result<Option<F>, Status> {
    match deadline {
        None => frames.message().await,
        Some(deadline) => timeout_at(deadline.into(), frames.message())
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("no table in time"))),
    }
}
