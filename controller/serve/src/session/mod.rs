// SPDX-License-Identifier: Apache-2.0

//! One agent's stream.
//!
//! The connection pulls the outbound half: the next frames are taken from the newest tables, and
//! only when the agent can take them. The inbound half is a task of its own, so that
//! acknowledgements arrive and ends are noticed even while frames cannot leave.

mod admit;
mod body;
mod control;
mod hello;
mod inbound;
mod outbound;
mod spans;
mod turn;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use portolan_auth::{Authentication, Identity, Refusal, RefusalReason, authenticate};
use portolan_listener::{Admission, Peer};
use portolan_proto::reason::Reason;
use portolan_proto::v1;
use portolan_runtime::{ConnectionSlots, Origin, Rate, Readiness, SlotLimits};
use portolan_tablelog::{Scope, TableReader};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status, Streaming};
use tracing::info;

use crate::registry::{Connect, NodeStanding, RetryAfter, Session};
use crate::{Registry, ServedClusters};
use admit::{Admitted, admit};
pub(crate) use admit::{check_cluster, check_node};
pub(crate) use body::StreamBody;
pub(crate) use control::SessionControl;
use inbound::InboundTask;
pub(crate) use inbound::REPLACED;
use outbound::Outbound;

/// Configuration of the service for agents.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The clusters that are served; by default the single one, of the empty name. An agent of
    /// another cluster is refused: an empty table would make it delete all its records.
    pub clusters: ServedClusters,
    /// Maximum time until an agent sends Hello.
    pub hello_timeout: Duration,
    /// Maximum time over which agents are told to spread their reconnects at shutdown. Streams of
    /// agents that do not leave by themselves are ended one by one within it.
    pub goaway_spread: Duration,
    /// Credentials that agents must present.
    pub authentication: Authentication,
    /// Time by which a stream may outlive the certificate or token that it began with. Long enough
    /// for clock skew and a late renewal, short enough that an expired credential is of little use.
    pub credential_grace: Duration,
    /// Maximum number of agents that are sent a snapshot at the same time; the others wait.
    pub snapshots: usize,
    /// Time without progress after which a connection with pending output counts as stalled.
    pub stall_timeout: Duration,
    /// Maximum time until an agent answers with the hashes of its buckets. After it, a snapshot is
    /// sent.
    pub buckets_timeout: Duration,
    /// Time that an agent with a table newer than the controller's waits for the controller to
    /// catch up. After it, the agent is told to go elsewhere.
    pub catch_up_timeout: Duration,
    /// Rate at which tokens from one source are verified.
    pub token_checks: Rate,
    /// Rate of new streams of one node. Applies only where the node's name is proven; otherwise
    /// other peers could use up the node's rate.
    pub reconnects: Rate,
    /// Readiness that gRPC's health service reports.
    pub readiness: Readiness,
    /// Encoded `FileDescriptorSet`s of further services, for server reflection.
    pub descriptors: Vec<&'static [u8]>,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            clusters: ServedClusters::default(),
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
            readiness: Readiness::default(),
            descriptors: Vec::new(),
        }
    }
}

/// Maximum wait of an agent for its unknown node to be reported, before it is refused. Less than
/// agents wait for the answer to Hello.
const NODE_PATIENCE: Duration = Duration::from_secs(3);

/// Time that each connected agent adds to the spread of a shutdown, which limits arrivals at other
/// controllers to 500 a second.
const LEAVING: Duration = Duration::from_millis(2);

/// Metadata key with which gRPC servers state the delay of the next attempt, in milliseconds.
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// State shared by all sessions of a server.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) tables: TableReader,
    pub(crate) registry: Arc<Registry>,
    pub(crate) config: ServeConfig,
    pub(crate) shutdown: CancellationToken,
    /// Limits concurrent snapshots.
    pub(crate) snapshots: Arc<Semaphore>,
    /// Limits the verification of tokens by source.
    pub(crate) token_checks: ConnectionSlots,
    /// Duration of the leave at shutdown, fixed when it is first needed.
    pub(crate) spread: OnceLock<Duration>,
}

/// Number of token sources whose rate is remembered.
const TOKEN_SOURCES: usize = 4_096;

/// The limiter of token verifications by source. It has a rate and no slots.
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
    /// Authenticates the sender of a request. A certificate is verified only when its connection begins,
    /// and expires while the connection is open.
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
        let identity = authenticate(
            &self.config.authentication,
            certificate,
            metadata,
            may_verify,
        )?;
        if identity.remaining(self.config.credential_grace) == Some(Duration::ZERO) {
            return Err(Refusal::expired());
        }
        Ok(identity)
    }

    /// Duration over which agents leave after the shutdown: proportional to their number, at most
    /// `goaway_spread`.
    pub(crate) fn spread(&self) -> Duration {
        let most = self.config.goaway_spread;
        *self
            .spread
            .get_or_init(|| spread(self.registry.connected(), most))
    }
}

impl Context {
    /// Returns `true` if the standing of nodes decides on admission. It does not where
    /// authentication is off and unknown nodes are served: a peer refused under one name could
    /// simply use another.
    pub(crate) fn looks_at_nodes(&self) -> bool {
        matches!(self.config.authentication, Authentication::Required(_))
            || self.registry.refuses_unknown_nodes()
    }
}

impl Context {
    /// The status that ends a session whose node or cluster is served no longer; `None` while both are.
    fn end_of(&self, session: &Session) -> Option<Status> {
        if !session.is_deleted() {
            return None;
        }
        let node = session.node();
        if self.config.clusters.get(&node.cluster).is_none() {
            return Some(not_served());
        }
        self.looks_at_nodes()
            .then(|| node_end(self.registry.standing(node)))
    }
}

/// The status of agents of clusters that are not served.
fn not_served() -> Status {
    Status::not_found("cluster: not served here")
}

/// The refusal for a node's standing; `None` if the node is served.
pub(crate) fn node_refusal(standing: NodeStanding) -> Option<Refusal> {
    match standing {
        NodeStanding::Served => None,
        NodeStanding::Deleted => {
            let reason = RefusalReason::NodeDeleted;
            Some(Refusal::forbidden(reason, "node: deleted"))
        }
        // This status makes agents retry soon.
        NodeStanding::Unknown => {
            let message = "node: there is no Node of this name, or not yet";
            let status = Status::failed_precondition(message);
            Some(Refusal::new(RefusalReason::NodeUnknown, status))
        }
    }
}

/// Status that ends a stream whose node has been removed.
pub(crate) fn node_end(standing: NodeStanding) -> Status {
    let standing = match standing {
        // The node has been created anew. The stream belongs to the deleted one.
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

/// Messages of an agent. Boxed, because the type is large and often moved.
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
    // A withdrawal ends the sessions that there are; it may have come since the look at Hello.
    if context.config.clusters.get(&node.cluster).is_none() {
        return Err(not_served());
    }
    info!(%node, peer = ?address, agent_version, "agent connected");
    let control = Arc::new(SessionControl::default());
    let task = InboundTask {
        context: Arc::clone(&context),
        session: Arc::clone(&session),
        control: Arc::clone(&control),
        admission,
        remaining: identity.remaining(context.config.credential_grace),
        reviewed: identity.into_reviewed(),
        questions: matches!(hello.scope, Scope::AllNodes(_)).then(Notify::new),
    };
    let inbound = inbound::spawn(messages, task);
    let outbound = Outbound::new(context, session, control, inbound, hello);
    Ok(StreamBody::new(outbound))
}

/// Refuses a stream of a node whose streams begin too often. It counts against the connection like
/// a bad credential, so a connection that persists is closed.
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
