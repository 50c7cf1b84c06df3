//! Lets agents, and nobody else, to a service beside that of the tables.

mod body;

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;

use crate::accept::Peer;
use crate::identity::{Identity, Refusal, Reviewed, revoked};
use crate::session::Context;
use body::LimitedBody;

/// A service that asks who it is first. Which node does not matter: all get the same.
#[derive(Debug, Clone)]
pub(crate) struct Guarded<S> {
    pub(crate) service: S,
    pub(crate) context: Arc<Context>,
}

impl<S> Guarded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S: NamedService,
{
    /// Whether a method is one of its own.
    pub(crate) fn has(&self, path: &str) -> bool {
        let method = path.strip_prefix('/').and_then(|rest| {
            let rest = rest.strip_prefix(S::NAME)?;
            rest.strip_prefix('/')
        });
        method.is_some()
    }

    /// Answers an agent; its stream lasts no longer than what it has shown, and than we do.
    pub(crate) async fn answer(
        mut self,
        request: http::Request<Body>,
    ) -> Result<http::Response<Body>, Infallible> {
        let peer = request.extensions().get::<Peer>().cloned();
        let metadata = MetadataMap::from_headers(request.headers().clone());
        let identity = match self.check(peer.as_ref(), &metadata) {
            Ok(identity) => identity,
            Err(Refusal { reason, status }) => {
                if let Some(peer) = peer.as_ref().filter(|_| reason.is_credential()) {
                    peer.refused();
                }
                let ip = Peer::ip(peer.as_ref());
                self.context.registry.refuse(ip, reason, status.message());
                return Ok(status.into_http());
            }
        };
        let admission = peer.as_ref().map(Peer::admit);
        poll_fn(|task| self.service.poll_ready(task)).await?;
        let response = self.service.call(request).await?;
        let remaining = identity.remaining(self.context.config.credential_grace);
        let (ip, reviewed) = (Peer::ip(peer.as_ref()), identity.into_reviewed());
        let end = end(self.context, remaining, ip, reviewed);
        Ok(response.map(|body| Body::new(LimitedBody::new(body, admission, end))))
    }

    fn check(&self, peer: Option<&Peer>, metadata: &MetadataMap) -> Result<Identity, Refusal> {
        let identity = self.context.authenticate(peer, metadata)?;
        identity.authorize_cluster(&self.context.config.clusters)?;
        Ok(identity)
    }
}

/// Completes when a stream must end, with what is said then. At the shutdown streams end over the
/// time that those of the tables have, or they would all come to the next controller at once.
async fn end(
    context: Arc<Context>,
    remaining: Option<Duration>,
    peer: IpAddr,
    reviewed: Option<Reviewed>,
) -> Status {
    let expired = async {
        match remaining {
            Some(remaining) => sleep(remaining).await,
            None => pending().await,
        }
    };
    tokio::select! {
        () = context.shutdown.cancelled() => {
            let spread = context.spread();
            let random = RandomState::new().hash_one(()) % 1_000;
            sleep(spread.mul_f64(random as f64 / 1_000.0)).await;
            Status::unavailable("shutting down")
        }
        () = revoked(reviewed.as_ref()) => {
            let Refusal { reason, status } = Refusal::revoked();
            context.registry.refuse(peer, reason, status.message());
            status
        }
        () = expired => Status::unauthenticated("certificate or token: it has expired meanwhile"),
    }
}

#[cfg(test)]
mod tests;
