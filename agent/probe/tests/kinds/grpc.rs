// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;

use portolan_health::Outcome;
use portolan_model::check::{GrpcProbe, Probe};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use crate::rig::{answering, check, failure, refusing, run, silent, slow, times_out};

fn grpc(service: &str) -> Probe {
    Probe::Grpc(GrpcProbe {
        service: service.to_owned(),
        tls: None,
    })
}

/// A real health service.
async fn server() -> (SocketAddr, HealthReporter) {
    let (reporter, service) = health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (address, reporter)
}

#[tokio::test]
async fn only_serving_passes() {
    let (address, reporter) = server().await;
    let told = |service: &'static str| async move { run(&check(grpc(service)), address).await };
    assert_eq!(told("").await, Outcome::pass());
    reporter
        .set_service_status("db", ServingStatus::NotServing)
        .await;
    assert_eq!(failure(&told("db").await), "NOT_SERVING, not SERVING");
    reporter
        .set_service_status("db", ServingStatus::Serving)
        .await;
    assert_eq!(told("db").await, Outcome::pass());
    let unknown = told("cache").await;
    assert!(
        failure(&unknown).starts_with("gRPC status 5"),
        "{unknown:?}"
    );
}

#[tokio::test]
async fn a_server_without_health_service_fails() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = tonic::transport::Server::builder();
    let router = server.add_routes(tonic::service::Routes::default());
    tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    let outcome = run(&check(grpc("")), address).await;
    assert!(
        failure(&outcome).starts_with("gRPC status 12"),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn slow_silent_refusing_and_lying_servers_fail() {
    times_out(grpc(""), silent().await).await;
    // The header of a SETTINGS frame of 16,383 bytes.
    let settings = [0, 0x3f, 0xff, 4, 0, 0, 0, 0, 0, 0];
    times_out(grpc(""), slow(settings).await).await;
    let refused = run(&check(grpc("")), refusing().await).await;
    assert_eq!(failure(&refused), "connection refused");
    let http1 = answering("HTTP/1.1 200 OK\r\ngrpc-status: 0\r\n\r\n").await;
    let outcome = run(&check(grpc("")), http1).await;
    assert!(failure(&outcome).starts_with("HTTP"), "{outcome:?}");
}
