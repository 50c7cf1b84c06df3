// SPDX-License-Identifier: Apache-2.0

//! Access control for services beside `portolan.v1.Tables`, as a layer: only peers with a credential are admitted.

mod body;
mod caller;

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use portolan_auth::{Identity, Refusal, RefusalReason, revoked};
use portolan_listener::Peer;
use portolan_model::NodeKey;
use portolan_proto::CLUSTER_ID;
use portolan_runtime::PeerCluster;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context as TaskContext, Poll, Service, http};
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tower::Layer;

use crate::registry::{Counter, SideStream, SideStreamEnd};
use crate::session::{Context, REPLACED, SessionControl, check_cluster, check_node, node_end};
use body::LimitedBody;
pub use caller::Caller;
use caller::Place;

/// Maximum wait for the cluster's identity before a stream is refused.
const IDENTITY_PATIENCE: Duration = Duration::from_secs(3);

/// The number of streams of a service that a node has at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeStreams {
    /// A newer one ends the older.
    One,
    /// As many as its connections carry. They keep no connection open, unless the service authorizes
    /// their caller as an [edge](Caller::authorize_edge).
    Any,
}

impl NodeStreams {
    /// The node whose streams are counted.
    fn counted(self, identity: &Identity) -> Option<NodeKey> {
        identity.node().filter(|_| self == Self::One)
    }

    /// Returns `true` if a peer's streams keep their connections open. Those of a known peer must
    /// be counted for that: it could take all connections otherwise.
    fn keep_connections(self, identity: &Identity) -> bool {
        self == Self::One && (identity.node().is_some() || !identity.is_known())
    }
}

/// Authenticates the callers of a service. The answers do not depend on the node.
#[derive(Debug, Clone)]
pub(crate) struct GuardLayer {
    pub(crate) context: Arc<Context>,
    pub(crate) streams: NodeStreams,
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guarded<S>;

    fn layer(&self, service: S) -> Guarded<S> {
        Guarded {
            service,
            layer: self.clone(),
        }
    }
}

/// A service with a [`GuardLayer`].
#[derive(Debug, Clone)]
pub(crate) struct Guarded<S> {
    service: S,
    layer: GuardLayer,
}

impl<S: NamedService> NamedService for Guarded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Guarded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        // The service is awaited when its caller is admitted.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}

impl<S> Guarded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
{
    /// Answers an agent. The stream ends with its credential, its node or the server, whichever is
    /// first, and is cut off if the agent stalls.
    async fn answer(
        mut self,
        mut request: http::Request<Body>,
    ) -> Result<http::Response<Body>, Infallible> {
        let peer = request.extensions().get::<Peer>().cloned();
        let metadata = MetadataMap::from_headers(request.headers().clone());
        let GuardLayer { context, streams } = self.layer;
        let identity = match check(&context, peer.as_ref(), &metadata).await {
            Ok(identity) => identity,
            Err(refusal) => return Ok(refuse(&context, peer.as_ref(), refusal)),
        };
        let node = streams.counted(&identity);
        let beside = node.map(|node| context.registry.begin_side_stream(node));
        // A withdrawal of the cluster ends the streams that there are; it may have come since the check.
        let cluster = match cluster_of(&context, &identity) {
            Ok(cluster) => cluster,
            Err(refusal) => return Ok(refuse(&context, peer.as_ref(), refusal)),
        };
        let place = Place::new(peer);
        if streams.keep_connections(&identity) {
            place.admit();
        }
        poll_fn(|task| self.service.poll_ready(task)).await?;
        // The only cluster now is not that of a peer without a credential: others may join.
        if let Some(cluster) = cluster.clone().filter(|_| identity.is_known()) {
            request.extensions_mut().insert(PeerCluster(cluster));
        }
        let identity = Arc::new(identity);
        request.extensions_mut().insert(Caller {
            identity: Arc::clone(&identity),
            registry: Arc::clone(&context.registry),
            place: place.clone(),
        });
        let mut response = self.service.call(request).await?;
        let feed = cluster.map(|cluster| context.tables.feed(&cluster));
        let cluster_id = feed.as_ref().and_then(|feed| feed.cluster_id());
        if let Some(id) = cluster_id.and_then(|id| id.parse().ok()) {
            response.headers_mut().insert(CLUSTER_ID, id);
        }
        let keeper = Keeper {
            control: Arc::default(),
            place,
            beside,
            remaining: identity.remaining(context.config.credential_grace),
            identity,
            context,
        };
        let control = Arc::clone(&keeper.control);
        let keeper = AbortOnDropHandle::new(tokio::spawn(keeper.run()));
        Ok(response.map(|body| Body::new(LimitedBody::new(body, control, keeper))))
    }
}

/// Authenticates and authorizes the sender of a request.
async fn check(
    context: &Context,
    peer: Option<&Peer>,
    metadata: &MetadataMap,
) -> Result<Identity, Refusal> {
    let identity = context.authenticate(peer, metadata)?;
    if let Some(cluster) = cluster_of(context, &identity)? {
        let feed = context.tables.feed(&cluster);
        let known = context.tables.cluster_id_known(&feed);
        if timeout(IDENTITY_PATIENCE, known).await.is_err() {
            let status = Status::unavailable("the cluster's identity is not known yet");
            return Err(Refusal::new(RefusalReason::Starting, status));
        }
        let theirs = metadata.get(CLUSTER_ID).and_then(|id| id.to_str().ok());
        check_cluster(context, &cluster, theirs.unwrap_or_default())?;
    }
    if let Some(node) = identity.node() {
        check_node(context, &node).await?;
    }
    Ok(identity)
}

/// The cluster that a request concerns: that of its credential, or the only one. `None` for a peer without
/// a credential among several clusters.
///
/// # Errors
/// If the cluster of its credential is not served.
fn cluster_of(context: &Context, identity: &Identity) -> Result<Option<Arc<str>>, Refusal> {
    let clusters = &context.config.clusters;
    let named = identity.authorize_cluster(|name| clusters.get(name))?;
    Ok(named.or_else(|| clusters.only()))
}

/// Counts and logs a refusal, and returns the answer to the sender.
fn refuse(context: &Context, peer: Option<&Peer>, refusal: Refusal) -> http::Response<Body> {
    let Refusal { reason, status } = refusal;
    if let Some(peer) = peer.filter(|_| reason.is_credential()) {
        peer.refused();
    }
    let ip = Peer::ip(peer);
    context.registry.refuse(ip, reason, status.message());
    status.into_http()
}

/// Ends a stream at the end of its credential, node or server, or on a stall. Runs as a task of its
/// own, because the connection does not poll the body while it cannot send.
struct Keeper {
    context: Arc<Context>,
    control: Arc<SessionControl>,
    place: Place,
    beside: Option<SideStream>,
    remaining: Option<Duration>,
    identity: Arc<Identity>,
}

impl Keeper {
    async fn run(self) {
        let stall_timeout = self.context.config.stall_timeout;
        let (status, patience) = tokio::select! {
            biased;
            parted = parted(self.beside.as_ref()) => match parted {
                SideStreamEnd::Replaced => {
                    let status = Status::aborted("a newer stream of this node has begun");
                    (status, stall_timeout.min(REPLACED))
                }
                SideStreamEnd::Node(standing) => (node_end(standing), stall_timeout),
            },
            status = self.over() => (status, stall_timeout),
            () = self.control.stalled(stall_timeout) => {
                self.context.registry.count(Counter::Stalled, 1);
                (Status::unavailable("the agent takes nothing"), Duration::ZERO)
            }
        };
        self.control.end(Err(status));
        // The connection drops the body, and with it this task, once it has taken the end. The cut
        // is for a connection that takes nothing.
        sleep(patience).await;
        self.place.cut();
        pending().await
    }

    /// Completes when the credential has expired or is revoked, or at the shutdown. At the
    /// shutdown, streams end at random times within the spread of the table streams, so that agents
    /// do not all reach the next controller at once.
    async fn over(&self) -> Status {
        let expired = async {
            match self.remaining {
                Some(remaining) => sleep(remaining).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = self.context.shutdown.cancelled() => {
                let spread = self.context.spread();
                let random = RandomState::new().hash_one(()) % 1_000;
                sleep(spread.mul_f64(random as f64 / 1_000.0)).await;
                Status::unavailable("shutting down")
            }
            () = revoked(self.identity.reviewed()) => {
                let Refusal { reason, status } = Refusal::revoked();
                let ip = self.place.ip();
                self.context.registry.refuse(ip, reason, status.message());
                status
            }
            () = expired => Refusal::expired().status,
        }
    }
}

async fn parted(beside: Option<&SideStream>) -> SideStreamEnd {
    match beside {
        Some(beside) => beside.parted().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
