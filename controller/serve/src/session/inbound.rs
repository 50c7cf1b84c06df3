//! What an agent says after Hello, and what ends its stream.

use std::future::pending;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use portolan_auth::{Refusal, Reviewed, revoked};
use portolan_listener::{Admission, Peer};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::Status;
use tracing::debug;

use super::control::SessionControl;
use super::{Context, Messages, node_end};
use crate::registry::{Counter, Session};

/// The inbound task. It stops when this is dropped.
#[derive(Debug)]
pub(super) struct Inbound {
    task: JoinHandle<()>,
    peer: Option<Peer>,
}

impl Inbound {
    /// Whether there is more to say soon: then the connection sends nothing before.
    pub(super) fn hold(&self, held: bool) {
        if let Some(peer) = &self.peer {
            peer.wait(held);
        }
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        self.task.abort();
        self.hold(false);
    }
}

/// How long the end of a stream may take in whose place another one has come.
pub(crate) const REPLACED: Duration = Duration::from_secs(2);

/// What a message costs besides its bytes, in bytes that its connection can send: the registry takes
/// note of each.
const MESSAGE_COST: u32 = 256;

/// What the inbound half needs.
pub(super) struct InboundTask {
    pub(super) context: Arc<Context>,
    pub(super) session: Arc<Session>,
    pub(super) control: Arc<SessionControl>,
    pub(super) admission: Option<Admission>,
    /// For how long what the agent has shown is of use.
    pub(super) remaining: Option<Duration>,
    /// If that is a token that is reviewed.
    pub(super) reviewed: Option<Reviewed>,
}

/// Reads until something ends the stream, and sees that it does end.
pub(super) fn spawn(messages: Messages, task: InboundTask) -> Inbound {
    let peer = task.admission.as_ref().map(Admission::peer).cloned();
    let task = tokio::spawn(async move {
        let how = task.run(messages).await;
        if let Err(status) = &how {
            debug!(node = %task.session.node(), reason = status.message(), "stream ends");
        }
        task.control.end(how);
        // The connection drops both halves when it has taken the end, if it takes anything. One that
        // was replaced keeps nothing for long: not its turn to get a snapshot either.
        let stall = task.context.config.stall_timeout;
        let is_replaced = task.session.is_replaced();
        sleep(if is_replaced {
            stall.min(REPLACED)
        } else {
            stall
        })
        .await;
        task.cut();
    });
    Inbound { task, peer }
}

impl InboundTask {
    async fn run(&self, messages: Messages) -> Result<(), Status> {
        tokio::select! {
            biased;
            status = self.signalled() => Err(status),
            () = after(self.remaining) => {
                Err(Status::unauthenticated("certificate or token: it has expired meanwhile"))
            }
            () = revoked(self.reviewed.as_ref()) => {
                let Refusal { reason, status } = Refusal::revoked();
                let ip = Peer::ip(self.admission.as_ref().map(Admission::peer));
                self.context.registry.refuse(ip, reason, status.message());
                Err(status)
            }
            result = self.read(messages) => result,
            () = self.shut_down() => Ok(()),
            () = self.control.stalled(self.context.config.stall_timeout) => {
                self.context.registry.count(Counter::Stalled, 1);
                self.cut();
                Err(Status::unavailable("the agent takes nothing"))
            }
        }
    }

    async fn read(&self, mut messages: Messages) -> Result<(), Status> {
        loop {
            match messages.message().await {
                Ok(Some(message)) => {
                    if let Some(admission) = &self.admission {
                        admission.peer().charge(MESSAGE_COST);
                    }
                    self.take(message)
                        .inspect_err(|_| self.context.registry.count(Counter::Violations, 1))?;
                }
                Ok(None) => return Ok(()),
                Err(status) => return Err(status),
            }
        }
    }

    fn take(&self, message: v1::AgentMessage) -> Result<(), Status> {
        let session = &self.session;
        let known = match message.message {
            // From a newer agent.
            None => true,
            Some(Message::Hello(_)) => return Err(Status::invalid_argument("a second Hello")),
            Some(Message::Received(received)) => session.received(received),
            Some(Message::Programmed(programmed)) => session.programmed(programmed),
            Some(Message::Buckets(buckets)) => return self.control.answer(&buckets.hashes),
        };
        if known || session.is_replaced() {
            Ok(())
        } else {
            Err(Status::invalid_argument("revision: never sent"))
        }
    }

    /// Passes on what is confirmed; completes with the end that the registry has for the stream.
    async fn signalled(&self) -> Status {
        loop {
            if self.session.is_replaced() {
                return Status::aborted("a newer stream of this node has begun");
            }
            if self.session.is_deleted() && self.context.looks_at_nodes() {
                return node_end(self.context.registry.standing(self.session.node()));
            }
            if let Some(revision) = self.session.take_confirmed() {
                self.control.confirm(revision);
            }
            self.session.news().await;
        }
    }

    /// Says Goaway, and completes when the agent has had its time: not all at once, or they would
    /// all come to the next controller at once.
    async fn shut_down(&self) {
        self.context.shutdown.cancelled().await;
        self.control.go_away();
        let mut hasher = DefaultHasher::new();
        self.session.node().hash(&mut hasher);
        let share = (hasher.finish() % 1_000) as f64 / 1_000.0;
        sleep(self.context.spread().mul_f64(share)).await;
    }

    /// Closes the connection: one that takes nothing cannot be told to end.
    fn cut(&self) {
        if let Some(admission) = &self.admission {
            admission.cut();
        }
    }
}

async fn after(remaining: Option<Duration>) {
    match remaining {
        Some(remaining) => sleep(remaining).await,
        None => pending().await,
    }
}
