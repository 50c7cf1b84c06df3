// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_auth::Authentication;
use portolan_auth::testing::{Signer, claims, verifier};
use portolan_listener::Limits;
use portolan_model::NodeKey;
use portolan_tablelog::{Publisher, Retention};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as Answer;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::*;
use crate::{Registry, ServeConfig};

const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    address: SocketAddr,
    readiness: Readiness,
    registry: Arc<Registry>,
    shutdown: CancellationToken,
    _publisher: Publisher,
}

impl Server {
    async fn start(authentication: Authentication, limits: Limits) -> Self {
        let (publisher, tables) = Publisher::new(Retention::default());
        let (readiness, shutdown) = (Readiness::default(), CancellationToken::new());
        let config = ServeConfig {
            authentication,
            readiness: readiness.clone(),
            ..ServeConfig::default()
        };
        let registry = Arc::<Registry>::default();
        let service = TablesServer::new(tables, Arc::clone(&registry), config, shutdown.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(service.serve(listener, None, limits));
        Self {
            address,
            readiness,
            registry,
            shutdown,
            _publisher: publisher,
        }
    }

    async fn channel(&self) -> Channel {
        let endpoint: Endpoint = format!("http://{}", self.address).parse().unwrap();
        endpoint.connect().await.unwrap()
    }
}

fn asking_for(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

async fn check(channel: &Channel, service: &str) -> Result<Answer, Status> {
    let mut client = HealthClient::new(channel.clone());
    let answer = client.check(asking_for(service)).await?;
    Ok(answer.into_inner().status())
}

#[tokio::test]
async fn health_is_the_readiness_and_needs_no_identity() {
    let server = Server::start(Authentication::Required(None), Limits::default()).await;
    let unready = server.readiness.block("source");
    let channel = server.channel().await;
    let mut watching = HealthClient::new(channel.clone());
    let watched = watching.watch(asking_for(TablesServer::NAME)).await;
    let mut watched = watched.unwrap().into_inner();
    let mut next = async || {
        let answer = timeout(PATIENCE, watched.message()).await.unwrap();
        answer.unwrap().map(|answer| answer.status())
    };
    assert_eq!(next().await, Some(Answer::NotServing));
    for service in NAMES {
        assert_eq!(check(&channel, service).await.unwrap(), Answer::NotServing);
    }
    drop(unready);
    assert_eq!(next().await, Some(Answer::Serving));
    for service in NAMES {
        assert_eq!(check(&channel, service).await.unwrap(), Answer::Serving);
    }
    let other = check(&channel, "portolan.v1.Other").await;
    assert_eq!(other.unwrap_err().code(), Code::NotFound);
    server.shutdown.cancel();
    assert_eq!(next().await, Some(Answer::NotServing));
    assert_eq!(next().await, None);
}

#[tokio::test]
async fn a_connection_with_health_alone_is_closed_like_any_without_an_agent() {
    let limits = Limits {
        admission_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let server = Server::start(Authentication::Required(None), limits).await;
    let mut client = HealthClient::new(server.channel().await);
    let watched = client.watch(asking_for("")).await;
    let mut watched = watched.unwrap().into_inner();
    let drained = async { while let Ok(Some(_)) = watched.message().await {} };
    timeout(PATIENCE, drained).await.unwrap();
}

#[tokio::test]
async fn a_connection_with_reflection_alone_is_closed_like_any_without_an_agent() {
    let signer = Signer::elliptic("1");
    let verifier = Arc::new(verifier("", &[&signer]));
    let authentication = Authentication::Required(Some(verifier));
    let limits = Limits {
        admission_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let server = Server::start(authentication, limits).await;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let mut request = Request::new(tokio_stream::pending());
    let token = format!("Bearer {}", signer.sign(&claims()));
    let metadata = request.metadata_mut();
    metadata.insert("authorization", token.parse().unwrap());
    let answers = client.server_reflection_info(request).await;
    let mut answers = answers.unwrap().into_inner();
    let drained = async { while let Ok(Some(_)) = answers.message().await {} };
    timeout(PATIENCE, drained).await.unwrap();
}

async fn services(channel: Channel, token: Option<&str>) -> Result<Vec<String>, Status> {
    let mut client = ServerReflectionClient::new(channel);
    let question = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut request = Request::new(tokio_stream::once(question));
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    let answers = client.server_reflection_info(request).await?;
    let answer = answers.into_inner().message().await?;
    match answer.and_then(|answer| answer.message_response) {
        Some(MessageResponse::ListServicesResponse(list)) => Ok(list
            .service
            .into_iter()
            .map(|service| service.name)
            .collect()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn reflection_lists_the_services_to_agents_alone() {
    let signer = Signer::elliptic("1");
    let verifier = Arc::new(verifier("", &[&signer]));
    let authentication = Authentication::Required(Some(verifier));
    let server = Server::start(authentication, Limits::default()).await;
    let node = NodeKey {
        cluster: "".into(),
        name: "a".into(),
    };
    server.registry.node_present(&node);
    let refused = services(server.channel().await, None).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
    let token = signer.sign(&claims());
    let listed = services(server.channel().await, Some(&token))
        .await
        .unwrap();
    for name in [
        "portolan.v1.Tables",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ] {
        assert!(
            listed.iter().any(|listed| listed == name),
            "{name}: {listed:?}"
        );
    }
}
