//! What an agent says after Hello.

use std::sync::Arc;

use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use tokio::sync::oneshot;
use tonic::{Status, Streaming};
use tracing::debug;

use crate::registry::{Counter, Session};

/// The inbound half as the outbound half sees it. It stops when this is dropped.
#[derive(Debug)]
pub(super) struct Inbound {
    /// How the stream is to end: with an error, or `Ok` if the agent has left.
    pub(super) ended: oneshot::Receiver<Result<(), Status>>,
}

/// Reads until the agent leaves, breaks the protocol, or the outbound half is gone.
pub(super) fn spawn(messages: Streaming<v1::AgentMessage>, session: Arc<Session>) -> Inbound {
    let (mut sender, ended) = oneshot::channel();
    tokio::spawn(async move {
        let result = tokio::select! {
            result = read(messages, &session) => result,
            () = sender.closed() => return,
        };
        // If nobody waits for it, the stream has ended already.
        let _ = sender.send(result);
    });
    Inbound { ended }
}

async fn read(mut messages: Streaming<v1::AgentMessage>, session: &Session) -> Result<(), Status> {
    loop {
        match messages.message().await {
            Ok(Some(message)) => take(message, session)
                .inspect_err(|_| session.registry().count(Counter::Violations, 1))?,
            Ok(None) => return Ok(()),
            Err(status) => {
                debug!(%status, "the agent's half of the stream broke");
                return Err(status);
            }
        }
    }
}

fn take(message: v1::AgentMessage, session: &Session) -> Result<(), Status> {
    let known = match message.message {
        // From a newer agent.
        None => true,
        Some(Message::Hello(_)) => return Err(Status::invalid_argument("a second Hello")),
        Some(Message::Received(received)) => session.received(received),
        Some(Message::Programmed(programmed)) => session.programmed(programmed),
        Some(Message::Buckets(_)) => {
            return Err(Status::invalid_argument("buckets: nobody asked for them"));
        }
    };
    if known || session.replaced().is_cancelled() {
        Ok(())
    } else {
        Err(Status::invalid_argument("revision: never sent"))
    }
}
