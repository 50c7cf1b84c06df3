//! The gRPC service `portolan.v1.Tables`, for tonic's server.
//!
//! What tonic generates would encode frames for each agent, into a buffer of its own; this gives
//! the connection chunks of frames that all agents share.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use portolan_proto::limits::MAX_AGENT_MESSAGE_BYTES;
use portolan_proto::v1;
use rustls::ServerConfig as TlsConfig;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codec::BufferSettings;
use tonic::codegen::{BoxFuture, Context as TaskContext, Poll, Service, StdError, http};
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::accept::Acceptor;
use crate::guard::Guarded;
use crate::session::{Context, StreamBody, sync};
use crate::{Limits, Registry, ServeConfig, Tables};

/// A silent connection is tested so often, and so long an answer may take.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// An agent has one stream, and a second one for a moment when it replaces the first.
const MAX_STREAMS: u32 = 4;

/// The largest frame that HTTP/2 takes from an agent, in bytes: the least that it must take.
const HTTP2_FRAME_BYTES: u32 = 16 << 10;

/// All headers of a request, in bytes: a token has about 1,500.
const HEADER_BYTES: u32 = 16 << 10;

/// How much of a stream, and of a connection, may be on its way from an agent, in bytes.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 128 << 10;

/// Room for what agents say nearly always, in bytes: each stream has that much for good.
const MESSAGE_BYTES: usize = 512;

/// How many streams a peer may open and reset before it is cut off.
const MAX_RESETS: usize = 16;

/// What agents say, decoded. Nothing is ever encoded by it.
type Codec = ProstCodec<v1::Frame, v1::AgentMessage>;

/// The service. [`serve`](Self::serve) is the way to use it: authentication needs its connections.
/// Within another server, connections must have `TCP_NODELAY` (`TcpIncoming::with_nodelay`), or
/// each Commit waits for a delayed ACK.
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
                snapshots: Arc::new(Semaphore::new(config.snapshots.max(1))),
                tables,
                registry,
                config,
                shutdown,
            }),
        }
    }

    /// Serves on a listener, with TLS if there is a configuration for it; each connection uses the
    /// newest. Returns after the shutdown, when the last stream has ended.
    ///
    /// # Errors
    /// If the server fails.
    pub async fn serve(
        self,
        listener: TcpListener,
        tls: Option<watch::Receiver<Arc<TlsConfig>>>,
        limits: Limits,
    ) -> Result<(), tonic::transport::Error> {
        self.serve_with(listener, tls, limits, None::<Self>).await
    }

    /// As [`serve`](Self::serve), with one more service for agents.
    ///
    /// # Errors
    /// If the server fails.
    pub async fn serve_with<S>(
        self,
        listener: TcpListener,
        tls: Option<watch::Receiver<Arc<TlsConfig>>>,
        limits: Limits,
        more: Option<S>,
    ) -> Result<(), tonic::transport::Error>
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        let more = more.map(|service| Guarded {
            service,
            context: Arc::clone(&self.context),
        });
        let shutdown = self.context.shutdown.clone();
        let acceptor = Acceptor {
            tls,
            limits,
            registry: Arc::clone(&self.context.registry),
            shutdown: shutdown.clone(),
        };
        Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .http2_max_header_list_size(HEADER_BYTES)
            .http2_max_pending_accept_reset_streams(Some(MAX_RESETS))
            .http2_max_local_error_reset_streams(Some(MAX_RESETS))
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .max_concurrent_streams(MAX_STREAMS)
            .max_frame_size(HTTP2_FRAME_BYTES)
            .add_service(self)
            .add_optional_service(more)
            .serve_with_incoming_shutdown(acceptor.incoming(listener), shutdown.cancelled_owned())
            .await
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
        let context = Arc::clone(&self.context);
        Box::pin(async move {
            if request.uri().path() != "/portolan.v1.Tables/Sync" {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            let request = request.map(|body| {
                let decoder =
                    Codec::raw_decoder(BufferSettings::new(MESSAGE_BYTES, MAX_AGENT_MESSAGE_BYTES));
                Streaming::new_request(decoder, body, None, Some(MAX_AGENT_MESSAGE_BYTES))
            });
            let stream = sync(context, Request::from_http(request)).await;
            Ok(stream.map_or_else(Status::into_http, response))
        })
    }
}

/// The response to a stream that is let in.
fn response(stream: StreamBody) -> http::Response<Body> {
    let mut response = http::Response::new(Body::new(stream));
    let content_type = http::HeaderValue::from_static("application/grpc");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, content_type);
    response
}
