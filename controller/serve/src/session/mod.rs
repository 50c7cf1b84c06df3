//! One agent's stream.
//!
//! The outbound half is pulled by the connection: it makes the next frames only when the agent can
//! take them, from the newest tables. The inbound half is a task of its own, so that acks arrive
//! also while frames cannot leave.

mod hello;
mod inbound;
mod outbound;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::stream::BoxStream;
use portolan_proto::encoded::EncodedFrame;
use portolan_proto::v1;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status, Streaming};
use tracing::info;

use crate::registry::{Connect, Counter};
use crate::{Registry, Tables};
use outbound::Outbound;

/// How agents are served.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The clusters that are served; by default the single one, of the empty name. An agent of
    /// another is refused: an empty table would make it delete all that it has.
    pub clusters: Vec<Arc<str>>,
    /// How long an agent may take to say Hello.
    pub hello_timeout: Duration,
    /// Over how long agents are told to spread their reconnects at shutdown.
    pub goaway_spread: Duration,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            clusters: vec!["".into()],
            hello_timeout: Duration::from_secs(5),
            goaway_spread: Duration::from_secs(10),
        }
    }
}

/// What all sessions of a server share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) tables: Tables,
    pub(crate) registry: Arc<Registry>,
    pub(crate) config: ServeConfig,
    pub(crate) shutdown: CancellationToken,
}

/// The frames of one stream.
pub(crate) type Frames = BoxStream<'static, Result<EncodedFrame, Status>>;

/// Accepts a stream: waits for Hello, and answers with frames.
pub(crate) async fn sync(
    context: Arc<Context>,
    request: Request<Streaming<v1::AgentMessage>>,
) -> Result<Frames, Status> {
    let peer = request.remote_addr();
    let mut messages = request.into_inner();
    let hello = first_message(&context, &mut messages)
        .await
        .and_then(|message| hello::accept(message, &context.config))
        .inspect_err(|_| context.registry.count(Counter::Refused, 1))?;
    info!(node = %hello.node, ?peer, agent_version = hello.agent_version, "agent connected");
    let session = Arc::new(context.registry.connect(Connect {
        node: hello.node.clone(),
        peer,
        agent_version: hello.agent_version,
        protocol_version: hello.version,
        now: SystemTime::now(),
    }));
    let inbound = inbound::spawn(messages, Arc::clone(&session));
    let outbound = Outbound::new(context, session, inbound, hello.node, hello.have);
    Ok(outbound.welcome(hello.version))
}

async fn first_message(
    context: &Context,
    messages: &mut Streaming<v1::AgentMessage>,
) -> Result<v1::AgentMessage, Status> {
    let message = timeout(context.config.hello_timeout, messages.message());
    tokio::select! {
        () = context.shutdown.cancelled() => Err(Status::unavailable("shutting down")),
        message = message => message
            .map_err(|_| Status::deadline_exceeded("no Hello in time"))??
            .ok_or_else(|| Status::invalid_argument("the stream ended before Hello")),
    }
}

#[cfg(test)]
mod tests;
