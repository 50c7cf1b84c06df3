// SPDX-License-Identifier: Apache-2.0

//! The subscription of a relay.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan_proto::encoded::{EncodedFrame, Frame};
use portolan_proto::v1::agent_message::Message;
use portolan_proto::{VERSION, v1};
use portolan_subscription::{
    Client, Controllers, DeletionGuard, Dialer, InflateError, Subscriber, Taken, at, inflate,
};
use portolan_tablelog::{Committed, ForwardError, Lost};
use portolan_telemetry::Change;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use crate::acks::Acks;
use crate::doubts::Doubts;
use crate::pace::Pace;
use crate::spans;
use crate::{Outlets, RelayConfig};

/// Interval at which the relay looks whether all its agents have programmed the revisions that wait for
/// that. The cost grows with the agents, so not each of their acknowledgements triggers it.
const LOOK: Duration = Duration::from_millis(200);
/// The pause between two looks at what agents state of the last revision that they have programmed.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Passes tables on until `token` is cancelled; serving begins with the first. Calls `published` with
/// each revision of the relay's own, and how long publishing it took.
pub async fn run<P>(config: RelayConfig, outlets: Outlets, published: P, token: CancellationToken)
where
    P: FnMut(u64, Duration) + Send,
{
    let [looks, later_looks] = [LOOK, LOOK_AGAIN].map(|period| {
        let mut looks = interval(period);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks
    });
    let client = Client::new(
        Controllers::new(config.upstreams.clone()),
        Dialer::new(config.security.clone()),
        config.first_commit_timeout,
        Arc::clone(&outlets.stats.stream),
    );
    let mut relay = Relay {
        guard: DeletionGuard::new(config.guard),
        pace: Pace::default(),
        acks: Acks::default(),
        doubts: Doubts::new(),
        epoch: 0,
        looks,
        later_looks,
        refused_cluster: None,
        config,
        outlets,
        published,
    };
    // Ends only with the program.
    let _ = token.run_until_cancelled(client.run(&mut relay)).await;
}

struct Relay<P> {
    config: RelayConfig,
    outlets: Outlets,
    published: P,
    guard: DeletionGuard,
    pace: Pace,
    acks: Acks,
    doubts: Doubts,
    /// The epoch of the controller.
    epoch: u64,
    looks: Interval,
    later_looks: Interval,
    /// The last cluster that the relay refused, to log it once.
    refused_cluster: Option<String>,
}

/// A frame that cannot be forwarded.
#[derive(Debug, thiserror::Error)]
enum RelayError {
    #[error(transparent)]
    Forward(#[from] ForwardError),
    #[error(transparent)]
    Inflate(#[from] InflateError),
}

impl<P: FnMut(u64, Duration) + Send> Relay<P> {
    /// Takes the end of a transition: withholds what the guard does not let through, and has the rest
    /// published soon.
    fn commit(&mut self, commit: v1::Commit) -> Result<(), ForwardError> {
        let forwarder = &mut self.outlets.forwarder;
        let committed = forwarder.commit(commit, self.epoch)?;
        let now = Instant::now();
        let is_first = self.guard.is_first();
        let (mut lost, mut loss) = match is_first || self.guard.held().is_some() {
            true => forwarder.lost(!is_first),
            false => Default::default(),
        };
        // The doubt about a Director holds no records that are few enough to go by themselves.
        let is_too_much = self.config.guard.is_too_much(lost.of_records(loss));
        if !is_too_much && !forwarder.withholds_records() {
            (lost, loss) = lost.without_records(loss);
        }
        let (epoch, revision) = (committed.epoch, committed.revision);
        // A controller of an earlier version has no Directors, and a host without one takes the defaults.
        let is_doubtful = !lost.directors.is_empty();
        let guard = &mut self.guard;
        let is_withheld = guard.judge_doubting(epoch, revision, loss, is_doubtful, now);
        forwarder.withhold(if is_withheld { lost } else { Lost::default() });
        self.report(now);
        let held = self.guard.held().map(|held| held.to_message(now));
        self.acks.committed(revision, held, now);
        self.pace.arrived(now);
        Ok(())
    }

    fn report(&self, now: Instant) {
        let held = self.guard.held();
        let stats = &self.outlets.stats.stream.guard;
        stats.report(held.as_ref(), now);
    }

    /// Publishes all that has arrived and is not withheld.
    fn publish(&mut self) {
        let now = Instant::now();
        self.pace.forget();
        let Some((revision, committed)) = self.forward(now) else {
            return;
        };
        let is_held = self.guard.held().is_some();
        self.acks.published(revision, &committed, is_held, now);
        self.look();
    }

    fn forward(&mut self, now: Instant) -> Option<(u64, Committed)> {
        let Outlets {
            forwarder,
            sessions,
            stats,
            ..
        } = &mut self.outlets;
        let (revision, committed) = forwarder.publish(now)?;
        let left_out = forwarder.left_out() as u64;
        stats.left_out.store(left_out, Ordering::Relaxed);
        let done = Instant::now();
        self.pace
            .published(done, sessions.connected(), self.config.cores);
        (self.published)(revision, done.saturating_duration_since(now));
        let own = Change {
            epoch: forwarder.epoch(),
            revision,
        };
        spans::forwarded(&self.config.name, &committed, own, now);
        debug!(revision, upstream = committed.revision, "published");
        Some((revision, committed))
    }

    /// Acknowledges the revisions that all agents have programmed.
    fn look(&mut self) {
        let sessions = &self.outlets.sessions;
        let cluster = &self.config.cluster;
        let all_programmed = |revision| sessions.all_programmed(cluster, revision);
        self.acks.look(Instant::now(), all_programmed);
    }
}

impl<P: FnMut(u64, Duration) + Send> Subscriber for Relay<P> {
    type Frame = EncodedFrame;
    type Error = RelayError;

    fn hello(&mut self) -> v1::Hello {
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

    fn connected(&mut self) {
        self.acks = Acks::default();
        self.doubts.connected();
    }

    fn take_frame(&mut self, frame: EncodedFrame) -> Result<Taken, RelayError> {
        let forwarder = &mut self.outlets.forwarder;
        match frame.frame {
            Some(Frame::Welcome(welcome)) => {
                self.epoch = welcome.epoch;
                return Ok(Taken::Welcome(welcome));
            }
            Some(Frame::Goaway(goaway)) => return Ok(Taken::Goaway(goaway)),
            Some(Frame::Confirm(confirm)) => return Ok(Taken::Confirm(confirm)),
            Some(Frame::Records(records)) => forwarder.take_records(records)?,
            Some(Frame::Compressed(compressed)) => forwarder.take_records(inflate(&compressed)?)?,
            Some(Frame::Own(own)) => forwarder.take_own(own)?,
            Some(Frame::Commit(commit)) => {
                let is_snapshot = commit.snapshot;
                self.commit(commit)?;
                return Ok(Taken::Commit { is_snapshot });
            }
            Some(Frame::Versions(versions)) => self.doubts.answered(&self.outlets.doubts, versions),
            // Buckets are asked of agents only.
            Some(Frame::AskBuckets(_)) => {}
            None => return Ok(Taken::Unknown),
        }
        Ok(Taken::Part)
    }

    fn is_of_our_cluster(&mut self, id: &str) -> bool {
        let Err(ours) = self.outlets.identity.set(Some(id)) else {
            return true;
        };
        if self.refused_cluster.as_deref() != Some(id) {
            error!(%ours, theirs = id,
                "refusing a controller of another cluster; restart the relay to take its tables");
            self.refused_cluster = Some(id.to_owned());
        }
        false
    }

    fn guard(&mut self) -> &mut DeletionGuard {
        &mut self.guard
    }

    fn release(&mut self) {
        let now = Instant::now();
        self.outlets.forwarder.withhold(Lost::default());
        self.report(now);
        self.acks.released(now);
        self.publish();
    }

    fn has_message(&self) -> bool {
        self.acks.has_message() || self.doubts.is_due()
    }

    fn next_message(&mut self) -> Option<v1::AgentMessage> {
        if let Some(question) = self.doubts.take_question() {
            let message = Some(Message::AskVersions(question));
            return Some(v1::AgentMessage { message });
        }
        self.acks.next_message(Instant::now())
    }

    async fn work(&mut self) {
        let (due, acks_due) = (self.pace.due(), self.acks.due());
        tokio::select! {
            biased;
            () = at(due) => self.publish(),
            () = at(acks_due) => self.acks.resume(Instant::now()),
            () = self.doubts.doubted(&self.outlets.doubts) => {}
            _ = self.looks.tick(), if self.acks.is_waiting() => self.look(),
            _ = self.later_looks.tick() => self.look(),
        }
    }

    async fn ended(&mut self, _is_round_over: bool) {
        // A transition that has arrived whole is good.
        self.publish();
    }

    fn forget_source_versions(&mut self) -> bool {
        self.outlets.forwarder.forget_source_versions()
    }
}
