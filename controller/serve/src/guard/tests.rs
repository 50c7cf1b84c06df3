use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Instant;

use http_body::Frame;
use portolan_proto::v1;
use prost::bytes::Bytes;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::codegen::http::HeaderValue;
use tonic::codegen::http::header::CONTENT_TYPE;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Streaming};
use tonic_prost::ProstCodec;

use super::*;
use crate::identity::testing::{Signer, claims, verifier};
use crate::registry::RefusalReason;
use crate::{
    Authentication, Limits, Publisher, Registry, Retention, Reviews, ServeConfig, Tables,
    TablesServer, Verdict,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// A service whose streams say nothing, and never end by themselves.
#[derive(Debug, Clone)]
struct Silent;

struct Never;

impl http_body::Body for Never {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Pending
    }
}

impl NamedService for Silent {
    const NAME: &'static str = "test.Silent";
}

impl Service<http::Request<Body>> for Silent {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let mut response = http::Response::new(Body::new(Never));
        let value = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, value);
        std::future::ready(Ok(response))
    }
}

struct Server {
    address: SocketAddr,
    registry: Arc<Registry>,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), Infallible>>,
    _publisher: (Publisher, Tables),
}

async fn start(authentication: Authentication, limits: Limits) -> Server {
    let (publisher, tables) = Publisher::new(Retention::default());
    let registry = Arc::new(Registry::default());
    let shutdown = CancellationToken::new();
    let config = ServeConfig {
        authentication,
        ..ServeConfig::default()
    };
    let (t, r) = (tables.clone(), Arc::clone(&registry));
    let service = TablesServer::new(t, r, config, shutdown.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = service.serve_with(listener, None, limits, Some(Silent));
    Server {
        address,
        registry,
        shutdown,
        serving: tokio::spawn(serving),
        _publisher: (publisher, tables),
    }
}

impl Server {
    async fn channel(&self) -> Channel {
        let endpoint: Endpoint = format!("http://{}", self.address).parse().unwrap();
        endpoint.connect().await.unwrap()
    }
}

async fn call(channel: Channel, path: &'static str) -> Result<Streaming<v1::Frame>, Status> {
    call_with(channel, path, None).await
}

async fn call_with(
    channel: Channel,
    path: &'static str,
    token: Option<&str>,
) -> Result<Streaming<v1::Frame>, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.unwrap();
    let codec: ProstCodec<v1::AgentMessage, v1::Frame> = ProstCodec::default();
    let mut request = Request::new(v1::AgentMessage::default());
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    let path = PathAndQuery::from_static(path);
    let answered = timeout(PATIENCE, client.server_streaming(request, path, codec));
    Ok(answered.await.unwrap()?.into_inner())
}

#[tokio::test]
async fn a_stream_keeps_its_connection_and_ends_with_the_server() {
    let admission_timeout = Duration::from_millis(200);
    let limits = Limits {
        admission_timeout,
        ..Limits::default()
    };
    let server = start(Authentication::Nothing, limits).await;
    let stream = call(server.channel().await, "/test.Silent/Watch").await;
    let mut stream = stream.unwrap();
    let early = timeout(admission_timeout * 5, stream.message()).await;
    assert!(early.is_err(), "{early:?}");
    let began = Instant::now();
    server.shutdown.cancel();
    let ended = timeout(PATIENCE, stream.message()).await.unwrap();
    let status = ended.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    timeout(PATIENCE, server.serving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    // No agent of the tables is connected: there is nothing to spread over.
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn strangers_are_refused_and_counted() {
    let server = start(Authentication::Required(None), Limits::default()).await;
    let refused = call(server.channel().await, "/test.Silent/Watch").await;
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
    let refusals = server.registry.refusals();
    let count = refusals
        .into_iter()
        .find(|(reason, _)| *reason == RefusalReason::NoCredential);
    assert_eq!(count.unwrap().1, 1);
}

#[tokio::test]
async fn other_names_are_not_its_own() {
    let server = start(Authentication::Nothing, Limits::default()).await;
    let channel = server.channel().await;
    for path in ["/test.Silent2/Watch", "/test/Watch", "/Watch"] {
        let refused = call(channel.clone(), path).await;
        assert_eq!(refused.unwrap_err().code(), Code::Unimplemented, "{path}");
    }
}

/// Beside the tables a stream goes by a token too.
#[tokio::test]
async fn a_stream_ends_when_its_token_is_revoked() {
    let (signer, reviews) = (Signer::elliptic("1"), Reviews::new(PATIENCE));
    let verifier = verifier("", &[&signer]).reviewed(Arc::clone(&reviews));
    let authentication = Authentication::Required(Some(Arc::new(verifier)));
    let server = start(authentication, Limits::default()).await;
    let token = signer.sign(&claims());
    let stream = call_with(server.channel().await, "/test.Silent/Watch", Some(&token)).await;
    let mut stream = stream.unwrap();
    let due = timeout(PATIENCE, reviews.next()).await.unwrap();
    reviews.report(&due, Verdict::Revoked);
    let ended = timeout(PATIENCE, stream.message()).await.unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::Unauthenticated);
    let again = call_with(server.channel().await, "/test.Silent/Watch", Some(&token)).await;
    assert_eq!(again.unwrap_err().code(), Code::Unauthenticated);
    let refusals = server.registry.refusals();
    assert!(
        refusals.contains(&(RefusalReason::Revoked, 2)),
        "{refusals:?}"
    );
}
