//! What an agent is sent: a cursor, and the transition that is on its way.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};
use std::time::Duration;

use portolan_proto::BEHIND_THE_AGENT;
use portolan_proto::encoded::Frame;
use portolan_proto::reason::Reason;
use portolan_proto::v1;
use portolan_tablelog::{
    ANSWERED_WITHIN, Delivery, Feed, First, Have, How, Next, Scope, State, TableHashes, single,
};
use prost::bytes::Bytes;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tracing::debug;

use super::Context;
use super::control::SessionControl;
use super::hello::Hello;
use super::inbound::Inbound;
use super::turn::Turn;
use crate::registry::{Counter, Session};

/// How often an agent waits for what another is asked, before it is asked itself whoever else is: in
/// a storm all have the same, and 32 KiB of each would cost more than what they are sent.
const OTHERS_TURNS: u8 = 3;

/// The outbound half of a stream, with what must live as long as it.
#[derive(Debug)]
pub(super) struct Outbound {
    context: Arc<Context>,
    session: Arc<Session>,
    control: Arc<SessionControl>,
    inbound: Inbound,
    feed: Arc<Feed>,
    scope: Scope,
    position: Position,
    /// The protocol's version on this stream.
    version: u32,
    /// Whether Welcome is said with the cluster's identity, or that is not known for good.
    is_identified: bool,
    /// Messages that belong to no transition.
    message: Option<Bytes>,
    /// Whether the message waits for what is known soon, to go with it.
    held: bool,
    sending: Option<Delivery>,
    /// Whose turn it is, while a snapshot is due or on its way.
    turn: Turn,
    woken: Pin<Box<OwnedNotified>>,
    /// Whom the other half wakes.
    waker: Option<Waker>,
    /// Our sources are not as far as the agent's were.
    behind: bool,
    /// For how many others' answers it has waited in vain.
    waited: u8,
    /// Until when to wait for what the position waits for.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// What the agent has when everything is sent.
#[derive(Debug)]
enum Position {
    /// What it said in Hello.
    Start(Box<Have>),
    /// A table of these hashes, of which more is known when it has told those of its buckets.
    Asked(TableHashes),
    /// Nothing that helps.
    Nothing,
    /// What we sent.
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
        let welcome = welcome(&context, version);
        inbound.hold(true);
        Self {
            woken: Box::pin(feed.woken()),
            waker: None,
            behind: false,
            turn: Turn::new(&context.snapshots),
            is_identified: context.tables.cluster_id().is_some(),
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
            waited: 0,
            deadline: None,
        }
    }

    /// The next chunk; `None` when the stream is over.
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

    /// What ends the stream goes before what is on its way: the agent drops what has no Commit.
    fn poll(&mut self, waker: &mut task::Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        self.register(waker.waker());
        loop {
            if let Some(how) = self.control.ended() {
                return Poll::Ready(how.clone().map(|()| None));
            }
            if self.control.take_goaway() {
                self.say(goaway(&self.context));
                self.hold(false);
            }
            if let Some(message) = self.message.take_if(|_| !self.held) {
                self.context.registry.count(Counter::Frames, 1);
                return Poll::Ready(Ok(Some(message)));
            }
            if let Some(revision) = self.control.take_confirm() {
                let confirm = Frame::Confirm(v1::Confirm { revision });
                return Poll::Ready(Ok(Some(single(confirm))));
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

    /// Says a message, after those that were not taken yet.
    fn say(&mut self, frame: Frame) {
        let next = single(frame);
        self.message = Some(match self.message.take() {
            Some(before) => [before, next].concat().into(),
            None => next,
        });
    }

    /// Holds messages back, or no more.
    fn hold(&mut self, held: bool) {
        if self.held != held {
            self.held = held;
            self.inbound.hold(held);
        }
    }

    /// Tells the other half whom to wake, if that is news: it is always the same as a rule.
    fn register(&mut self, waker: &Waker) {
        let known = self.waker.as_ref();
        if !known.is_some_and(|known| known.will_wake(waker)) {
            self.waker = Some(waker.clone());
            self.control.register(waker.clone());
        }
    }

    /// Is woken for what comes from now on.
    fn watch(&mut self) {
        self.woken.set(if self.behind {
            self.context.tables.raised()
        } else {
            self.feed.woken()
        });
    }

    /// The next chunk of what is on its way.
    fn next_chunk(&mut self) -> Option<Bytes> {
        let sending = self.sending.as_mut()?;
        let chunk = sending.next_chunk();
        if sending.is_done() {
            let registry = &self.context.registry;
            registry.count(Counter::Frames, sending.frames());
            registry.count(Counter::Items, sending.items());
            registry.count(Counter::Commits, 1);
            self.session.sent(sending.revision);
            self.sending = None;
            self.turn.end();
        }
        chunk
    }

    /// Finds out what to send next. `false` if there is nothing before something happens.
    fn advance(&mut self, waker: &mut task::Context<'_>) -> Result<bool, Status> {
        match self.context.tables.state() {
            State::Starting => {
                self.hold(false);
                return Ok(false);
            }
            State::Synced => {}
            State::Closed => return Err(Status::unavailable("nothing is published any more")),
        }
        if self.session.is_deleted() && self.context.looks_at_nodes() {
            // The other half says so soon. Until then nothing is told.
            return Ok(false);
        }
        if !std::mem::replace(&mut self.is_identified, true)
            && self.context.tables.cluster_id().is_some()
        {
            // It was not known when the stream began.
            self.say(welcome(&self.context, self.version));
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
                Next::Deliver(delivery) => Ok(self.deliver(delivery)),
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
            self.deadline = None;
            self.watch();
            if matches!(first, First::Behind | First::Wait(_)) {
                // What came since it was looked at has woken nobody.
                return Ok(true);
            }
        }
        if !matches!(first, First::Behind | First::Wait(_)) {
            self.deadline = None;
        }
        // Another agent's answer comes soon; for all else there is something to say, or it takes long.
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

    /// Waits for what another agent is asked. If that one says nothing, one of those that wait is
    /// asked next, and not all at once.
    fn wait(&mut self, count: u32, waker: &mut task::Context<'_>) -> bool {
        if !self.is_late(ANSWERED_WITHIN, waker) {
            return false;
        }
        self.deadline = None;
        self.waited += 1;
        self.waited < OTHERS_TURNS || self.ask(count)
    }

    /// Asks the agent for its buckets.
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

    /// Looks at the agent's buckets, if it has told them.
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

    /// Sends a snapshot when it is the agent's turn.
    fn snapshot(&mut self, waker: &mut task::Context<'_>) -> bool {
        if !self.turn.poll(self.session.node(), waker) {
            return false;
        }
        self.context.registry.count(Counter::Snapshots, 1);
        let tables = &self.context.tables;
        let delivery = tables.snapshot(&self.feed, &self.scope);
        self.deliver(delivery)
    }

    fn deliver(&mut self, delivery: Delivery) -> bool {
        self.position = Position::At(delivery.revision);
        self.sending = Some(delivery);
        true
    }

    /// Whether the deadline has passed, which is so far away if there is none yet.
    fn is_late(&mut self, within: Duration, waker: &mut task::Context<'_>) -> bool {
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(within)));
        deadline.as_mut().poll(waker).is_ready()
    }
}

fn welcome(context: &Context, version: u32) -> Frame {
    let cluster_id = context.tables.cluster_id();
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
