// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use portolan_model::Families;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use super::*;

fn service(name: &str) -> ServiceKey {
    ServiceKey {
        cluster: "".into(),
        namespace: "ns".into(),
        name: name.into(),
    }
}

fn wanted(
    name: &str,
    port: u16,
    endpoints: &[(Family, usize)],
) -> BTreeMap<ServiceKey, HealthCheck> {
    let endpoints = endpoints.iter().copied().collect();
    [(service(name), HealthCheck { port, endpoints })].into()
}

fn loopback() -> BTreeMap<Family, ListenOn> {
    let on = |ip: &str| ListenOn::Addresses([ip.parse().unwrap()].into());
    [(Family::V4, on("127.0.0.1")), (Family::V6, on("::1"))].into()
}

fn checks() -> HealthChecks {
    let health = Health::new(Family::ALL, Duration::from_secs(30));
    let node_ports = NodePortAddresses::default();
    HealthChecks::register(
        Family::ALL.into(),
        node_ports,
        health,
        &mut Registry::default(),
    )
}

/// A port that was just free in both families.
async fn free_port() -> u16 {
    loop {
        let v4 = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = v4.local_addr().unwrap().port();
        if TcpListener::bind(("::1", port)).await.is_ok() {
            return port;
        }
    }
}

/// Sends a request and reads until the server closes.
async fn ask(address: &str, port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect((address, port)).await.unwrap();
    let head = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn status(address: &str, port: u16) -> String {
    let answer = ask(address, port, "GET /").await;
    answer[9..12].to_owned()
}

#[tokio::test]
async fn answer_is_identical_to_kube_proxys_for_any_path_and_method() {
    let (mut checks, port) = (checks(), free_port().await);
    checks
        .apply_on(&wanted("svc", port, &[(Family::V4, 2)]), &loopback())
        .await;
    for request in ["GET /", "GET /healthz", "POST /any/thing?x=1", "OPTIONS *"] {
        let answer = ask("127.0.0.1", port, request).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let head = head.to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{request}: {head}");
        for line in [
            "content-type: application/json",
            "x-content-type-options: nosniff",
            "x-load-balancing-endpoint-weight: 2",
        ] {
            assert!(head.lines().any(|have| have == line), "{line}: {head}");
        }
        assert_eq!(
            body,
            "{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"svc\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
        );
    }
}

#[tokio::test]
async fn answer_without_endpoints_or_health_is_503() {
    let (mut checks, port) = (checks(), free_port().await);
    let none = wanted("svc", port, &[(Family::V4, 0), (Family::V6, 1)]);
    checks.apply_on(&none, &loopback()).await;
    assert_eq!(status("127.0.0.1", port).await, "503");
    assert_eq!(status("::1", port).await, "200");

    checks
        .apply_on(&wanted("svc", port, &[(Family::V4, 1)]), &loopback())
        .await;
    assert_eq!(status("127.0.0.1", port).await, "200");
    checks
        .health
        .queued(Instant::now() - Duration::from_secs(60));
    let answer = ask("127.0.0.1", port, "GET /").await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": false\n}"));
    checks
        .health
        .served(Instant::now(), Families::NONE, std::time::SystemTime::now());
    assert_eq!(status("127.0.0.1", port).await, "200");
}

#[tokio::test]
async fn changed_port_is_closed_and_free_for_another_service() {
    let (mut checks, port, other) = (checks(), free_port().await, free_port().await);
    let v4 = [(Family::V4, 1)];
    checks.apply_on(&wanted("a", port, &v4), &loopback()).await;
    checks.apply_on(&wanted("a", other, &v4), &loopback()).await;
    assert_eq!(status("127.0.0.1", other).await, "200");
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());

    checks.apply_on(&wanted("b", other, &v4), &loopback()).await;
    assert!(
        ask("127.0.0.1", other, "GET /")
            .await
            .contains("\"name\": \"b\"")
    );
    assert!(checks.failed.is_empty());
    checks.apply_on(&BTreeMap::new(), &loopback()).await;
    assert!(TcpStream::connect(("127.0.0.1", other)).await.is_err());
}

#[tokio::test]
async fn port_in_use_is_retried() {
    let mut checks = checks();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let wanted = wanted("a", port, &[(Family::V4, 1)]);
    checks.apply_on(&wanted, &loopback()).await;
    checks.apply_on(&wanted, &loopback()).await;
    assert_eq!((checks.failed.len(), checks.failed_count.get()), (1, 1));
    drop(taken);
    checks.apply_on(&wanted, &loopback()).await;
    assert_eq!((checks.failed.len(), checks.failed_count.get()), (0, 0));
    assert_eq!(status("127.0.0.1", port).await, "200");
}

#[tokio::test]
async fn both_families_listen_on_all_addresses() {
    let (mut checks, port) = (checks(), free_port().await);
    let on = Family::ALL.map(|family| (family, ListenOn::All)).into();
    checks
        .apply_on(&wanted("a", port, &[(Family::V4, 1), (Family::V6, 0)]), &on)
        .await;
    assert!(checks.failed.is_empty(), "{:?}", checks.failed);
    assert_eq!(status("127.0.0.1", port).await, "200");
    assert_eq!(status("::1", port).await, "503");
}

#[tokio::test]
async fn connection_that_outlives_its_service_gets_503() {
    let (checks, port) = (checks(), free_port().await);
    let asked = CheckedService {
        counts: Arc::clone(&checks.counts),
        health: checks.health.clone(),
        key: (service("gone"), Family::V4),
    };
    let response = respond(State(asked)).await;
    assert_eq!(response.status(), 503);
    let mut checks = checks;
    checks
        .apply_on(&wanted("a", port, &[(Family::V4, 1)]), &loopback())
        .await;
    assert_eq!(status("127.0.0.1", port).await, "200");
}

#[tokio::test]
async fn listeners_follow_node_port_addresses() {
    let port = free_port().await;
    let mut checks = checks();
    let wanted = wanted("a", port, &[(Family::V4, 1), (Family::V6, 1)]);
    let addresses = ["127.0.0.1", "::1"].map(|ip| ip.parse().unwrap()).into();
    checks.node_ports = NodePortAddresses::parse(&["127.0.0.0/8".to_owned()]).unwrap();
    checks.apply(&wanted, &addresses).await;
    let on: Vec<_> = checks
        .listening
        .keys()
        .map(|at| at.ip().to_string())
        .collect();
    assert_eq!(on, ["127.0.0.1", "::"]);

    checks.apply(&wanted, &BTreeSet::new()).await;
    let on: Vec<_> = checks
        .listening
        .keys()
        .map(|at| at.ip().to_string())
        .collect();
    assert_eq!(on, ["::"]);
}

#[tokio::test]
async fn balancers_are_answered_while_strangers_hold_connections() {
    let (mut checks, a, b) = (checks(), free_port().await, free_port().await);
    let mut both = wanted("a", a, &[(Family::V4, 1)]);
    both.extend(wanted("b", b, &[(Family::V4, 1)]));
    checks.apply_on(&both, &loopback()).await;
    let mut held = Vec::new();
    for _ in 0..600 {
        let mut stream = TcpStream::connect(("127.0.0.1", a)).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nX: ").await.unwrap();
        held.push(stream);
    }
    for port in [a, b] {
        let answer = timeout(Duration::from_secs(20), status("127.0.0.1", port)).await;
        assert_eq!(answer.unwrap(), "200", "{port}");
    }
}

#[tokio::test]
async fn ended_listener_is_opened_again() {
    let (mut checks, port) = (checks(), free_port().await);
    let wanted = wanted("a", port, &[(Family::V4, 1)]);
    checks.apply_on(&wanted, &loopback()).await;
    for listening in checks.listening.values() {
        listening.stop.cancel();
    }
    let closed = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(20), closed).await.unwrap();
    checks.apply_on(&wanted, &loopback()).await;
    assert_eq!(status("127.0.0.1", port).await, "200");
}
