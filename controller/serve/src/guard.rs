//! Lets agents, and nobody else, to a service beside that of the tables.

use std::convert::Infallible;
use std::sync::Arc;

use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;

use crate::accept::Peer;
use crate::identity::{Refusal, authenticate};
use crate::session::Context as SessionContext;

/// A service that asks who it is first. Which node does not matter: all get the same.
#[derive(Debug, Clone)]
pub(crate) struct Guarded<S> {
    pub(crate) service: S,
    pub(crate) context: Arc<SessionContext>,
}

impl<S: NamedService> NamedService for Guarded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Guarded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().cloned();
        let metadata = MetadataMap::from_headers(request.headers().clone());
        match authenticate(
            &self.context.config.authentication,
            peer.as_ref(),
            &metadata,
        ) {
            Ok(_) => {
                peer.inspect(Peer::admit);
                Box::pin(self.service.call(request))
            }
            Err(Refusal { status, .. }) => Box::pin(async { Ok(status.into_http()) }),
        }
    }
}
