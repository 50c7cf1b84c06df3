//! The gRPC service `portolan.v1.Tables`, for tonic's server.
//!
//! What tonic generates would take frames of records that it encodes for each agent; this takes
//! frames whose records are encoded already.

use std::convert::Infallible;
use std::sync::Arc;

use portolan_proto::encoded::EncodedFrame;
use portolan_proto::limits::MAX_AGENT_MESSAGE_BYTES;
use portolan_proto::v1;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context as TaskContext, Poll, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::session::{Context, Frames, sync};
use crate::{Registry, ServeConfig, Tables};

/// The service. Goes into `tonic::transport::Server::add_service`. Connections must have
/// `TCP_NODELAY` (`TcpIncoming::with_nodelay`), or each Commit waits for a delayed ACK.
#[derive(Debug, Clone)]
pub struct TablesServer {
    context: Arc<Context>,
}

impl TablesServer {
    /// Serves tables to agents until `shutdown`; then each stream ends with a Goaway.
    #[must_use]
    pub fn new(
        tables: Tables,
        registry: Arc<Registry>,
        config: ServeConfig,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            context: Arc::new(Context {
                tables,
                registry,
                config,
                shutdown,
            }),
        }
    }
}

impl NamedService for TablesServer {
    const NAME: &'static str = "portolan.v1.Tables";
}

impl<B> Service<http::Request<B>> for TablesServer
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let method = Sync(Arc::clone(&self.context));
        Box::pin(async move {
            if request.uri().path() != "/portolan.v1.Tables/Sync" {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            let codec = ProstCodec::<EncodedFrame, v1::AgentMessage>::default();
            let mut grpc =
                Grpc::new(codec).apply_max_message_size_config(Some(MAX_AGENT_MESSAGE_BYTES), None);
            Ok(grpc.streaming(method, request).await)
        })
    }
}

/// The method `Sync`.
struct Sync(Arc<Context>);

impl StreamingService<v1::AgentMessage> for Sync {
    type Response = EncodedFrame;
    type ResponseStream = Frames;
    type Future = BoxFuture<Response<Frames>, Status>;

    fn call(&mut self, request: Request<Streaming<v1::AgentMessage>>) -> Self::Future {
        let context = Arc::clone(&self.0);
        Box::pin(async move { sync(context, request).await.map(Response::new) })
    }
}
