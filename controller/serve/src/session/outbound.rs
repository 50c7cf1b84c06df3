//! What an agent is sent: a cursor and the frames that follow it.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::unfold;
use portolan_model::NodeKey;
use portolan_proto::encoded::{EncodedFrame, Frame};
use portolan_proto::v1;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tracing::debug;

use super::inbound::Inbound;
use super::{Authentication, Context, Frames};
use crate::frames::frames;
use crate::registry::{Counter, Session};
use crate::{Batch, First, Have, How, Published};

/// The outbound half of a stream, with what must live as long as it.
#[derive(Debug)]
pub(super) struct Outbound {
    context: Arc<Context>,
    session: Arc<Session>,
    inbound: Inbound,
    published: watch::Receiver<Published>,
    node: NodeKey,
    position: Position,
    queue: VecDeque<EncodedFrame>,
    /// When what the agent has shown is of no use any more.
    expiry: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

/// What the agent has when the queue is empty.
#[derive(Debug, Clone, Copy)]
enum Position {
    /// What it said in Hello.
    Start(Have),
    /// What we sent.
    At(u64),
}

impl Outbound {
    pub(super) fn new(
        context: Arc<Context>,
        session: Arc<Session>,
        inbound: Inbound,
        node: NodeKey,
        have: Have,
    ) -> Self {
        Self {
            published: context.tables.published(),
            context,
            session,
            inbound,
            node,
            position: Position::Start(have),
            queue: VecDeque::new(),
            expiry: None,
            ended: false,
        }
    }

    /// Ends the stream after so long.
    pub(super) fn lasting(mut self, remaining: Option<Duration>) -> Self {
        self.expiry = remaining.map(|remaining| Box::pin(sleep(remaining)));
        self
    }

    /// The frames, beginning with a Welcome.
    pub(super) fn welcome(mut self, version: u32) -> Frames {
        let epoch = self.context.tables.epoch();
        let welcome = Frame::Welcome(v1::Welcome { version, epoch });
        self.queue.push_back(welcome.into());
        unfold(self, |mut outbound| async move {
            let next = outbound.next().await?;
            Some((next, outbound))
        })
        .boxed()
    }

    /// The next frame; `None` when the stream is over. May be dropped while it waits.
    async fn next(&mut self) -> Option<Result<EncodedFrame, Status>> {
        if self.ended {
            return None;
        }
        let next = self.wait().await;
        match &next {
            Ok(Some(frame)) => self.note(frame),
            Ok(None) => self.ended = true,
            Err(status) => {
                debug!(node = %self.node, reason = status.message(), "stream ended");
                self.ended = true;
            }
        }
        next.transpose()
    }

    /// What ends the stream goes before what is queued: the agent drops what has no Commit.
    async fn wait(&mut self) -> Result<Option<EncodedFrame>, Status> {
        let replaced = self.session.replaced().clone();
        let deleted = self.session.deleted().clone();
        let authenticated = matches!(
            self.context.config.authentication,
            Authentication::Required(_)
        );
        tokio::select! {
            biased;
            () = replaced.cancelled() => {
                Err(Status::aborted("a newer stream of this node has begun"))
            }
            () = deleted.cancelled(), if authenticated => {
                Err(Status::permission_denied("node: deleted"))
            }
            () = expire(&mut self.expiry) => {
                Err(Status::unauthenticated("certificate or token: it has expired meanwhile"))
            }
            ended = &mut self.inbound.ended => ended.unwrap_or(Ok(())).map(|()| None),
            () = self.context.shutdown.cancelled() => {
                self.ended = true;
                Ok(Some(goaway(&self.context)))
            }
            frame = dequeue(
                &mut self.queue,
                &mut self.position,
                &mut self.published,
                &self.context,
                &self.node,
            ) => frame.map(Some),
        }
    }

    fn note(&self, frame: &EncodedFrame) {
        let registry = &self.context.registry;
        registry.count(Counter::Frames, 1);
        match &frame.frame {
            Some(Frame::Records(records)) => {
                registry.count(Counter::Items, records.put.len() + records.delete.len());
            }
            Some(Frame::Own(own)) => {
                registry.count(Counter::Items, own.put.len() + own.delete.len())
            }
            Some(Frame::Commit(commit)) => {
                registry.count(Counter::Commits, 1);
                self.session.sent(commit.revision);
            }
            _ => {}
        }
    }
}

/// Waits until the time has come, if there is one.
async fn expire(expiry: &mut Option<Pin<Box<Sleep>>>) {
    match expiry {
        Some(expiry) => expiry.await,
        None => pending().await,
    }
}

/// The next frame of the queue, after it was filled if need be.
async fn dequeue(
    queue: &mut VecDeque<EncodedFrame>,
    position: &mut Position,
    published: &mut watch::Receiver<Published>,
    context: &Context,
    node: &NodeKey,
) -> Result<EncodedFrame, Status> {
    loop {
        if let Some(frame) = queue.pop_front() {
            return Ok(frame);
        }
        let batch = next_batch(*position, published, context, node)
            .await
            .map_err(|_| Status::unavailable("nothing is published any more"))?;
        *position = Position::At(batch.revision);
        *queue = frames(batch);
    }
}

/// Waits until there is something to send.
async fn next_batch(
    position: Position,
    published: &mut watch::Receiver<Published>,
    context: &Context,
    node: &NodeKey,
) -> Result<Batch, watch::error::RecvError> {
    published.wait_for(|published| published.synced).await?;
    loop {
        // Seen before the log is read: what comes in between is seen twice rather than never.
        published.borrow_and_update();
        let batch = match position {
            Position::Start(have) => Some(first(context, node, &have)),
            Position::At(cursor) => context.tables.next(node, cursor),
        };
        if let Some(batch) = batch {
            if batch.snapshot {
                context.registry.count(Counter::Snapshots, 1);
            }
            return Ok(batch);
        }
        published.changed().await?;
    }
}

fn first(context: &Context, node: &NodeKey, have: &Have) -> Batch {
    let First { batch, how } = context.tables.first(node, have);
    debug!(%node, ?how, records = batch.records.len(), own = batch.own.len(), "first batch");
    match how {
        How::Equal => context.registry.count(Counter::ResumedEqual, 1),
        How::Resume => context.registry.count(Counter::Resumed, 1),
        How::Snapshot => {}
    }
    batch
}

fn goaway(context: &Context) -> EncodedFrame {
    let spread = context.config.goaway_spread.as_millis();
    let spread_ms = u32::try_from(spread).unwrap_or(u32::MAX);
    Frame::Goaway(v1::Goaway { spread_ms }).into()
}
