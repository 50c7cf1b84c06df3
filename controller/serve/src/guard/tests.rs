// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::{Instant, SystemTime};

use http_body::Frame;
use portolan_auth::RefusalReason;
use portolan_auth::testing::{Signer, claims, unix_now, verifier};
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
use crate::{Registry, ServeConfig, ServedClusters, TablesServer};
use portolan_auth::{Authentication, Certified, Reviews, Verdict};
use portolan_listener::Limits;
use portolan_tablelog::{Publisher, Retention};

const PATIENCE: Duration = Duration::from_secs(20);

/// A service whose streams send nothing, or as much as is taken, and never end by themselves. Callers of
/// `Edge` are authorized as an edge controller.
#[derive(Debug, Clone)]
struct Silent;

struct Never {
    floods: bool,
}

impl http_body::Body for Never {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.floods {
            true => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 16 << 10]))))),
            false => Poll::Pending,
        }
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

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let floods = path.ends_with("Flood");
        if path.ends_with("Edge") {
            let caller = request.extensions().get::<Caller>().unwrap();
            caller.authorize_edge("", "a").unwrap();
        }
        let mut response = http::Response::new(Body::new(Never { floods }));
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
    publisher: Publisher,
}

async fn start(authentication: Authentication, limits: Limits) -> Server {
    let config = ServeConfig {
        authentication,
        ..ServeConfig::default()
    };
    start_with(config, limits).await
}

async fn start_with(config: ServeConfig, limits: Limits) -> Server {
    start_as(NodeStreams::One, config, limits).await
}

async fn start_as(streams: NodeStreams, config: ServeConfig, limits: Limits) -> Server {
    let (publisher, tables) = Publisher::new(Retention::default());
    let registry = Arc::new(Registry::default());
    let shutdown = CancellationToken::new();
    let r = Arc::clone(&registry);
    let service = TablesServer::new(tables, r, config, shutdown.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = service.with_service(Silent, streams);
    let serving = serving.serve(listener, None, limits);
    Server {
        address,
        registry,
        shutdown,
        serving: tokio::spawn(serving),
        publisher,
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
    let admission_timeout = Duration::from_secs(2);
    let limits = Limits {
        admission_timeout,
        ..Limits::default()
    };
    let server = start(Authentication::Nothing, limits).await;
    let stream = call(server.channel().await, "/test.Silent/Watch").await;
    let mut stream = stream.unwrap();
    let early = timeout(admission_timeout * 3 / 2, stream.message()).await;
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
    // No agent has a table stream, so the spread is zero.
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn of_streams_without_a_limit_only_those_of_edges_keep_their_connection() {
    let admission_timeout = Duration::from_secs(2);
    let limits = Limits {
        admission_timeout,
        ..Limits::default()
    };
    let server = start_as(NodeStreams::Any, ServeConfig::default(), limits).await;
    let edge = call(server.channel().await, "/test.Silent/Edge").await;
    let other = call(server.channel().await, "/test.Silent/Watch").await;
    let (mut edge, mut other) = (edge.unwrap(), other.unwrap());
    let ended = timeout(PATIENCE, other.message()).await.unwrap();
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    let early = timeout(admission_timeout / 2, edge.message()).await;
    assert!(early.is_err(), "{early:?}");
}

#[test]
fn a_peer_whose_streams_are_not_counted_keeps_no_connection_by_them() {
    let known = |name: &str| {
        let (name, until) = (name.parse().unwrap(), SystemTime::now());
        Identity::Known(Certified { name, until }, None)
    };
    let node = known("portolan:///node/a");
    assert!(NodeStreams::One.keep_connections(&node));
    assert!(!NodeStreams::Any.keep_connections(&node));
    for other in ["portolan:///relay/a", "portolan://eu/edge/a"] {
        assert!(!NodeStreams::One.keep_connections(&known(other)), "{other}");
    }
    assert!(NodeStreams::One.keep_connections(&Identity::Anyone));
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

/// Side streams depend on their tokens, as table streams do.
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

#[tokio::test]
async fn an_expired_credential_opens_no_stream() {
    let signer = Signer::elliptic("1");
    let verifier = Arc::new(verifier("", &[&signer]));
    let config = ServeConfig {
        authentication: Authentication::Required(Some(verifier)),
        credential_grace: Duration::ZERO,
        ..ServeConfig::default()
    };
    let server = start_with(config, Limits::default()).await;
    // Clocks may differ by 30 s, so that the verifier still accepts the token.
    let mut claims = claims();
    claims["exp"] = (unix_now() - 5).into();
    let token = signer.sign(&claims);
    let refused = call_with(server.channel().await, "/test.Silent/Watch", Some(&token)).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
    let refusals = server.registry.refusals();
    assert!(
        refusals.contains(&(RefusalReason::Expired, 1)),
        "{refusals:?}"
    );
}

/// A server that accepts a node's token, and such a token.
async fn with_node(stall_timeout: Duration) -> (Server, String) {
    let signer = Signer::elliptic("1");
    let verifier = Arc::new(verifier("", &[&signer]));
    let config = ServeConfig {
        authentication: Authentication::Required(Some(verifier)),
        stall_timeout,
        ..ServeConfig::default()
    };
    let server = start_with(config, Limits::default()).await;
    (server, signer.sign(&claims()))
}

#[tokio::test]
async fn a_node_has_one_stream_as_long_as_it_is_there() {
    let (server, token) = with_node(PATIENCE).await;
    let node = NodeKey {
        cluster: "".into(),
        name: "a".into(),
    };
    server.registry.node_present(&node);
    let watch =
        async || call_with(server.channel().await, "/test.Silent/Watch", Some(&token)).await;
    let mut first = watch().await.unwrap();
    let mut second = watch().await.unwrap();
    let ended = timeout(PATIENCE, first.message()).await.unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::Aborted);
    server.registry.node_deleted(&node);
    let ended = timeout(PATIENCE, second.message()).await.unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::PermissionDenied);
    let refused = watch().await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    server.registry.node_present(&node);
    watch().await.unwrap();
}

/// The node is awaited between the look at the clusters and the begin of the stream.
#[tokio::test]
async fn a_cluster_that_goes_while_a_node_is_awaited_is_not_served() {
    let signer = Signer::elliptic("1");
    let verifier = Arc::new(verifier("eu", &[&signer]));
    let clusters = ServedClusters::new(["eu".into(), "us".into()]);
    let config = ServeConfig {
        authentication: Authentication::Required(Some(verifier)),
        clusters: clusters.clone(),
        ..ServeConfig::default()
    };
    let server = start_with(config, Limits::default()).await;
    server.registry.refuse_unknown_nodes(&"eu".into());
    let (channel, token) = (server.channel().await, signer.sign(&claims()));
    let mut opening = tokio::spawn(async move {
        let opened = call_with(channel, "/test.Silent/Watch", Some(&token)).await;
        opened.map(drop)
    });
    let early = timeout(Duration::from_millis(300), &mut opening).await;
    assert!(early.is_err(), "admitted without a Node");
    clusters.remove("eu");
    server.registry.cluster_withdrawn("eu");
    // The next Node of any cluster ends the wait.
    server.registry.node_present(&NodeKey {
        cluster: "us".into(),
        name: "b".into(),
    });
    let opened = timeout(PATIENCE, opening).await.unwrap().unwrap();
    assert_eq!(opened.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_stream_that_takes_nothing_is_cut_off() {
    let (server, token) = with_node(Duration::from_millis(200)).await;
    let channel = server.channel().await;
    let stream = call_with(channel, "/test.Silent/Flood", Some(&token)).await;
    let mut stream = stream.unwrap();
    // The stream is not read.
    timeout(PATIENCE, async {
        while server.registry.counters().stalled == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    let drained = async { while let Ok(Some(_)) = stream.message().await {} };
    timeout(PATIENCE, drained).await.unwrap();
}

#[tokio::test]
async fn an_agent_of_another_cluster_gets_no_names() {
    let server = start(Authentication::Nothing, Limits::default()).await;
    server
        .publisher
        .identity(&"".into())
        .set(Some("ours"))
        .unwrap();
    let of = async |id: &str| {
        let mut client = Grpc::new(server.channel().await);
        client.ready().await.unwrap();
        let codec: ProstCodec<v1::AgentMessage, v1::Frame> = ProstCodec::default();
        let mut request = Request::new(v1::AgentMessage::default());
        request
            .metadata_mut()
            .insert(CLUSTER_ID, id.parse().unwrap());
        let path = PathAndQuery::from_static("/test.Silent/Watch");
        let answered = client.server_streaming(request, path, codec).await?;
        let id = answered.metadata().get(CLUSTER_ID).unwrap();
        Ok::<_, Status>(id.to_str().unwrap().to_owned())
    };
    assert_eq!(of("ours").await.unwrap(), "ours");
    let refused = of("theirs").await.unwrap_err();
    assert_eq!(refused.metadata().get(CLUSTER_ID).unwrap(), "ours");
}
