// SPDX-License-Identifier: Apache-2.0

//! Memory of a stream of names at the controller whose agent reads nothing.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that says what it measures"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_dns::replica::NamesService;
use portolan_dns::{Kind, NamesChange, Service, ServiceKey, SharedZone, Zone, ZoneConfig};
use portolan_listener::Limits;
use portolan_serve::{NodeStreams, Registry, ServeConfig, TablesServer};
use portolan_tablelog::{Publisher, Retention};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Number of Services.
const SERVICES: usize = 5_000;
/// Number of agents that watch their names.
const AGENTS: usize = 300;

/// The most that each of them may cost, in bytes: what a stream of the tables may.
const MOST: usize = 40 << 10;

fn zone() -> Arc<SharedZone> {
    let config = ZoneConfig::new("cluster.local").unwrap();
    let zone = Arc::new(SharedZone::new(Zone::new(config, 1).unwrap()));
    let service = |i: usize| {
        let address = std::net::Ipv4Addr::from(0x0a60_0000 + u32::try_from(i).unwrap());
        NamesChange::Service(Service {
            key: ServiceKey::new("namespace", format!("service-{i}")),
            kind: Kind::ClusterIp {
                ips: vec![address.into()],
            },
            ports: vec![],
            publish_not_ready: false,
        })
    };
    zone.apply((0..SERVICES).map(service));
    zone.apply([NamesChange::Synced]);
    zone
}

/// The memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split(' ').nth(1).unwrap();
    pages.parse::<usize>().unwrap() * 4096
}

/// An agent that asks for names and takes the first of what comes: by hand, as a client of a library
/// would need memory of its own.
fn watch(address: SocketAddr) -> TcpStream {
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let literal = |name: u8, value: &[u8]| {
        let length = u8::try_from(value.len()).unwrap();
        [&[name, length], value].concat()
    };
    // POST and http by their places in HPACK's table, and the path and content-type as literals.
    let headers = [
        vec![0x83, 0x86],
        literal(0x44, b"/portolan.dns.v1.Names/Watch"),
        literal(0x41, b"localhost"),
        literal(0x5f, b"application/grpc"),
    ]
    .concat();
    let mut stream = TcpStream::connect(address).unwrap();
    let request = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &headers),
        // An empty message, and no more.
        frame(0, 1, 1, &[0; 5]),
    ];
    stream.write_all(&request.concat()).unwrap();
    let mut first = [0; 4_096];
    let mut got = 0;
    while got < first.len() {
        let read = stream.read(&mut first[got..]).unwrap();
        assert!(read > 0, "the stream has ended");
        got += read;
    }
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_stream_of_names_costs_little() {
    let (_publisher, tables) = Publisher::new(Retention::default());
    let config = ServeConfig {
        stall_timeout: Duration::from_secs(600),
        ..ServeConfig::default()
    };
    let shutdown = CancellationToken::new();
    let server = TablesServer::new(tables, Arc::new(Registry::default()), config, shutdown);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (names, following) = NamesService::new(zone());
    tokio::spawn(following);
    tokio::spawn(server.with_service(names, NodeStreams::One).serve(
        listener,
        None,
        Limits::default(),
    ));
    let connect = |count: usize| {
        tokio::task::spawn_blocking(move || (0..count).map(|_| watch(address)).collect::<Vec<_>>())
    };
    // What all share, and what the allocator takes anyway.
    let first = connect(20).await.unwrap();
    let before = resident();
    let began = Instant::now();
    let streams = connect(AGENTS).await.unwrap();
    let each = resident().saturating_sub(before) / AGENTS;
    println!(
        "a stalled stream of {SERVICES} names: {} KiB each, {AGENTS} of them in {:?}",
        each >> 10,
        began.elapsed()
    );
    assert!(each <= MOST, "{each} bytes");
    drop((first, streams));
}
