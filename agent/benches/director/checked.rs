// SPDX-License-Identifier: Apache-2.0

//! Start, cost of checks, and one change of a weight.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use portolan_e2e::rig::{Host, Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use rustix::time::{ClockId, clock_gettime};

use crate::director::{Director, Program};
use crate::lateness::Lateness;
use crate::setup::{Load, REAL_PORT, REAL_SERVERS};
use crate::{PATIENCE, TOO_LONG};

/// Rounds of checks during which processor time is measured.
const ROUNDS: u64 = 3;

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

/// Figures of a program with checks.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) start: Duration,
    /// Checks in a second.
    pub(crate) rate: f64,
    /// Processor time of a second.
    pub(crate) cores: f64,
    /// Processor time of a check, in microseconds.
    pub(crate) each: f64,
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

/// Processor time of a bare check in microseconds: a connection that is made and aborted by four system calls, without
/// a timeout, a state or a log.
pub(crate) fn bare(load: Load) -> Result<f64> {
    let rig = machine()?;
    let _answered = listen(rig.node(0))?;
    let connect_to_all = || -> Result<Duration> {
        let before = clock_gettime(ClockId::ThreadCPUTime);
        for service in 0..load.services {
            for number in 0..load.backends {
                let stream = TcpStream::connect(load.real_server(service, number))?;
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
            }
        }
        Ok((clock_gettime(ClockId::ThreadCPUTime) - before).try_into()?)
    };
    let time = rig.node(0).namespace().run(connect_to_all)??;
    Ok(time.as_secs_f64() * 1e6 / f64::from(load.total()))
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
    let checks = |more: u64| -> Result<u64> {
        let enough = answered.load(Ordering::Relaxed) + more;
        wait_for("checks", PATIENCE, || {
            let now = answered.load(Ordering::Relaxed);
            (now >= enough).then_some(now)
        })
    };
    let total = u64::from(load.total());
    let before = checks(total)?;
    let (since, cpu) = (Instant::now(), director.cpu()?);
    let lateness = Lateness::read(program, &director)?;
    let checked = checks(total * ROUNDS)? - before;
    let (took, cpu) = (since.elapsed(), director.cpu()? - cpu);
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
        cores: cpu.as_secs_f64() / took.as_secs_f64(),
        each: cpu.as_secs_f64() / checked as f64 * 1e6,
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

/// Takes connections to all addresses of a machine, and counts them.
fn listen(host: &Host) -> Result<Arc<AtomicU64>> {
    let bind = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, REAL_PORT));
    let listener = host.namespace().run(bind)??;
    // A second call sets the length of the queue: all checks may come at once.
    rustix::net::listen(&listener, 4096)?;
    let answered = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&answered);
    // It ends with the process: nothing closes the listener.
    thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(answered)
}
