//! One agent's stream.
//!
//! The outbound half is pulled by the connection: it takes the next frames only when the agent can
//! take them, from the newest tables. The inbound half is a task of its own, so that acks arrive,
//! and ends are noticed, also while frames cannot leave.

mod admit;
mod body;
mod control;
mod hello;
mod inbound;
mod outbound;
mod turn;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use portolan_auth::{Authentication, Identity, Refusal, RefusalReason, authenticate};
use portolan_listener::{Admission, Peer};
use portolan_proto::reason::Reason;
use portolan_proto::v1;
use portolan_runtime::{ConnectionSlots, Origin, Rate, SlotLimits};
use portolan_tablelog::TableReader;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status, Streaming};
use tracing::info;

use crate::Registry;
use crate::registry::{Connect, NodeStanding, RetryAfter};
use admit::{Admitted, admit};
pub(crate) use admit::{check_cluster, check_node};
pub(crate) use body::StreamBody;
pub(crate) use control::SessionControl;
use inbound::InboundTask;
pub(crate) use inbound::REPLACED;
use outbound::Outbound;

/// How agents are served.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The clusters that are served; by default the single one, of the empty name. An agent of
    /// another is refused: an empty table would make it delete all that it has.
    pub clusters: Vec<Arc<str>>,
    /// How long an agent may take to say Hello.
    pub hello_timeout: Duration,
    /// Over how long agents are told to spread their reconnects at shutdown. Those that do not go
    /// by themselves are made to, each at its own time within it.
    pub goaway_spread: Duration,
    /// What agents must show.
    pub authentication: Authentication,
    /// How long a stream may outlive the certificate or token that it began with. Long enough to
    /// forgive clocks and a late renewal, short enough that what expired is of no use.
    pub credential_grace: Duration,
    /// How many agents are sent a whole table at the same time; the others wait for their turn.
    pub snapshots: usize,
    /// How long a connection may take nothing while something waits for it.
    pub stall_timeout: Duration,
    /// How long an agent may take to tell the hashes of its buckets. Then it is sent everything.
    pub buckets_timeout: Duration,
    /// How long an agent whose table is newer than ours waits for us to catch up, before it is
    /// told to go elsewhere.
    pub catch_up_timeout: Duration,
    /// How often tokens from one source are verified.
    pub token_checks: Rate,
    /// How often a node's stream may begin anew. The name of the node must be proven for that, or
    /// others could use up its rate.
    pub reconnects: Rate,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            clusters: vec!["".into()],
            hello_timeout: Duration::from_secs(5),
            goaway_spread: Duration::from_secs(10),
            authentication: Authentication::Nothing,
            credential_grace: Duration::from_secs(60),
            snapshots: 256,
            stall_timeout: Duration::from_secs(60),
            buckets_timeout: Duration::from_secs(5),
            catch_up_timeout: Duration::from_secs(5),
            token_checks: Rate {
                per_second: 500,
                burst: 10_000,
            },
            reconnects: Rate {
                per_second: 1,
                burst: 30,
            },
        }
    }
}

/// How long the agent of a node that is not known waits for the node to become so, before it is
/// refused; less than agents wait for an answer to Hello.
const NODE_PATIENCE: Duration = Duration::from_secs(3);

/// How much time each agent adds to that over which all leave: so many come to other controllers
/// a second.
const LEAVING: Duration = Duration::from_millis(2);

/// The metadata with which gRPC servers state after how many milliseconds to try again.
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// What all sessions of a server share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) tables: TableReader,
    pub(crate) registry: Arc<Registry>,
    pub(crate) config: ServeConfig,
    pub(crate) shutdown: CancellationToken,
    /// Turns to send a snapshot.
    pub(crate) snapshots: Arc<Semaphore>,
    /// Turns to have a token verified.
    pub(crate) token_checks: ConnectionSlots,
    /// Over how long agents leave when the server stops, once that is known.
    pub(crate) spread: OnceLock<Duration>,
}

/// How many sources of tokens are remembered.
const TOKEN_SOURCES: usize = 4_096;

/// How often tokens from one source are verified.
pub(crate) fn token_checks(rate: Rate) -> ConnectionSlots {
    ConnectionSlots::new(SlotLimits {
        slots: 0,
        reserve: 0,
        per_source: 0,
        rate: Some(rate),
        remembered: TOKEN_SOURCES,
    })
}

impl Context {
    /// Who sends a request.
    pub(crate) fn authenticate(
        &self,
        peer: Option<&Peer>,
        metadata: &MetadataMap,
    ) -> Result<Identity, Refusal> {
        let may_verify = || {
            let (checks, now) = (&self.token_checks, Instant::now());
            peer.is_none_or(|peer| {
                checks
                    .spend(peer.address().ip(), Origin::Remote, now)
                    .is_ok()
            })
        };
        let certificate = peer.and_then(Peer::certificate);
        authenticate(
            &self.config.authentication,
            certificate,
            metadata,
            may_verify,
        )
    }

    /// Over how long agents leave, from the shutdown on: they need no longer than their number
    /// takes.
    pub(crate) fn spread(&self) -> Duration {
        let most = self.config.goaway_spread;
        *self
            .spread
            .get_or_init(|| spread(self.registry.connected(), most))
    }
}

impl Context {
    /// Whether agents are let in by their nodes: those of others must show nothing, and gain
    /// nothing by another name.
    pub(crate) fn looks_at_nodes(&self) -> bool {
        matches!(self.config.authentication, Authentication::Required(_))
            || self.registry.refuses_unknown_nodes()
    }
}

/// Why an agent is not served because of its node, if it is not.
pub(crate) fn node_refusal(standing: NodeStanding) -> Option<Refusal> {
    match standing {
        NodeStanding::Served => None,
        NodeStanding::Deleted => {
            let reason = RefusalReason::NodeDeleted;
            Some(Refusal::forbidden(reason, "node: deleted"))
        }
        // Agents come back soon for this one.
        NodeStanding::Unknown => {
            let message = "node: there is no Node of this name, or not yet";
            let status = Status::failed_precondition(message);
            Some(Refusal::new(RefusalReason::NodeUnknown, status))
        }
    }
}

/// What the stream of a node's agent ends with when its node has been taken away.
pub(crate) fn node_end(standing: NodeStanding) -> Status {
    let standing = match standing {
        // It is there again: not as what the stream began for.
        NodeStanding::Served => NodeStanding::Deleted,
        standing => standing,
    };
    let refusal = node_refusal(standing);
    refusal.map_or_else(|| Status::ok(""), |refusal| refusal.status)
}

fn spread(connected: usize, most: Duration) -> Duration {
    let connected = u32::try_from(connected).unwrap_or(u32::MAX);
    LEAVING.saturating_mul(connected).min(most)
}

/// What an agent says. It goes through many hands, and is large.
pub(crate) type Messages = Box<Streaming<v1::AgentMessage>>;

/// Accepts a stream: waits for Hello, and answers with frames.
pub(crate) async fn sync(
    context: Arc<Context>,
    request: Request<Messages>,
) -> Result<StreamBody, Status> {
    let Admitted {
        hello,
        identity,
        address,
        admission,
        messages,
    } = admit(&context, request).await?;
    let entry = hello.entry();
    let connect = Connect {
        node: entry,
        peer: address,
        agent_version: hello.agent_version.clone(),
        protocol_version: hello.version,
        now: SystemTime::now(),
        rate: identity.is_known().then_some(context.config.reconnects),
    };
    let session = match context.registry.connect(connect) {
        Ok(session) => Arc::new(session),
        Err(retry) => return Err(too_often(&context, admission.as_ref(), retry)),
    };
    let (node, agent_version) = (session.node(), &hello.agent_version);
    info!(%node, peer = ?address, agent_version, "agent connected");
    let control = Arc::new(SessionControl::default());
    let task = InboundTask {
        context: Arc::clone(&context),
        session: Arc::clone(&session),
        control: Arc::clone(&control),
        admission,
        remaining: identity.remaining(context.config.credential_grace),
        reviewed: identity.into_reviewed(),
    };
    let inbound = inbound::spawn(messages, task);
    let outbound = Outbound::new(context, session, control, inbound, hello);
    Ok(StreamBody::new(outbound))
}

/// Refuses a stream of a node whose streams begin too often. It costs the connection as much as a
/// bad credential: one that goes on is closed.
fn too_often(context: &Context, admission: Option<&Admission>, retry: RetryAfter) -> Status {
    let peer = admission.map(Admission::peer);
    if let Some(peer) = peer {
        peer.refused();
    }
    let mut status = Reason::ReconnectRate.state(Status::resource_exhausted(retry.to_string()));
    let wait = u64::try_from(retry.0.as_millis()).unwrap_or(u64::MAX);
    status.metadata_mut().insert(RETRY_PUSHBACK, wait.into());
    let (ip, reason) = (Peer::ip(peer), RefusalReason::ReconnectRate);
    context.registry.refuse(ip, reason, status.message());
    status
}

#[cfg(test)]
mod tests;
