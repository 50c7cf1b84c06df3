// SPDX-License-Identifier: Apache-2.0

//! The outbound half of a stream: a cursor, and the transition in flight.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};
use std::time::{Duration, Instant};

use portolan_proto::BEHIND_THE_AGENT;
use portolan_proto::encoded::Frame;
use portolan_proto::reason::Reason;
use portolan_proto::v1;
use portolan_tablelog::{
    ANSWERED_WITHIN, Delivery, Feed, First, Have, How, Next, Scope, State, TableHashes, single,
};
use portolan_telemetry::Change;
use prost::bytes::Bytes;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tracing::debug;

use super::Context;
use super::control::SessionControl;
use super::hello::Hello;
use super::inbound::Inbound;
use super::spans;
use super::turn::Turn;
use crate::registry::{Counter, Session};

/// Number of times that an agent waits for the answer of another agent with the same table before
/// it is asked itself. In a storm of reconnects all agents have the same table, and 32 KiB of
/// hashes from each would cost more than the differences sent.
const OTHERS_TURNS: u8 = 3;

/// The outbound half of a stream, with everything that must live as long.
#[derive(Debug)]
pub(super) struct Outbound {
    context: Arc<Context>,
    session: Arc<Session>,
    control: Arc<SessionControl>,
    inbound: Inbound,
    feed: Arc<Feed>,
    scope: Scope,
    position: Position,
    /// The protocol version of the stream.
    version: u32,
    /// Whether a Welcome with the cluster's identity was sent, or the identity will remain unknown.
    is_identified: bool,
    /// Pending messages outside of transitions.
    message: Option<Bytes>,
    /// Whether output is held back, to leave together with a transition that follows soon.
    held: bool,
    sending: Option<Delivery>,
    /// When the change in flight was taken up, if there are spans.
    began: Option<Instant>,
    /// The turn for a snapshot, while one is due or in flight.
    turn: Turn,
    woken: Pin<Box<OwnedNotified>>,
    /// The waker last registered with the inbound half.
    waker: Option<Waker>,
    /// Whether the controller's sources are older than those of the agent's table.
    behind: bool,
    /// Number of waits for other agents' answers that timed out.
    waited: u8,
    /// Deadline of the current position's wait.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// The agent's table once everything in flight is delivered.
#[derive(Debug)]
enum Position {
    /// The table stated in Hello.
    Start(Box<Have>),
    /// A table of these hashes, whose agent was asked for the hashes of its buckets.
    Asked(TableHashes),
    /// No usable table; a snapshot is due.
    Nothing,
    /// The table at a revision sent on this stream.
    At(u64),
}

impl Outbound {
    pub(super) fn new(
        context: Arc<Context>,
        session: Arc<Session>,
        control: Arc<SessionControl>,
        inbound: Inbound,
        hello: Hello,
    ) -> Self {
        let Hello {
            have,
            version,
            scope,
            ..
        } = hello;
        let feed = context.tables.feed(scope.cluster());
        let welcome = welcome(&context, &feed, version);
        inbound.hold(true);
        Self {
            woken: Box::pin(feed.woken()),
            waker: None,
            behind: false,
            turn: Turn::new(&context.snapshots),
            is_identified: feed.cluster_id().is_some(),
            context,
            session,
            control,
            inbound,
            feed,
            scope,
            position: Position::Start(Box::new(have)),
            version,
            message: Some(single(welcome)),
            held: true,
            sending: None,
            began: None,
            waited: 0,
            deadline: None,
        }
    }

    /// Polls for the next chunk; `None` at the end of the stream.
    pub(super) fn poll_chunk(
        &mut self,
        waker: &mut task::Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        let polled = self.poll(waker);
        if polled.is_ready() {
            self.hold(false);
        }
        self.control
            .polled(matches!(polled, Poll::Ready(Ok(Some(_)))));
        polled
    }

    /// Polls for the next chunk. The end of the stream takes precedence over a transition in
    /// flight: the agent drops a transition without a Commit.
    fn poll(&mut self, waker: &mut task::Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        self.register(waker.waker());
        loop {
            if let Some(how) = self.control.ended() {
                return Poll::Ready(how.clone().map(|()| None));
            }
            if self.control.take_requested() {
                self.say_requested();
            }
            if let Some(message) = self.message.take_if(|_| !self.held) {
                self.context.registry.count(Counter::Frames, 1);
                return Poll::Ready(Ok(Some(message)));
            }
            if let Some(chunk) = self.next_chunk() {
                return Poll::Ready(Ok(Some(chunk)));
            }
            if self.advance(waker)? || (!self.held && self.message.is_some()) {
                continue;
            }
            if self.woken.as_mut().poll(waker).is_pending() {
                return Poll::Pending;
            }
            self.watch();
        }
    }

    /// Queues the messages that the inbound half has asked for.
    fn say_requested(&mut self) {
        if self.control.take_goaway() {
            self.say(goaway(&self.context));
        }
        if let Some(revision) = self.control.take_confirm() {
            self.say(Frame::Confirm(v1::Confirm { revision }));
        }
        if let Some(newest) = self.control.take_versions() {
            self.say(Frame::Versions(v1::Versions { newest }));
        }
        self.hold(false);
    }

    /// Queues a message after the pending ones.
    fn say(&mut self, frame: Frame) {
        let next = single(frame);
        self.message = Some(match self.message.take() {
            Some(before) => [before, next].concat().into(),
            None => next,
        });
    }

    /// Sets whether output is held back.
    fn hold(&mut self, held: bool) {
        if self.held != held {
            self.held = held;
            self.inbound.hold(held);
        }
    }

    /// Registers the waker with the inbound half, unless it is the registered one, as it normally
    /// is.
    fn register(&mut self, waker: &Waker) {
        let known = self.waker.as_ref();
        if !known.is_some_and(|known| known.will_wake(waker)) {
            self.waker = Some(waker.clone());
            self.control.register(waker.clone());
        }
    }

    /// Subscribes to wake-ups from now on: advances of the sources while they are behind the agent,
    /// the feed otherwise.
    fn watch(&mut self) {
        self.woken.set(if self.behind {
            self.context.tables.raised()
        } else {
            self.feed.woken()
        });
    }

    /// The next chunk of the transition in flight.
    fn next_chunk(&mut self) -> Option<Bytes> {
        let sending = self.sending.as_mut()?;
        let chunk = sending.next_chunk();
        if sending.is_done() {
            let registry = &self.context.registry;
            registry.count(Counter::Frames, sending.frames());
            registry.count(Counter::Items, sending.items());
            registry.count(Counter::Commits, 1);
            self.session.sent(sending.revision);
            if let Some(began) = self.began.take() {
                let epoch = self.context.tables.epoch();
                let revision = sending.revision;
                let change = Change { epoch, revision };
                spans::sent(change, &self.session.node().name, began);
            }
            self.sending = None;
            self.turn.end();
        }
        chunk
    }

    /// Selects the next output. Returns `false` if there is none until an event.
    fn advance(&mut self, waker: &mut task::Context<'_>) -> Result<bool, Status> {
        match self.context.tables.state(&self.feed) {
            State::Starting => {
                self.hold(false);
                return Ok(false);
            }
            State::Synced => {}
            State::Closed => return Err(Status::unavailable("nothing is published any more")),
        }
        if self.context.end_of(&self.session).is_some() {
            // The inbound half ends the stream soon. Nothing is sent until then.
            return Ok(false);
        }
        if !std::mem::replace(&mut self.is_identified, true) && self.feed.cluster_id().is_some() {
            // The identity was unknown when the stream began.
            self.say(welcome(&self.context, &self.feed, self.version));
        }
        match &self.position {
            Position::Start(have) => {
                let first = self.first(have);
                self.begin(first, waker)
            }
            Position::Asked(theirs) => Ok(self.answered(*theirs, waker)),
            Position::Nothing => Ok(self.snapshot(waker)),
            Position::At(cursor) => match self.next(*cursor) {
                Next::Nothing => Ok(false),
                Next::Deliver(delivery) => {
                    self.began = spans::now();
                    Ok(self.deliver(delivery))
                }
                Next::Snapshot => {
                    self.position = Position::Nothing;
                    Ok(true)
                }
            },
        }
    }

    fn first(&self, have: &Have) -> First {
        let (tables, feed) = (&self.context.tables, &self.feed);
        tables.first(feed, &self.scope, have)
    }

    fn next(&self, cursor: u64) -> Next {
        let (tables, feed) = (&self.context.tables, &self.feed);
        tables.next(feed, &self.scope, cursor)
    }

    fn begin(&mut self, first: First, waker: &mut task::Context<'_>) -> Result<bool, Status> {
        let is_behind = matches!(first, First::Behind);
        if is_behind != self.behind {
            self.behind = is_behind;
            if is_behind {
                self.feed.doubt_source();
            }
            self.deadline = None;
            self.watch();
            if matches!(first, First::Behind | First::Wait(_)) {
                // A change between the look and the subscription has woken no waiter; look again.
                return Ok(true);
            }
        }
        if !matches!(first, First::Behind | First::Wait(_)) {
            self.deadline = None;
        }
        // Output is held only for another agent's answer, which comes soon. All other cases have
        // output now or take long.
        self.hold(matches!(first, First::Wait(_)));
        match first {
            First::Deliver(delivery, how) => {
                debug!(node = %self.session.node(), ?how, items = delivery.items(), "resumed");
                self.context.registry.count(
                    match how {
                        How::Equal => Counter::ResumedEqual,
                        How::Resume => Counter::Resumed,
                        How::Buckets => Counter::ResumedBuckets,
                    },
                    1,
                );
                Ok(self.deliver(delivery))
            }
            First::Ask(count) => Ok(self.ask(count)),
            First::Wait(count) => Ok(self.wait(count, waker)),
            First::Behind => {
                let within = self.context.config.catch_up_timeout;
                if self.is_late(within, waker) {
                    return Err(Reason::AgentAhead.state(Status::unavailable(BEHIND_THE_AGENT)));
                }
                Ok(false)
            }
            First::Snapshot => {
                self.position = Position::Nothing;
                Ok(true)
            }
        }
    }

    /// Waits for the answer of another agent that was asked. After a timeout, one of the waiting
    /// agents is asked next, not all at once. Returns `false` while the wait lasts.
    fn wait(&mut self, count: u32, waker: &mut task::Context<'_>) -> bool {
        if !self.is_late(ANSWERED_WITHIN, waker) {
            return false;
        }
        self.deadline = None;
        self.waited += 1;
        self.waited < OTHERS_TURNS || self.ask(count)
    }

    /// Asks the agent for the hashes of its buckets.
    fn ask(&mut self, count: u32) -> bool {
        self.position = match &self.position {
            Position::Start(have) => have.hashes.map_or(Position::Nothing, Position::Asked),
            _ => Position::Nothing,
        };
        self.control.ask(count);
        self.say(Frame::AskBuckets(v1::AskBuckets { count }));
        self.hold(false);
        self.deadline = Some(Box::pin(sleep(self.context.config.buckets_timeout)));
        true
    }

    /// Uses the agent's hashes of buckets, once they have arrived. Falls back to a snapshot after
    /// the deadline. Returns `false` while the wait lasts.
    fn answered(&mut self, theirs: TableHashes, waker: &mut task::Context<'_>) -> bool {
        let Some(hashes) = self.control.take_answer() else {
            if !self.is_late(Duration::ZERO, waker) {
                return false;
            }
            debug!(node = %self.session.node(), "no buckets in time");
            self.position = Position::Nothing;
            self.deadline = None;
            return true;
        };
        self.deadline = None;
        let tables = &self.context.tables;
        let Some(delivery) = tables.buckets(&self.feed, self.session.node(), theirs, &hashes)
        else {
            self.position = Position::Nothing;
            return true;
        };
        debug!(node = %self.session.node(), items = delivery.items(), "resumed by buckets");
        self.context.registry.count(Counter::ResumedBuckets, 1);
        self.deliver(delivery)
    }

    /// Starts a snapshot once it is the agent's turn.
    fn snapshot(&mut self, waker: &mut task::Context<'_>) -> bool {
        if !self.turn.poll(self.session.node(), waker) {
            return false;
        }
        self.context.registry.count(Counter::Snapshots, 1);
        let tables = &self.context.tables;
        let delivery = tables.snapshot(&self.feed, &self.scope);
        self.deliver(delivery)
    }

    /// Begins to send a transition. Returns `false` if the cluster is served no longer.
    fn deliver(&mut self, delivery: Delivery) -> bool {
        // The cluster may have left since `advance` looked. Then all its objects are deleted, and the
        // transition may have been made after that.
        if self.context.tables.state(&self.feed) != State::Synced {
            self.began = None;
            self.turn.end();
            return false;
        }
        self.position = Position::At(delivery.revision);
        self.sending = Some(delivery);
        true
    }

    /// Returns `true` if the deadline has passed. Sets it `within` from now if there is none.
    fn is_late(&mut self, within: Duration, waker: &mut task::Context<'_>) -> bool {
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(within)));
        deadline.as_mut().poll(waker).is_ready()
    }
}

fn welcome(context: &Context, feed: &Feed, version: u32) -> Frame {
    let cluster_id = feed.cluster_id();
    Frame::Welcome(v1::Welcome {
        version,
        epoch: context.tables.epoch(),
        cluster_id: cluster_id.map(ToString::to_string).unwrap_or_default(),
    })
}

fn goaway(context: &Context) -> Frame {
    let spread = context.spread().as_millis();
    let spread_ms = u32::try_from(spread).unwrap_or(u32::MAX);
    Frame::Goaway(v1::Goaway { spread_ms })
}

#[cfg(test)]
mod tests;
