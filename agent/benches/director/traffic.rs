// SPDX-License-Identifier: Apache-2.0

//! Reloads under traffic: of three real servers behind one address the weight of the first changes with each
//! reload, and the third one comes and goes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use portolan_e2e::rig::{
    Connection, EchoServer, Host, Load, LoadConfig, Protocol, RequestError, Rig, RigConfig,
};
use portolan_e2e::wait::wait_for;
use portolan_model::ipvs::VirtualServerKey;

use crate::PATIENCE;
use crate::director::{Director, Program};

const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const PORT: u16 = 8080;
const RELOADS: u32 = 100;
/// Answers between two reloads.
const ANSWERS: u64 = 20;
/// Connections that are open all the time, and ask again and again.
const LONG: usize = 12;
/// The time after which a question counts as failed.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Failures of clients during all reloads.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// Questions over new connections.
    pub(crate) requests: u64,
    /// Those without an answer, in time or at all.
    pub(crate) failed: usize,
    /// Those that were refused or reset.
    pub(crate) reset: usize,
    /// Open connections that ended, or stopped answering.
    pub(crate) lost: usize,
    /// The time of a reload until the kernel had its change, on average.
    pub(crate) reload: Duration,
}

pub(crate) fn run(program: Program) -> Result<Traffic> {
    let rig = Rig::new(RigConfig {
        nodes: 1,
        clients: 4,
    })?;
    let director_host = rig.node(0);
    director_host
        .namespace()
        .sysctl(&[("ipv4/ip_forward", "1")])?;
    if program == Program::Keepalived {
        // Its VRRP would add it.
        let address = format!("{VIP}/32");
        director_host.exec(&["ip", "address", "add", &address, "dev", "lo"])?;
    }
    let via = director_host.v4();
    rig.clients()[0].add_route("192.0.2.0/24", via.into())?;
    let real: Vec<_> = rig.clients()[1..].iter().collect();
    let servers: Result<Vec<EchoServer>> = real.iter().map(|host| serve(host)).collect();
    let _servers = servers?;

    let mut director = Director::new(program, director_host)?;
    let mut texts = Vec::new();
    for turn in 0..2 {
        texts.push(director.text(text(&real, turn))?);
    }
    director.write(&texts[0])?;
    director.start()?;
    take_turn(&mut director, &real, 0)?;
    let client = &rig.clients()[0];
    wait_for("the first answer", PATIENCE, || {
        client.request(Protocol::Tcp, target(), TIMEOUT).ok()
    })?;
    let load = LoadConfig {
        timeout: TIMEOUT,
        ..LoadConfig::default()
    };
    let load = Load::start(client, &[target()], load)?;
    let (stop, lost) = (AtomicBool::new(false), AtomicUsize::new(0));
    let took = thread::scope(|scope| -> Result<Duration> {
        for _ in 0..LONG {
            scope.spawn(|| converse(client, &stop, &lost));
        }
        let took = reloads(&mut director, &real, &texts, &load);
        stop.store(true, Ordering::Relaxed);
        took
    })?;
    let report = load.stop();
    let is_reset = |error: &RequestError| *error == RequestError::Refused;
    let reset = report.failures.iter().filter(|one| is_reset(&one.error));
    Ok(Traffic {
        requests: report.requests,
        failed: report.failures.len(),
        reset: reset.count(),
        lost: lost.into_inner(),
        reload: took / RELOADS,
    })
}

fn reloads(
    director: &mut Director<'_>,
    real: &[&Host],
    texts: &[String],
    load: &Load,
) -> Result<Duration> {
    let mut took = Duration::ZERO;
    for turn in 1..=RELOADS {
        let since = Instant::now();
        director.write(&texts[turn as usize % 2])?;
        director.reload()?;
        take_turn(director, real, turn)?;
        took += since.elapsed();
        let enough = load.answered() + ANSWERS;
        wait_for("traffic", PATIENCE, || {
            (load.answered() >= enough).then_some(())
        })?;
    }
    Ok(took)
}

/// Waits until the kernel has what the file of a turn says.
fn take_turn(director: &mut Director<'_>, real: &[&Host], turn: u32) -> Result<()> {
    let key = VirtualServerKey::new(portolan_model::Protocol::Tcp, VIP.into(), PORT);
    let address = |host: &Host| SocketAddr::new(IpAddr::V4(host.v4()), PORT);
    let has_third = |weight: Option<u32>| weight.is_some_and(|weight| weight > 0);
    wait_for("the reload", PATIENCE, || {
        let first = director.weight(&key, address(real[0]));
        let third = director.weight(&key, address(real[2]));
        (first == Some(first_weight(turn)) && has_third(third) == turn.is_multiple_of(2))
            .then_some(())
    })
}

fn first_weight(turn: u32) -> u32 {
    1 + turn % 2
}

/// The `keepalived.conf` of a turn.
fn text(real: &[&Host], turn: u32) -> String {
    let weights = [first_weight(turn), 1, 1];
    let count = if turn.is_multiple_of(2) { 3 } else { 2 };
    let servers = real.iter().zip(weights).take(count).map(|(host, weight)| {
        format!(
            "  real_server {} {PORT} {{\n    weight {weight}\n    TCP_CHECK {{\n      connect_timeout 2\n    }}\n  }}\n",
            host.v4()
        )
    });
    let servers: String = servers.collect();
    format!(
        "virtual_server {VIP} {PORT} {{\n  lvs_sched wrr\n  lvs_method DR\n  protocol TCP\n  delay_loop 2\n{servers}}}\n"
    )
}

/// A real server with the virtual address, which it tells nobody of.
fn serve(host: &Host) -> Result<EchoServer> {
    let quiet = [
        ("ipv4/conf/all/arp_ignore", "1"),
        ("ipv4/conf/all/arp_announce", "2"),
    ];
    host.namespace().sysctl(&quiet)?;
    let address = format!("{VIP}/32");
    host.exec(&["ip", "address", "add", &address, "dev", "lo"])?;
    host.serve(Protocol::Tcp, PORT)
}

fn target() -> SocketAddr {
    SocketAddr::new(VIP.into(), PORT)
}

/// Asks over one connection after the other, each as long as it answers.
fn converse(client: &Host, stop: &AtomicBool, lost: &AtomicUsize) {
    let mut connection: Option<Connection> = None;
    while !stop.load(Ordering::Relaxed) {
        let Some(open) = &mut connection else {
            connection = client.connect(Protocol::Tcp, target(), TIMEOUT).ok();
            continue;
        };
        if open.ask().is_err() {
            lost.fetch_add(1, Ordering::Relaxed);
            connection = None;
        }
        // One question at a time leaves the processor to the short connections.
        thread::park_timeout(Duration::from_millis(50));
    }
}
