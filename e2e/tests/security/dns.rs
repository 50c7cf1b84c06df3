// SPDX-License-Identifier: Apache-2.0

//! Clients of the DNS port cannot take resources from agents.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::ports;
use portolan_e2e::wait::wait_for;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Client, PATIENCE, config};
use crate::server::Server;

/// The number of silent connections to the DNS port.
const IDLE: usize = 2_000;
/// The controller's limit of descriptors.
const DESCRIPTORS: u64 = 700;

async fn idle(address: SocketAddr) -> Vec<TcpStream> {
    let room = Arc::new(Semaphore::new(256));
    let mut tasks = JoinSet::new();
    for _ in 0..IDLE {
        let room = Arc::clone(&room);
        tasks.spawn(async move {
            let _permit = room.acquire().await;
            let connected = timeout(Duration::from_secs(10), TcpStream::connect(address));
            connected.await.ok()?.ok()
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_for_names_take_nothing_from_agents() {
    let [port] = ports::reserve().unwrap();
    let names = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let bind = format!("--dns-bind-address={names}");
    let server = Server::with(&["--dns-zone=cluster.local", &bind]);
    server.limit_descriptors(DESCRIPTORS);
    let held = idle(names).await;

    let start = Instant::now();
    let certificate = config(&server.certs().join("nodes/a"));
    let mut agent = Client::connect(server.agents, certificate, "a")
        .await
        .unwrap();
    agent.until(1).await;
    let admitted = start.elapsed();
    assert!(server.get("/readyz").is_some());
    server.renew_certificates();
    let reloads = "portolan_controller_credential_reloads_total{what=\"tls\"}";
    wait_for("the new certificate", PATIENCE, || {
        let count = server.metric(reloads)?;
        (count >= 1.0).then_some(())
    })
    .unwrap();
    let descriptors = server.descriptors();
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    {
        figure("idle_dns_connections", held.len() as f64, "", None);
        let at_most = Some(Goal::AtMost(320.0));
        figure("idle_dns_descriptors", descriptors as f64, "", at_most);
    }
    let millis = admitted.as_secs_f64() * 1e3;
    figure("idle_dns_new_agent", millis, "ms", None);
    assert_eq!(held.len(), IDLE);
    assert!(descriptors <= 320, "{descriptors}");
}
