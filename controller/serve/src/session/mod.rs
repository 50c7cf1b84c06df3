//! One agent's stream.
//!
//! The outbound half is pulled by the connection: it makes the next frames only when the agent can
//! take them, from the newest tables. The inbound half is a task of its own, so that acks arrive
//! also while frames cannot leave.

mod admit;
mod hello;
mod inbound;
mod outbound;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::stream::BoxStream;
use portolan_proto::encoded::EncodedFrame;
use portolan_proto::v1;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status, Streaming};
use tracing::info;

use crate::registry::Connect;
use crate::{Authentication, Registry, Tables};
use admit::{Admitted, admit};
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
    /// What agents must show.
    pub authentication: Authentication,
    /// How long a stream may outlive the certificate or token that it began with. Long enough to
    /// forgive clocks and a late renewal, short enough that what expired is of no use.
    pub credential_grace: Duration,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            clusters: vec!["".into()],
            hello_timeout: Duration::from_secs(5),
            goaway_spread: Duration::from_secs(10),
            authentication: Authentication::Nothing,
            credential_grace: Duration::from_secs(60),
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
    let Admitted {
        hello,
        identity,
        peer,
        messages,
    } = admit(&context, request).await?;
    info!(node = %hello.node, ?peer, agent_version = hello.agent_version, "agent connected");
    let session = Arc::new(context.registry.connect(Connect {
        node: hello.node.clone(),
        peer,
        agent_version: hello.agent_version,
        protocol_version: hello.version,
        now: SystemTime::now(),
    }));
    let inbound = inbound::spawn(messages, Arc::clone(&session));
    let remaining = identity.remaining(context.config.credential_grace);
    let outbound = Outbound::new(context, session, inbound, hello.node, hello.have);
    Ok(outbound.lasting(remaining).welcome(hello.version))
}

#[cfg(test)]
mod tests;
