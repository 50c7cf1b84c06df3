// SPDX-License-Identifier: Apache-2.0

//! Probes of the admin port while strangers hold as many connections to it as they can.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use portolan_e2e::figure::{Goal, figure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::client::PATIENCE;
use crate::server::{Server, raise_descriptors};

/// The number of connections that strangers hold.
const SOCKETS: usize = 5_000;
/// The time after which a stranger whose connection was closed reconnects.
const RETURN: Duration = Duration::from_secs(5);
const PROBES: u8 = 60;
/// The pause between two probes; all of them together span the strangers' return.
const PAUSE: Duration = Duration::from_millis(50);
/// The limit of the answer time for kubelets and load balancers, in milliseconds.
const GOAL: f64 = 100.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_are_answered_while_one_address_holds_all_it_can() {
    let server = Server::start();
    attack("one_address", server.admin(), "/livez", one_address).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_are_answered_while_many_addresses_hold_all_they_can() {
    let server = Server::start();
    attack("many_addresses", server.admin(), "/livez", many_addresses).await;
}

/// The source of every connection: a single address.
pub(crate) fn one_address(_: usize) -> Ipv4Addr {
    Ipv4Addr::LOCALHOST
}

/// The source of a connection: a distinct address for each.
pub(crate) fn many_addresses(number: usize) -> Ipv4Addr {
    let [.., high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

/// Holds connections to a port of a server, and measures how long its probes of a path take.
pub(crate) async fn attack(
    name: &str,
    address: SocketAddr,
    path: &'static str,
    source: impl Fn(usize) -> Ipv4Addr,
) {
    if raise_descriptors() < 12_000 {
        portolan_e2e::lane::missing(name, "needs 12,000 file descriptors");
        return;
    }
    let probed = async |when: &str, goal| {
        let waits = tokio::task::spawn_blocking(move || probes(address, path)).await;
        let mut waits = waits.unwrap();
        waits.sort_by(f64::total_cmp);
        let (median, worst) = (waits[waits.len() / 2], waits[waits.len() - 1]);
        figure(&format!("probe_median_{when}"), median, "ms", goal);
        // A machine that does other things too may delay any single one.
        figure(&format!("probe_worst_{when}"), worst, "ms", None);
        median
    };
    probed(&format!("before_{name}"), None).await;
    let connected = Arc::new(AtomicUsize::new(0));
    let mut strangers = JoinSet::new();
    for number in 0..SOCKETS {
        let connected = Arc::clone(&connected);
        strangers.spawn(stranger(number, source(number), address, path, connected));
    }
    let all = async {
        while connected.load(Ordering::Relaxed) < SOCKETS {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let all_came = timeout(PATIENCE, all).await.is_ok();
    let median = probed(name, Some(Goal::AtMost(GOAL))).await;
    assert!(all_came, "not all strangers could connect");
    assert!(median <= GOAL, "{median} ms");
}

/// The time of each probe in milliseconds. A runtime of its own excludes the cost of the strangers' side.
fn probes(address: SocketAddr, path: &str) -> Vec<f64> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let one = |number: u8| {
        // The kubelet's address, and a balancer's.
        let source = Ipv4Addr::new(127, 0, 0, 1 + number % 2);
        let start = Instant::now();
        let asking = async { timeout(PATIENCE, probe(source, address, path)).await };
        let answer = runtime.block_on(asking).expect("an answer in time");
        let took = start.elapsed();
        let answer = answer.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        runtime.block_on(async { sleep(PAUSE).await });
        took.as_secs_f64() * 1e3
    };
    (0..PROBES).map(one).collect()
}

async fn connect(source: Ipv4Addr, address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((source, 0).into())?;
    socket.connect(address).await
}

async fn probe(source: Ipv4Addr, address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = connect(source, address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Holds a connection in one of three ways, and comes back when it was closed.
async fn stranger(
    number: usize,
    source: Ipv4Addr,
    address: SocketAddr,
    path: &str,
    connected: Arc<AtomicUsize>,
) {
    let mut came = false;
    loop {
        if let Ok(stream) = connect(source, address).await {
            if !std::mem::replace(&mut came, true) {
                connected.fetch_add(1, Ordering::Relaxed);
            }
            // The connection is held until it is closed, by any error.
            let _ = hold(stream, path, number % 3).await;
        }
        sleep(RETURN).await;
    }
}

async fn hold(mut stream: TcpStream, path: &str, way: usize) -> std::io::Result<()> {
    match way {
        // Says nothing.
        0 => {}
        // Never comes to the end of a request.
        1 => {
            let request = format!("GET {path} HTTP/1.1\r\nX: ");
            stream.write_all(request.as_bytes()).await?;
            loop {
                stream.write_all(b"x").await?;
                sleep(Duration::from_millis(500)).await;
            }
        }
        // Keeps the connection after an answer.
        _ => {
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
        }
    }
    stream.read_to_end(&mut Vec::new()).await.map(|_| ())
}
