// SPDX-License-Identifier: Apache-2.0

//! Strangers and misbehaving agents do not affect other agents.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::wait::wait_for;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::Code;

use crate::client::{Client, PATIENCE, config, patiently, tls};
use crate::server::{Server, raise_descriptors};

/// The number of connections that never send a byte.
const SILENT: usize = 9_000;
/// The number of connections with valid TLS that never send a Hello.
const MUTE: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_half_open_connections_disturb_no_agent() {
    let test = "ten_thousand_half_open_connections_disturb_no_agent";
    if raise_descriptors() < 12_000 {
        portolan_e2e::lane::missing(test, "needs 12,000 file descriptors");
        return;
    }
    let server = Arc::new(Server::start());
    let certificate = |node: &str| config(&server.certs().join("nodes").join(node));
    let mut agent = Client::connect(server.agents, certificate("a"), "a")
        .await
        .unwrap();
    agent.until(1).await;
    let before = (server.resident_kib(), server.descriptors());

    let done = Arc::new(AtomicBool::new(false));
    let peak = tokio::task::spawn_blocking({
        let (server, done) = (Arc::clone(&server), Arc::clone(&done));
        move || peak(&server, &done)
    });
    let flood = tokio::spawn(flood(Arc::clone(&server), certificate("b")));
    let mut slowest = Duration::ZERO;
    let mut changes = 0;
    while !flood.is_finished() || changes < 10 {
        changes += 1;
        let start = Instant::now();
        server.publish(1 + changes % 2);
        agent.until(1 + changes % 2).await;
        slowest = slowest.max(start.elapsed());
    }
    let held = flood.await.unwrap();
    // A new agent is accepted while all of them are held.
    let start = Instant::now();
    let mut other = Client::connect(server.agents, certificate("b"), "b")
        .await
        .unwrap();
    other.table().await.unwrap();
    let admitted = start.elapsed();
    done.store(true, Ordering::Relaxed);
    let (resident, descriptors) = peak.await.unwrap();

    let grown = resident.saturating_sub(before.0);
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    {
        figure("half_open_connections", held.len() as f64, "", None);
        let at_most = Some(Goal::AtMost(65_536.0));
        figure("half_open_memory_growth", grown as f64, "KiB", at_most);
        figure("half_open_descriptors", descriptors as f64, "", None);
        figure("half_open_changes", changes as f64, "", None);
    }
    figure("half_open_slowest_change", millis(slowest), "ms", None);
    figure("half_open_new_agent", millis(admitted), "ms", None);
    assert_eq!(held.len(), SILENT + MUTE);
    assert!(grown < 65_536, "{grown} KiB more in memory");
    assert!(server.refused("handshake_timeout") > 1_000.0);
}

/// Opens all connections, and keeps its ends open whatever the server does.
async fn flood(server: Arc<Server>, config: Arc<rustls::ClientConfig>) -> Vec<Held> {
    let room = Arc::new(Semaphore::new(512));
    let mut tasks = JoinSet::new();
    for number in 0..SILENT + MUTE {
        let permit = Arc::clone(&room).acquire_owned().await.unwrap();
        let (address, config) = (server.agents, Arc::clone(&config));
        tasks.spawn(async move {
            let _permit = permit;
            // One in ten keeps TLS up throughout the attack.
            if number % 10 == 0 {
                return Held::Mute(loop {
                    // The server may have no room for a moment, as for any agent.
                    if let Ok(stream) = tls(address, Arc::clone(&config)).await {
                        break Box::new(stream);
                    }
                });
            }
            Held::Silent(TcpStream::connect(address).await.unwrap())
        });
    }
    tasks.join_all().await
}

/// The attacker's end of a connection.
#[expect(dead_code, reason = "held, not used")]
enum Held {
    Silent(TcpStream),
    Mute(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

/// The highest memory and number of descriptors of the server until `done`.
fn peak(server: &Server, done: &AtomicBool) -> (u64, usize) {
    let mut peak = (0, 0);
    while !done.load(Ordering::Relaxed) {
        peak.0 = peak.0.max(server.resident_kib());
        peak.1 = peak.1.max(server.descriptors());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    peak
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_cost_little_and_delay_no_agent() {
    const STALLED: u64 = 50;
    const SERVICES: usize = 100;
    let server = Server::start();
    let certificate = |node: &str| config(&server.certs().join("nodes").join(node));
    let mut agent = Client::connect(server.agents, certificate("a"), "a")
        .await
        .unwrap();
    // First without readers, to exclude the cost of the changes themselves.
    churn(&server, &mut agent, SERVICES).await;
    let ca = std::fs::read_to_string(server.certs().join("ca/tls.crt")).unwrap();
    let mut stalled = Vec::new();
    for number in 0..STALLED {
        let name = format!("stalled{number}");
        let issued = server.issue(&name, crate::server::valid());
        let config = crate::client::config_of(&ca, Some(&issued));
        let client = Client::connect(server.agents, config, &name).await;
        stalled.push(client.unwrap());
    }
    let before = server.resident_kib();
    let slowest = churn(&server, &mut agent, SERVICES).await;
    let grown = server.resident_kib().saturating_sub(before) / STALLED;
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    {
        let at_most = Some(Goal::AtMost(256.0));
        figure("stalled_reader_memory_growth", grown as f64, "KiB", at_most);
        let slowest = slowest.as_secs_f64() * 1e3;
        figure("stalled_readers_slowest_change", slowest, "ms", None);
    }
    assert!(grown <= 256, "{grown} KiB for each that does not read");
    drop(stalled);
}

/// Changes most of a table repeatedly. Returns the longest time that an agent waited.
async fn churn(server: &Server, agent: &mut Client, services: usize) -> Duration {
    let mut slowest = Duration::ZERO;
    for turn in 0..20 {
        let start = Instant::now();
        let services = if turn % 2 == 0 { services } else { 2 };
        server.publish(services);
        agent.until(services).await;
        slowest = slowest.max(start.elapsed());
    }
    slowest
}

#[tokio::test]
async fn invalid_input_ends_only_its_own_connection() {
    let server = Server::start();
    let certificate = |node: &str| config(&server.certs().join("nodes").join(node));
    let mut bystander = Client::connect(server.agents, certificate("a"), "a")
        .await
        .unwrap();
    bystander.until(1).await;

    for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16; 600], &[0; 600]] {
        let mut stream = TcpStream::connect(server.agents).await.unwrap();
        stream.write_all(said).await.unwrap();
        let _: Result<_, _> = patiently(stream.read_to_end(&mut Vec::new())).await;
    }
    for said in [&[0xff; 4096][..], b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut stream = tls(server.agents, certificate("b")).await.unwrap();
        stream.write_all(said).await.unwrap();
        let _: Result<_, _> = patiently(stream.read_to_end(&mut Vec::new())).await;
    }
    let too_much = v1::Received {
        revision: 1,
        refused: vec![v1::Refusal {
            key: None,
            reason: "x".repeat(70_000),
        }],
        ..v1::Received::default()
    };
    let never_sent = v1::Programmed {
        revision: u64::MAX,
        ..v1::Programmed::default()
    };
    for (message, code) in [
        (Message::Received(too_much), Code::OutOfRange),
        (Message::Programmed(never_sent), Code::InvalidArgument),
        (Message::Hello(v1::Hello::default()), Code::InvalidArgument),
    ] {
        let mut client = Client::connect(server.agents, certificate("b"), "b")
            .await
            .unwrap();
        client.until(1).await;
        client.say(message).await;
        assert_eq!(client.table().await.unwrap_err().code(), code);
    }
    server.publish(2);
    bystander.until(2).await;
    // The server closes a connection before it counts it.
    wait_for("three refusals", PATIENCE, || {
        (server.refused("handshake") >= 3.0).then_some(())
    })
    .unwrap();
    assert_eq!(server.refused("handshake"), 3.0);
}
