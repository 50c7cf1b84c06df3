// SPDX-License-Identifier: Apache-2.0

//! Agents connect while strangers open connections faster than they can be served.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_e2e::figure::{Goal, figure};
use portolan_subscription::FIRST_COMMIT_TIMEOUT;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client::{Client, config, patiently};
use crate::server::{Server, raise_descriptors};

/// The interval of new connections.
const TICK: Duration = Duration::from_millis(10);
/// The number of connections that a flood opens in each tick: 1,000 a second.
const PER_TICK: usize = 10;
/// The highest number of connections that a flood holds.
const HELD: usize = 6_000;
/// The time for which an attacker keeps its end open.
const KEPT: Duration = Duration::from_secs(20);
/// The number of agents that connect, one after the other, during the floods.
const AGENTS: usize = 10;
/// The deadline of an agent.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// A thousand connections a second that send a few bytes and wait. Runs on its own thread: agents
/// do not share a runtime with their attackers.
struct Flood {
    opened: Arc<AtomicU64>,
    _end: DropGuard,
}

impl Flood {
    /// Starts a flood from each of these addresses in turn.
    fn start(target: SocketAddr, sources: Vec<[u8; 4]>, said: &[u8]) -> Self {
        let opened = Arc::new(AtomicU64::new(0));
        let (count, said) = (Arc::clone(&opened), Arc::<[u8]>::from(said));
        let end = CancellationToken::new();
        let ended = end.clone().cancelled_owned();
        let flood = async move {
            let room = Arc::new(Semaphore::new(HELD));
            let mut sources = sources.iter().cycle().copied();
            let mut tick = interval(TICK);
            tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
            loop {
                tick.tick().await;
                for source in sources.by_ref().take(PER_TICK) {
                    let permit = Arc::clone(&room).acquire_owned().await.unwrap();
                    let (said, count) = (Arc::clone(&said), Arc::clone(&count));
                    tokio::spawn(async move {
                        let _permit = permit;
                        if let Ok(stream) = connect(source, target).await {
                            count.fetch_add(1, Ordering::Relaxed);
                            hold(stream, &said).await;
                        }
                    });
                }
            }
        };
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = flood => {}
                    () = ended => {}
                }
            });
        });
        Self {
            opened,
            _end: end.drop_guard(),
        }
    }

    fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

async fn connect(source: [u8; 4], target: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    // Leaves no port in TIME_WAIT.
    socket.set_zero_linger()?;
    socket.connect(target).await
}

/// Sends `said`, and keeps the connection until the server closes it.
async fn hold(mut stream: TcpStream, said: &[u8]) {
    if stream.write_all(said).await.is_ok() {
        let _ = timeout(KEPT, stream.read_to_end(&mut Vec::new())).await;
    }
}

/// The first message of a TLS client.
fn client_hello(config: Arc<ClientConfig>) -> Vec<u8> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

/// Floods a server from one address and from a hundred. Returns the time of the slowest agent that
/// connects meanwhile.
async fn slowest_agent(one: [u8; 4], whole_hello: bool) -> Duration {
    let server = Server::start();
    let certificate = |node: &str| config(&server.certs().join("nodes").join(node));
    let mut bystander = Client::connect(server.agents, certificate("a"), "a")
        .await
        .unwrap();
    bystander.until(1).await;
    let hello = client_hello(certificate("a"));
    let said = if whole_hello { &hello[..] } else { &hello[..1] };
    let hundred = (1..=100).map(|last| [127, 0, 2, last]).collect();
    let floods = [vec![one], hundred].map(|sources| Flood::start(server.agents, sources, said));
    // Until all that the server can hold of them is held.
    patiently(async {
        while floods.iter().any(|flood| flood.opened() < 3_000) {
            tokio::time::sleep(TICK).await;
        }
    })
    .await;
    let (began, before) = (Instant::now(), floods.each_ref().map(Flood::opened));
    let cpu = server.cpu();
    let mut slowest = Duration::ZERO;
    for _ in 0..AGENTS {
        let start = Instant::now();
        // A connection that is closed, or without a table in time, is tried again, as agents do.
        let connected = timeout(GIVEN_UP, async {
            loop {
                let agent = Client::connect(server.agents, certificate("b"), "b");
                let table = async { agent.await?.table().await };
                if let Ok(Ok(_)) = timeout(FIRST_COMMIT_TIMEOUT, table).await {
                    break;
                }
                tokio::time::sleep(TICK).await;
            }
        });
        let is_served = connected.await.is_ok();
        slowest = slowest.max(if is_served { start.elapsed() } else { GIVEN_UP });
        if !is_served {
            break;
        }
    }
    for (flood, before) in floods.iter().zip(before) {
        let opened = (flood.opened() - before) as f64;
        let rate = opened / began.elapsed().as_secs_f64();
        figure("flood_connections", rate, "a second", None);
    }
    let share = (server.cpu() - cpu).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
    figure("flood_server_cpu", share, "% of a core", None);
    figure(
        "flood_server_memory",
        server.resident_kib() as f64,
        "KiB",
        None,
    );
    drop(floods);
    server.publish(2);
    bystander.until(2).await;
    slowest
}

async fn check(name: &str, one: [u8; 4], whole_hello: bool) {
    if raise_descriptors() < 20_000 {
        portolan_e2e::lane::missing(name, "needs 20,000 file descriptors");
        return;
    }
    let slowest = slowest_agent(one, whole_hello).await;
    let millis = slowest.as_secs_f64() * 1e3;
    figure(name, millis, "ms", Some(Goal::AtMost(1_000.0)));
    // A busy machine is slow, but locks no agent out.
    assert!(slowest < GIVEN_UP, "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_byte_of_a_client_hello_locks_no_agent_out() {
    check("flood_one_byte_new_agent", [127, 0, 1, 1], false).await;
}

/// As from behind the address of a node that is not masqueraded well, or of a relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_byte_from_the_agents_own_address_locks_no_agent_out() {
    check("flood_same_address_new_agent", [127, 0, 0, 1], false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_client_hellos_lock_no_agent_out() {
    check("flood_whole_hello_new_agent", [127, 0, 1, 1], true).await;
}

/// Certificates are reloaded and used while strangers hold all the descriptors that they can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_leave_descriptors_for_certificates() {
    raise_descriptors();
    let server = Server::limited(256);
    let hundred = (1..=100).map(|last| [127, 0, 2, last]).collect();
    let flood = Flood::start(server.agents, hundred, &[]);
    patiently(async {
        while flood.opened() < 1_000 {
            tokio::time::sleep(TICK).await;
        }
    })
    .await;
    let start = Instant::now();
    server.renew_certificates();
    let reloads = "portolan_controller_credential_reloads_total{what=\"tls\"}";
    let mut descriptors = 0;
    patiently(async {
        while server.metric(reloads).unwrap_or(0.0) < 1.0 {
            descriptors = descriptors.max(server.descriptors());
            tokio::time::sleep(10 * TICK).await;
        }
    })
    .await;
    figure(
        "flood_certificates_used",
        start.elapsed().as_secs_f64(),
        "s",
        None,
    );
    figure(
        "flood_descriptors",
        descriptors as f64,
        "of 256",
        Some(Goal::AtMost(200.0)),
    );
    let certificate = config(&server.certs().join("nodes").join("b"));
    // With so few descriptors strangers displace it now and then, as each other.
    let mut agent = patiently(async {
        loop {
            let certificate = Arc::clone(&certificate);
            if let Ok(agent) = Client::connect(server.agents, certificate, "b").await {
                return agent;
            }
        }
    })
    .await;
    agent.table().await.unwrap();
    assert!(descriptors <= 200, "{descriptors}");
    assert_eq!(server.refused("accept"), 0.0);
}
