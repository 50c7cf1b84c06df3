// SPDX-License-Identifier: Apache-2.0

//! The inbound half of a stream: messages after Hello, and the conditions that end the stream.

use std::future::pending;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use portolan_auth::{Refusal, Reviewed, revoked};
use portolan_listener::{Admission, Peer};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tonic::Status;
use tracing::debug;

use super::control::SessionControl;
use super::{Context, Messages};
use crate::registry::{Counter, Session};

/// The inbound task. It is aborted on drop.
#[derive(Debug)]
pub(super) struct Inbound {
    task: JoinHandle<()>,
    peer: Option<Peer>,
}

impl Inbound {
    /// The inbound half of a stream on which nothing arrives.
    #[cfg(test)]
    pub(super) fn silent() -> Self {
        Self {
            task: tokio::spawn(pending()),
            peer: None,
        }
    }

    /// Sets whether the connection holds its output back, because more follows soon.
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

/// Maximum time for a replaced stream to end before its connection is closed.
pub(crate) const REPLACED: Duration = Duration::from_secs(2);

/// Cost of a message beyond its bytes, as bytes that its connection may send: the registry
/// processes each message.
const MESSAGE_COST: u32 = 256;

/// Inputs of the inbound task.
pub(super) struct InboundTask {
    pub(super) context: Arc<Context>,
    pub(super) session: Arc<Session>,
    pub(super) control: Arc<SessionControl>,
    pub(super) admission: Option<Admission>,
    /// Time until the credential is no longer accepted; `None` for no limit.
    pub(super) remaining: Option<Duration>,
    /// The review of the token, if the agent has one that is reviewed.
    pub(super) reviewed: Option<Reviewed>,
    /// A relay's questions for the versions of the sources; `None` for an agent.
    pub(super) questions: Option<Notify>,
}

/// Spawns the task that reads until the stream ends, and enforces the end.
pub(super) fn spawn(messages: Messages, task: InboundTask) -> Inbound {
    let peer = task.admission.as_ref().map(Admission::peer).cloned();
    let task = tokio::spawn(async move {
        let how = task.run(messages).await;
        if let Err(status) = &how {
            debug!(node = %task.session.node(), reason = status.message(), "stream ends");
        }
        task.control.end(how);
        // The connection drops both halves once it has taken the end. The cut is for a connection
        // that takes nothing. A replaced stream gets less time: it must not keep its turn for a
        // snapshot.
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
            () = after(self.remaining) => Err(Refusal::expired().status),
            () = revoked(self.reviewed.as_ref()) => {
                let Refusal { reason, status } = Refusal::revoked();
                let ip = Peer::ip(self.admission.as_ref().map(Admission::peer));
                self.context.registry.refuse(ip, reason, status.message());
                Err(status)
            }
            result = self.read(messages) => result,
            () = self.shut_down() => Ok(()),
            () = self.state_versions() => Ok(()),
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
                    self.take_message(message)
                        .inspect_err(|_| self.context.registry.count(Counter::Violations, 1))?;
                }
                Ok(None) => return Ok(()),
                Err(status) => return Err(status),
            }
        }
    }

    fn take_message(&self, message: v1::AgentMessage) -> Result<(), Status> {
        let session = &self.session;
        let known = match message.message {
            // An unknown message of a newer agent.
            None => true,
            Some(Message::Hello(_)) => return Err(Status::invalid_argument("a second Hello")),
            Some(Message::Received(received)) => session.received(received),
            Some(Message::Programmed(programmed)) => session.programmed(programmed),
            Some(Message::Health(health)) => {
                session.health_reported(health);
                true
            }
            Some(Message::Buckets(buckets)) => return self.control.answer(&buckets.hashes),
            Some(Message::AskVersions(_)) => {
                let Some(questions) = &self.questions else {
                    let message = "versions: only relays may ask for them";
                    return Err(Status::invalid_argument(message));
                };
                questions.notify_one();
                true
            }
        };
        if known || session.is_replaced() {
            Ok(())
        } else {
            Err(Status::invalid_argument("revision: never sent"))
        }
    }

    /// Forwards confirmations. Completes with the status if the registry ends the stream.
    async fn signalled(&self) -> Status {
        loop {
            if self.session.is_replaced() {
                return Status::aborted("a newer stream of this node has begun");
            }
            if let Some(end) = self.context.end_of(&self.session) {
                return end;
            }
            if let Some(revision) = self.session.take_confirmed() {
                self.control.confirm(revision);
            }
            self.session.news().await;
        }
    }

    /// Answers a relay's questions for the versions of the sources. Never completes.
    async fn state_versions(&self) {
        match &self.questions {
            // Boxed: an agent asks nothing, and thousands of agents have this task.
            Some(questions) => Box::pin(self.answer_questions(questions)).await,
            None => pending().await,
        }
    }

    async fn answer_questions(&self, questions: &Notify) {
        let tables = &self.context.tables;
        let feed = tables.feed(&self.session.node().cluster);
        let mut asked = None;
        loop {
            let raised = tables.raised();
            if let Some(versions) = asked.and_then(|asked| feed.stated_versions(asked)) {
                self.control.state_versions(versions);
                asked = None;
            }
            tokio::select! {
                () = questions.notified() => {
                    asked.get_or_insert_with(Instant::now);
                    feed.doubt_source();
                }
                () = raised, if asked.is_some() => {}
            }
        }
    }

    /// Sends Goaway, and completes after a part of the spread that depends on the node's name. The
    /// streams end one after another, so that agents do not all reach the next controller at once.
    async fn shut_down(&self) {
        self.context.shutdown.cancelled().await;
        self.control.go_away();
        let mut hasher = DefaultHasher::new();
        self.session.node().hash(&mut hasher);
        let share = (hasher.finish() % 1_000) as f64 / 1_000.0;
        sleep(self.context.spread().mul_f64(share)).await;
    }

    /// Closes the connection. A stalled connection cannot be sent an end.
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
