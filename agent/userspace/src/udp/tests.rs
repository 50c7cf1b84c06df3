// SPDX-License-Identifier: Apache-2.0

use std::net::Ipv4Addr;

use portolan_model::{Destination, Frontend, FrontendAddress, FrontendKind};
use portolan_model::{NodeTable, Protocol, Record, RecordKey};
use portolan_nftables::Ways;
use portolan_plan::NodeFacts;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::service::Service;

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(10);

async fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

/// A way to one endpoint.
fn way(endpoint: SocketAddr) -> Arc<Way> {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "default".into(),
        service: "dns".into(),
        port: "".into(),
        protocol: Protocol::Udp,
    };
    let address = FrontendAddress::Vip([10, 96, 0, 10].into());
    let record = Record {
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, address, 53)],
        destinations: vec![Destination::new(endpoint)],
        ..Record::new(key.clone())
    };
    let mut table = NodeTable::default();
    table.records.insert(key.clone(), Arc::new(record));
    let ways = Ways::new(&table, &NodeFacts::default());
    let service = Arc::new(Service::new(key));
    service.serve([endpoint].into(), Duration::ZERO, Instant::now());
    let desired = ways.ways.values().next().unwrap();
    Arc::new(Way::new(&service, desired))
}

/// An endpoint that sends back what it receives.
async fn echo() -> SocketAddr {
    let socket = socket().await;
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; LARGEST];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            socket.send_to(&buffer[..length], from).await.unwrap();
        }
    });
    address
}

/// A listener for an echo, and what it shares.
async fn listener(limits: Limits) -> (SocketAddr, Shared) {
    let shared = Shared {
        limits,
        metrics: Metrics::default(),
        ending: CancellationToken::new(),
    };
    let socket = socket().await;
    let address = socket.local_addr().unwrap();
    tokio::spawn(serve(socket, way(echo().await), shared.clone()));
    (address, shared)
}

/// Sends a datagram and checks its answer.
async fn ask(client: &UdpSocket, listener: SocketAddr, content: &[u8]) {
    client.send_to(content, listener).await.unwrap();
    let mut buffer = vec![0; LARGEST];
    let answer = timeout(PATIENCE, client.recv_from(&mut buffer));
    let (length, from) = answer.await.expect("an answer").unwrap();
    assert_eq!((&buffer[..length], from), (content, listener));
}

#[tokio::test]
async fn a_burst_of_flows_is_served_and_leaves_places_for_connections() {
    let (address, shared) = listener(Limits::new(27)).await;
    let mut clients = Vec::new();
    for _ in 0..40 {
        let client = socket().await;
        ask(&client, address, b"name?").await;
        clients.push(client);
    }
    let room = timeout(PATIENCE, shared.limits.room());
    room.await.expect("a place for a connection");
    let local = Ipv4Addr::LOCALHOST.into();
    shared.limits.enter(local, local).unwrap();
}

#[tokio::test]
async fn the_largest_datagrams_pass_both_ways() {
    let (address, _shared) = listener(Limits::of_process()).await;
    let client = socket().await;
    // What an IPv4 packet holds besides its headers.
    ask(&client, address, &vec![7; 65_507]).await;
    ask(&client, address, b"").await;
}
