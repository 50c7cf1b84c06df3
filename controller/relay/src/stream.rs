//! One stream, from connecting to its end.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan_proto::encoded::{EncodedFrame, Frame};
use portolan_proto::v1;
use portolan_subscription::{Departure, End, Opened, Stay, Target, ended_early, inflate};
use portolan_tablelog::ForwardError;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout_at};
use tonic::{Code, Status, Streaming};
use tracing::{error, info, warn};

use crate::Stats;
use crate::acks::Acks;
use crate::run::Relay;

/// How often it is looked at whether all our agents have programmed what waits for that. Asking
/// costs as much as there are agents, so not each of their acks asks.
const LOOK: Duration = Duration::from_millis(200);

/// An open stream.
struct Stream<'a, P> {
    relay: &'a mut Relay<P>,
    frames: Streaming<EncodedFrame>,
    messages: mpsc::Sender<v1::AgentMessage>,
    acks: Acks,
    epoch: u64,
    committed: bool,
    /// How long to wait for the next frame: only before the first Commit, if there are others.
    deadline: Option<Instant>,
    stay: Stay,
}

/// Connects, and follows the stream until it ends.
pub(crate) async fn follow<P: FnMut(u64, Duration) + Send>(
    relay: &mut Relay<P>,
    target: &Target,
    has_others: bool,
    departure: Departure,
) -> End {
    let hello = relay.hello();
    let stats = Arc::clone(&relay.outlets.stats);
    Stats::set(&stats.deletions_held, 0);
    let Opened { frames, messages } = match relay.dialer.open(target, hello).await {
        Ok(opened) => opened,
        Err(end) => {
            Stats::count(&stats.connect_failures);
            return end;
        }
    };
    info!(%target, "connected to the controller behind us");
    Stats::count(&stats.streams);
    let _connected = Connected::new(&stats);
    let (now, patience) = (Instant::now(), relay.config.first_commit_timeout);
    let mut stream = Stream {
        relay,
        frames,
        messages,
        acks: Acks::default(),
        epoch: 0,
        committed: false,
        deadline: has_others.then(|| now + patience),
        stay: Stay::new(departure, now),
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

impl<P: FnMut(u64, Duration) + Send> Stream<'_, P> {
    async fn run(&mut self) -> End {
        let messages = self.messages.clone();
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = self.relay.pace.due();
            let held_until = self.relay.hold.held().and_then(|held| held.until);
            tokio::select! {
                // What is due goes out, also while more keeps coming.
                biased;
                () = at(due) => self.publish(),
                () = at(self.stay.leave_at()) => return End::Goaway,
                () = at(held_until) => {
                    if self.relay.hold.expired(Instant::now()) {
                        warn!("publishing the tables that were held: the controller stands by them");
                        self.release();
                    }
                }
                Ok(permit) = messages.reserve(), if self.acks.has_mail() => {
                    if let Some(message) = self.acks.take() {
                        permit.send(message);
                    }
                }
                _ = looks.tick(), if self.acks.is_waiting() => self.look(),
                frame = next_frame(&mut self.frames, self.deadline) => {
                    if let Some(end) = self.take(frame) {
                        return end;
                    }
                }
            }
        }
    }

    /// Takes a frame, or how the stream ended; `Some` if that is the end.
    fn take(&mut self, frame: Result<Option<EncodedFrame>, Status>) -> Option<End> {
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Some(self.broken(&Status::ok("closed by the controller"))),
            Err(status) => return Some(self.broken(&status)),
        };
        let patience = self.relay.config.first_commit_timeout;
        self.deadline = self.deadline.map(|_| Instant::now() + patience);
        let taken = match frame.frame {
            Some(Frame::Welcome(welcome)) => {
                self.epoch = welcome.epoch;
                if let Err(ours) = self
                    .relay
                    .outlets
                    .forwarder
                    .take_cluster_id(&welcome.cluster_id)
                {
                    error!(%ours, theirs = welcome.cluster_id,
                        "a controller of another cluster; restart to take its tables");
                    return Some(End::WrongCluster);
                }
                Ok(())
            }
            Some(Frame::Goaway(goaway)) => {
                let spread = Duration::from_millis(goaway.spread_ms.into());
                let stay = self.stay.goaway(spread, Instant::now());
                info!(?stay, "the controller behind us is about to stop");
                Ok(())
            }
            Some(Frame::Confirm(confirm)) => {
                if self.relay.hold.confirmed(confirm.revision) {
                    warn!("publishing the tables that were held: an operator confirmed them");
                    self.release();
                }
                Ok(())
            }
            Some(frame) => self.take_part(frame),
            // From a newer controller.
            None => Ok(()),
        };
        let reason = taken.err()?;
        Stats::count(&self.relay.outlets.stats.mismatches);
        error!(
            reason,
            "the tables are not what the controller sent; asking for all of them"
        );
        Some(End::Suspect)
    }

    /// Takes part of a transition.
    fn take_part(&mut self, frame: Frame) -> Result<(), String> {
        let forwarder = &mut self.relay.outlets.forwarder;
        let unfit = |error: ForwardError| error.to_string();
        match frame {
            Frame::Records(records) => forwarder.take_records(records).map_err(unfit),
            Frame::Compressed(compressed) => {
                let records = inflate(&compressed)?;
                forwarder.take_records(records).map_err(unfit)
            }
            Frame::Own(own) => forwarder.take_own(own).map_err(unfit),
            Frame::Commit(commit) => self.commit(commit).map_err(unfit),
            _ => Ok(()),
        }
    }

    fn commit(&mut self, commit: v1::Commit) -> Result<(), ForwardError> {
        let is_snapshot = commit.snapshot;
        let committed = self.relay.outlets.forwarder.commit(commit, self.epoch)?;
        let (now, stats) = (Instant::now(), &self.relay.outlets.stats);
        Stats::count(&stats.commits);
        if is_snapshot {
            Stats::count(&stats.snapshots);
        }
        let is_news = !std::mem::replace(&mut self.committed, true);
        self.deadline = None;
        let may = self.relay.hold.judge(&committed, now);
        let held = self.relay.hold.held();
        Stats::set(&stats.deletions_held, held.map_or(0, |held| held.deleted()));
        self.acks
            .committed(committed.revision, held.map(|held| held.to_message(now)));
        if may {
            self.relay.pace.arrived(now);
        } else if is_news {
            let (deleted, records) = (committed.deleted, committed.records);
            warn!(
                deleted,
                records, "holding back tables that delete too much of those in force"
            );
        }
        Ok(())
    }

    /// What was held may be published.
    fn release(&mut self) {
        Stats::set(&self.relay.outlets.stats.deletions_held, 0);
        self.acks.released();
        self.publish();
    }

    fn publish(&mut self) {
        let now = Instant::now();
        self.relay.pace.forget();
        if let Some((ours, committed)) = self.relay.publish(now) {
            self.acks.published(ours, &committed, now);
            self.look();
        }
    }

    /// Whether all our agents have programmed what waits for that.
    fn look(&mut self) {
        let sessions = &self.relay.outlets.sessions;
        let cluster = &self.relay.config.cluster;
        let is_programmed = |revision| sessions.all_programmed(cluster, revision);
        self.acks.look(Instant::now(), is_programmed);
    }

    fn broken(&self, status: &Status) -> End {
        let reason = status.message();
        warn!(code = ?status.code(), reason, "the stream of the controller behind us ended");
        match (status.code(), self.committed) {
            (Code::Aborted, _) => End::Suspect,
            (_, true) => self.stay.broken(Instant::now()),
            (_, false) => ended_early(status),
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
    frames: &mut Streaming<EncodedFrame>,
    deadline: Option<Instant>,
) -> Result<Option<EncodedFrame>, Status> {
    match deadline {
        None => frames.message().await,
        Some(deadline) => timeout_at(deadline.into(), frames.message())
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("no tables in time"))),
    }
}
