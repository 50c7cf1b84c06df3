// SPDX-License-Identifier: Apache-2.0

//! The gRPC service `portolan.v1.Tables`.
//!
//! Written by hand: the code that tonic generates encodes frames separately for each agent, into a
//! buffer of its own. This service hands the connection chunks of frames that all agents share.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use hyper::body::Incoming;
use portolan_listener::{Acceptor, Limits};
use portolan_proto::limits::MAX_AGENT_MESSAGE_BYTES;
use portolan_proto::{FILE_DESCRIPTOR_SET, v1};
use portolan_tablelog::TableReader;
use rustls::ServerConfig as TlsConfig;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tonic::body::Body;
use tonic::codec::BufferSettings;
use tonic::codegen::http::header::CONTENT_TYPE;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tonic::codegen::{BoxFuture, Context as TaskContext, Poll, Service, StdError};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::{Status, Streaming};
use tonic_health::server::health_reporter;
use tonic_prost::ProstCodec;
use tower::Layer as _;

use crate::guard::{GuardLayer, NodeStreams};
use crate::health;
use crate::session::{Context, StreamBody, sync, token_checks};
use crate::{Registry, ServeConfig};

/// Initial size of a stream's decode buffer, in bytes. Nearly all agent messages fit. Each stream
/// keeps the buffer for its lifetime.
const MESSAGE_BYTES: usize = 512;

/// Path of the one method.
const SYNC: &str = "/portolan.v1.Tables/Sync";

/// Decoder of agent messages. Its encoder is unused.
type Codec = ProstCodec<v1::Frame, v1::AgentMessage>;

/// The service, normally run by [`serve`](Self::serve): authentication needs its connections.
/// Within another server, connections must have `TCP_NODELAY` (`TcpIncoming::with_nodelay`), or
/// each Commit waits for a delayed ACK.
#[derive(Debug, Clone)]
pub struct TablesServer {
    context: Arc<Context>,
    /// The services beside `Tables`.
    beside: Routes,
}

impl TablesServer {
    /// Creates a service that runs until `shutdown`. Each stream then ends with a Goaway.
    #[must_use]
    pub fn new(
        tables: TableReader,
        registry: Arc<Registry>,
        config: ServeConfig,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            context: Arc::new(Context {
                snapshots: Arc::new(Semaphore::new(config.snapshots.max(1))),
                token_checks: token_checks(config.token_checks),
                tables,
                registry,
                config,
                shutdown,
                spread: OnceLock::new(),
            }),
            beside: Routes::default(),
        }
    }

    /// Adds a service for peers with a credential, which finds its [`Caller`](crate::Caller) in each request.
    #[must_use]
    pub fn with_service<S>(mut self, service: S, streams: NodeStreams) -> Self
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
        S: NamedService + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
    {
        let guarded = self.guard(streams).layer(service);
        self.beside = self.beside.add_service(guarded);
        self
    }

    /// Serves on a listener, with TLS if a configuration is given. Each new connection uses the
    /// newest configuration. Returns after the shutdown, when the last connection has ended.
    ///
    /// # Errors
    /// Never. The `Result` is the signature of servers that can fail.
    pub async fn serve(
        self,
        listener: TcpListener,
        tls: Option<watch::Receiver<Arc<TlsConfig>>>,
        limits: Limits,
    ) -> Result<(), Infallible> {
        let (reporter, health) = health_reporter();
        let health = health.max_decoding_message_size(MAX_AGENT_MESSAGE_BYTES);
        let beside = self.with_reflection().add_service(health);
        let shutdown = self.context.shutdown.clone();
        let acceptor = Acceptor {
            tls,
            limits,
            refusals: self.context.registry.refusals_shared(),
            shutdown: shutdown.clone(),
        };
        let readiness = self.context.config.readiness.clone();
        health::report(&readiness, &reporter).await;
        let reports = health::follow(readiness, reporter, shutdown.clone());
        let _reports = AbortOnDropHandle::new(tokio::spawn(reports));
        let connections = TaskTracker::new();
        let tracker = connections.clone();
        let serve = move |connection| {
            let context = Arc::clone(&self.context);
            let beside = beside.clone();
            let answer = move |request| dispatch(Arc::clone(&context), beside.clone(), request);
            tracker.spawn(portolan_listener::serve(
                connection,
                answer,
                shutdown.clone(),
            ));
        };
        acceptor.run(listener, serve).await;
        connections.close();
        connections.wait().await;
        Ok(())
    }

    fn guard(&self, streams: NodeStreams) -> GuardLayer {
        GuardLayer {
            context: Arc::clone(&self.context),
            streams,
        }
    }

    /// All services beside `Tables`, and server reflection for all peers with a credential. As health
    /// checks, it keeps no connection open.
    fn with_reflection(&self) -> Routes {
        let beside = self.beside.clone();
        let mut builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        for descriptors in &self.context.config.descriptors {
            builder = builder.register_encoded_file_descriptor_set(descriptors);
        }
        match builder.build_v1() {
            Ok(service) => {
                let service = service.max_decoding_message_size(MAX_AGENT_MESSAGE_BYTES);
                beside.add_service(self.guard(NodeStreams::Any).layer(service))
            }
            Err(error) => {
                tracing::error!(%error, "no server reflection: unusable file descriptor sets");
                beside
            }
        }
    }
}

impl NamedService for TablesServer {
    const NAME: &'static str = "portolan.v1.Tables";
}

impl<B> Service<Request<B>> for TablesServer
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(answer(Arc::clone(&self.context), request))
    }
}

/// Routes a request to its service.
async fn dispatch(
    context: Arc<Context>,
    mut beside: Routes,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if request.uri().path() == SYNC {
        return answer(context, request).await;
    }
    // Rare path; boxed to keep the common future small.
    let answered = Box::pin(async move { beside.call(request).await }).await;
    Ok(answered.unwrap_or_else(|error| match error {}))
}

async fn answer<B>(context: Arc<Context>, request: Request<B>) -> Result<Response<Body>, Infallible>
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    if request.uri().path() != SYNC {
        return Ok(Status::unimplemented("no such method").into_http());
    }
    let request = request.map(|body| {
        let decoder =
            Codec::raw_decoder(BufferSettings::new(MESSAGE_BYTES, MAX_AGENT_MESSAGE_BYTES));
        let messages = Streaming::new_request(decoder, body, None, Some(MAX_AGENT_MESSAGE_BYTES));
        Box::new(messages)
    });
    let stream = sync(context, tonic::Request::from_http(request)).await;
    Ok(stream.map_or_else(Status::into_http, response))
}

/// The response that carries an admitted stream.
fn response(stream: StreamBody) -> Response<Body> {
    let mut response = Response::new(Body::new(stream));
    let content_type = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
