// SPDX-License-Identifier: Apache-2.0

//! Start, cost of checks, and one change of a weight.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portolan_e2e::rig::{Host, Rig, RigConfig};
use portolan_e2e::wait::{wait_for, wait_with_pauses};
use portolan_netlink::ipvs::{Ipvs, Request, State};

use crate::busy::Spinners;
use crate::director::{Director, Program};
use crate::lateness::Lateness;
use crate::setup::{Load, REAL_PORT, REAL_SERVERS};
use crate::{PATIENCE, TOO_LONG};

/// Rounds of checks in which their lateness is measured.
const ROUNDS: u64 = 3;
/// Rounds of checks in which processor time is measured.
const COSTLY_ROUNDS: u64 = 4;
/// Interval at which connections are taken.
const TAKEN: Duration = Duration::from_millis(100);

/// A machine whose real servers are all its own addresses, with one listener.
fn machine() -> Result<Rig> {
    let rig = Rig::new(RigConfig {
        nodes: 1,
        clients: 1,
    })?;
    rig.node(0)
        .exec(&["ip", "route", "add", "local", REAL_SERVERS, "dev", "lo"])?;
    Ok(rig)
}

/// The time from the start of a program until the kernel has everything.
pub(crate) fn start(program: Program, load: Load) -> Result<Duration> {
    let rig = machine()?;
    let mut director = Director::new(program, rig.node(0))?;
    let text = director.text(load.keepalived(1))?;
    director.write(&text)?;
    let begun = Instant::now();
    director.start()?;
    director.programmed(load, begun)
}

/// Times of the same servers without a director.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restored {
    /// `ipvsadm -R`, which does nothing else.
    pub(crate) ipvsadm: Duration,
    /// The kernel's own: one batch of messages, by a program that has started and knows what to send.
    pub(crate) kernel: Duration,
}

/// Programs the servers by `ipvsadm -R`, reads them, and programs what was read once more.
pub(crate) fn restored(load: Load) -> Result<Restored> {
    let rig = machine()?;
    let text = load.ipvsadm();
    let begun = Instant::now();
    let namespace = rig.node(0).namespace();
    namespace.exec_with_input(&["ipvsadm", "-R"], &text)?;
    let ipvsadm = begun.elapsed();
    let requests = requests(&namespace.run(|| -> Result<_> { Ok(Ipvs::open()?.dump()?) })??);
    let count = u32::try_from(requests.len())?;
    let expected = u32::from(load.services) + load.total();
    ensure!(count == expected, "{count} servers are there");
    namespace.exec(&["ipvsadm", "-C"])?;
    let kernel = namespace.run(|| -> Result<_> {
        let mut ipvs = Ipvs::open()?;
        let begun = Instant::now();
        let refused = ipvs.apply(&requests)?;
        let took = begun.elapsed();
        ensure!(refused.is_empty(), "{refused:?}");
        Ok(took)
    })??;
    Ok(Restored { ipvsadm, kernel })
}

/// The requests that add all servers.
fn requests(state: &State) -> Vec<Request> {
    let mut requests = Vec::new();
    for (&key, server) in &state.virtual_servers {
        let config = Arc::clone(&server.config);
        requests.push(Request::AddService { key, config });
        let servers = server.real_servers.iter();
        requests.extend(servers.map(|(real_server, config)| Request::AddDest {
            key,
            real_server,
            config: *config,
        }));
    }
    requests
}

/// Figures of a program with checks.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) start: Duration,
    /// Checks in a second.
    pub(crate) rate: f64,
    /// Resident memory, in MiB.
    pub(crate) memory: f64,
    /// The time that 99 of 100 checks were late at most, in milliseconds; where the program tells.
    pub(crate) late: Option<f64>,
    /// The time of a change of one weight.
    pub(crate) weight: Change,
}

/// The time of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Until the kernel had it.
    Took(Duration),
    /// The kernel did not have it after this time.
    NotWithin(Duration),
}

/// Times of both sides of a bare check, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bare {
    /// A connection that is made and aborted by four system calls, without a timeout, a state or a log.
    pub(crate) check: f64,
    /// Taking a connection.
    pub(crate) accept: f64,
}

/// Makes a connection to each real server, all that a listener's queue holds, and takes them.
pub(crate) fn bare(load: Load) -> Result<Bare> {
    let rig = machine()?;
    let listener = bind(rig.node(0))?;
    let connect_to_all = || -> Result<Duration> {
        let before = Instant::now();
        for service in 0..load.services {
            for number in 0..load.backends {
                let stream = TcpStream::connect(load.real_server(service, number))?;
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
            }
        }
        Ok(before.elapsed())
    };
    let connected = rig.node(0).namespace().run(connect_to_all)??;
    let before = Instant::now();
    let mut taken = 0;
    while listener.accept().is_ok() {
        taken += 1;
    }
    let accepted = before.elapsed();
    ensure!(
        taken == load.total(),
        "{taken} of {} connections",
        load.total()
    );
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(load.total());
    Ok(Bare {
        check: each(connected),
        accept: each(accepted),
    })
}

/// The processor time that a machine uses for each check of a program, in microseconds, less that of the other side.
pub(crate) fn cost(program: Program, load: Load, bare: Bare) -> Result<f64> {
    let rig = machine()?;
    let answered = listen(rig.node(0))?;
    let spinners = Spinners::start()?;
    let before = spinners.alone()?;
    let mut director = Director::new(program, rig.node(0))?;
    let text = director.text(load.keepalived(1))?;
    director.write(&text)?;
    director.start()?;
    director.programmed(load, Instant::now())?;
    let total = u64::from(load.total());
    // The first checks of all backends are spread, and not measured.
    let begun = answered.wait_for(total)?;
    let sample = spinners.sample();
    let checked = answered.wait_for(total * COSTLY_ROUNDS)? - begun;
    let count = spinners.since(sample);
    drop(director);
    let used = count.used([before, spinners.alone()?]);
    Ok(used.as_secs_f64() * 1e6 / checked as f64 - bare.accept)
}

/// Starts a program, and has it check all backends and change a weight, some times.
pub(crate) fn run(program: Program, load: Load, changes: u32) -> Result<Checked> {
    let rig = machine()?;
    let answered = listen(rig.node(0))?;
    let mut director = Director::new(program, rig.node(0))?;
    let texts = [1, 2].map(|weight| director.text(load.keepalived(weight)));
    let [first, second] = texts;
    let texts = [first?, second?];
    director.write(&texts[0])?;
    let begun = Instant::now();
    director.start()?;
    let start = director.programmed(load, begun)?;

    // The first checks of all backends are spread, and not measured.
    let total = u64::from(load.total());
    let before = answered.wait_for(total)?;
    let since = Instant::now();
    let lateness = Lateness::read(program, &director)?;
    let checked = answered.wait_for(total * ROUNDS)? - before;
    let took = since.elapsed();
    let late = Lateness::read(program, &director)?;
    let late = late.zip(lateness).map(|(after, before)| after.p99(&before));
    let mut times = Vec::new();
    for turn in 1..=changes {
        let weight = 1 + turn % 2;
        times.push(change(&mut director, load, &texts, weight)?);
    }
    Ok(Checked {
        start,
        rate: checked as f64 / took.as_secs_f64(),
        memory: director.memory()?,
        late,
        weight: median(times).context("no change")?,
    })
}

/// Changes the weight of the last real server, and waits until the kernel has it.
fn change(
    director: &mut Director<'_>,
    load: Load,
    texts: &[String],
    weight: u32,
) -> Result<Change> {
    let last = load.services - 1;
    let (key, real) = (Load::key(last), load.real_server(last, load.backends - 1));
    let text = &texts[weight as usize - 1];
    let since = Instant::now();
    director.write(text)?;
    director.reload()?;
    let there = wait_for("the weight", TOO_LONG, || {
        (director.weight(&key, real) == Some(weight)).then(|| since.elapsed())
    });
    Ok(there.map_or(Change::NotWithin(TOO_LONG), Change::Took))
}

/// The median of the times; not within a time if one of them was not.
fn median(times: Vec<Change>) -> Option<Change> {
    let mut took = Vec::new();
    for time in times {
        match time {
            Change::Took(time) => took.push(time),
            Change::NotWithin(_) => return Some(time),
        }
    }
    took.sort();
    took.get(took.len() / 2).copied().map(Change::Took)
}

/// A count of connections.
#[derive(Debug)]
struct Answered(Arc<AtomicU64>);

impl Answered {
    /// Waits for this number of connections, and returns the count.
    fn wait_for(&self, more: u64) -> Result<u64> {
        let enough = self.0.load(Ordering::Relaxed) + more;
        wait_with_pauses("checks", PATIENCE, TAKEN, || {
            let now = self.0.load(Ordering::Relaxed);
            (now >= enough).then_some(now)
        })
    }
}

/// A listener at all addresses of a machine, whose queue holds 4,096 connections. It does not wait for any.
fn bind(host: &Host) -> Result<TcpListener> {
    let bind = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, REAL_PORT));
    let listener = host.namespace().run(bind)??;
    // A second call sets the length of the queue.
    rustix::net::listen(&listener, 4096)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Takes connections to all addresses of a machine, and counts them.
fn listen(host: &Host) -> Result<Answered> {
    let listener = bind(host)?;
    let answered = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&answered);
    // It ends with the process: nothing closes the listener. It takes all that wait, so that it wakes up rarely.
    thread::spawn(move || {
        loop {
            while listener.accept().is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
            thread::park_timeout(TAKEN);
        }
    });
    Ok(Answered(answered))
}
