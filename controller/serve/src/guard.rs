// SPDX-License-Identifier: Apache-2.0

//! Access control for services beside `portolan.v1.Tables`, as a layer: only peers with a credential are admitted.

mod body;
mod caller;

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_auth::{Identity, Refusal, RefusalReason, revoked};
use portolan_listener::{Admission, Peer};
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

/// Maximum wait for the cluster's identity before a stream is refused.
const IDENTITY_PATIENCE: Duration = Duration::from_secs(3);

/// The number of streams of a service that a node has at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeStreams {
    /// A newer one ends the older.
    One,
    /// As many as its connections carry.
    Any,
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
            Err(Refusal { reason, status }) => {
                if let Some(peer) = peer.as_ref().filter(|_| reason.is_credential()) {
                    peer.refused();
                }
                let ip = Peer::ip(peer.as_ref());
                context.registry.refuse(ip, reason, status.message());
                return Ok(status.into_http());
            }
        };
        let admission = peer.as_ref().map(Peer::admit);
        poll_fn(|task| self.service.poll_ready(task)).await?;
        // The only cluster now is not that of a peer without a credential: others may join.
        let clusters = &context.config.clusters;
        let named = identity.cluster().and_then(|name| clusters.get(name));
        if let Some(cluster) = named {
            request.extensions_mut().insert(PeerCluster(cluster));
        }
        let cluster = cluster_of(&context, &identity);
        let identity = Arc::new(identity);
        request.extensions_mut().insert(Caller {
            identity: Arc::clone(&identity),
            registry: Arc::clone(&context.registry),
            address: Peer::ip(peer.as_ref()),
        });
        let mut response = self.service.call(request).await?;
        let feed = cluster.map(|cluster| context.tables.feed(&cluster));
        let cluster_id = feed.as_ref().and_then(|feed| feed.cluster_id());
        if let Some(id) = cluster_id.and_then(|id| id.parse().ok()) {
            response.headers_mut().insert(CLUSTER_ID, id);
        }
        let registry = &context.registry;
        let node = identity.node().filter(|_| streams == NodeStreams::One);
        let keeper = Keeper {
            control: Arc::default(),
            peer: Peer::ip(peer.as_ref()),
            admission,
            beside: node.map(|node| registry.begin_side_stream(node)),
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
    identity.authorize_cluster(|cluster| context.config.clusters.get(cluster).is_some())?;
    if let Some(cluster) = cluster_of(context, &identity) {
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
fn cluster_of(context: &Context, identity: &Identity) -> Option<Arc<str>> {
    let clusters = &context.config.clusters;
    match identity.cluster() {
        Some(cluster) => clusters.get(cluster),
        None => clusters.only(),
    }
}

/// Ends a stream at the end of its credential, node or server, or on a stall. Runs as a task of its
/// own, because the connection does not poll the body while it cannot send.
struct Keeper {
    context: Arc<Context>,
    control: Arc<SessionControl>,
    peer: IpAddr,
    admission: Option<Admission>,
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
        if let Some(admission) = &self.admission {
            admission.cut();
        }
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
                self.context.registry.refuse(self.peer, reason, status.message());
                status
            }
            () = expired => {
                Status::unauthenticated("certificate or token: it has expired meanwhile")
            }
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
