// SPDX-License-Identifier: Apache-2.0

//! The cost of one change to few agents and to many, compared with a loop that only writes the same
//! number of bytes to the same number of sockets.

use anyhow::Result;
use portolan_select::TableDelta;

use super::child::Client;
use super::figures::{at_most, median, quantile, remark, say};
use super::verify::Verifier;
use super::{Bench, Running};
use crate::server::Kind;
use crate::words::Connect;
use crate::world::World;

/// Changes made before the measured ones, and not counted.
pub(super) const WARM_UP: u32 = 10;

/// The compared servers are measured alternately, this many times each.
const TURNS: u32 = 5;

/// The limit of memory per stream, in KiB.
const KIB: f64 = 40.0;

/// The cost of single changes.
pub(super) struct Changes {
    /// Processor time per agent and change, in microseconds.
    pub(super) cpu_us: f64,
    /// Bytes received by all agents.
    pub(super) received: u64,
    /// Time of each change until the last agent had it, sorted, in nanoseconds.
    pub(super) last_ns: Vec<u64>,
    /// The revision of the last change.
    pub(super) revision: u64,
}

/// The highest permitted ratios to the bare loop.
struct Goals {
    cpu: f64,
    /// Time until the last agent has a change: the median and the 99th percentile.
    last: Option<(f64, f64)>,
}

pub(super) fn run(bench: &Bench<'_>) -> Result<()> {
    let args = bench.args;
    let few = Goals {
        cpu: 2.5,
        last: None,
    };
    compare(bench, "few", args.few, args.changes_few, &few)?;
    let many = Goals {
        cpu: 3.5,
        last: Some((3.5, 6.0)),
    };
    compare(bench, "many", args.many, args.changes_many, &many)
}

fn compare(bench: &Bench<'_>, name: &str, agents: u32, count: u32, goals: &Goals) -> Result<()> {
    let mut ours = Ours::start(bench, agents)?;
    let first = ours.changes(agents, WARM_UP)?;
    // The number of bytes of one change of ours.
    let bytes = u32::try_from(first.received / messages(agents, WARM_UP))?.max(1);
    let mut bare = Bare::start(bench, agents, bytes)?;
    let (mut of_ours, mut of_bare) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        of_ours.push(ours.changes(agents, count / TURNS)?);
        of_bare.push(changes(
            &mut bare.running,
            &mut bare.client,
            agents,
            count / TURNS,
        )?);
    }
    drop(bare);
    ours.check()?;
    let with_acks = ours.with_acks(agents, count / 3)?;
    say(
        &format!("stream_change_{name}_cpu_with_acks"),
        with_acks.cpu_us,
        "us/agent",
    );
    let (ours, bare) = (together(of_ours)?, together(of_bare)?);
    say(
        &format!("stream_change_{name}_bytes"),
        bytes.into(),
        "bytes/agent",
    );
    say(
        &format!("stream_change_{name}_cpu_bare"),
        bare.cpu_us,
        "us/agent",
    );
    say(
        &format!("stream_change_{name}_cpu"),
        ours.cpu_us,
        "us/agent",
    );
    at_most(
        &format!("stream_change_{name}_cpu_to_bare"),
        ours.cpu_us / bare.cpu_us,
        "x",
        goals.cpu,
    );
    let round = quantile(&bare.last_ns, 0.5)?;
    say(
        &format!("stream_change_{name}_round_bare_p50"),
        round / 1e6,
        "ms",
    );
    for (share, goal) in [
        (0.5, goals.last.map(|(half, _)| half)),
        (0.99, goals.last.map(|(_, most)| most)),
    ] {
        let last = quantile(&ours.last_ns, share)?;
        let of = format!("stream_change_{name}_last_p{:.0}", share * 100.0);
        say(&of, last / 1e6, "ms");
        match goal {
            Some(goal) => at_most(&format!("{of}_to_bare"), last / round, "x", goal),
            None => say(&format!("{of}_to_bare"), last / round, "x"),
        }
    }
    Ok(())
}

/// The controller's server and its agents.
struct Ours {
    /// Declared before the server: it must end first, as it reports a closed stream as an error.
    client: Client,
    running: Running,
    verifier: Verifier,
    /// The expected state of the server's cluster.
    world: World,
    revision: u64,
}

impl Ours {
    fn start(bench: &Bench<'_>, agents: u32) -> Result<Self> {
        let mut running = bench.serve(Kind::Ours, &[])?;
        let mut client = bench.agents()?;
        let world = bench.world.clone();
        let mut verifier = Verifier::start(&world, None)?;
        verifier.lead_to(running.port);
        verifier.check(&world, 1)?;
        let how = running.fresh(agents);
        let intake = running.take_in(&mut client, how)?;
        let of = format!("stream_resident_{agents}");
        at_most(&of, intake.kib, "KiB/stream", KIB);
        Ok(Self {
            running,
            client,
            verifier,
            world,
            revision: 1,
        })
    }

    fn changes(&mut self, agents: u32, count: u32) -> Result<Changes> {
        let changes = changes(&mut self.running, &mut self.client, agents, count)?;
        advance(&mut self.world, WARM_UP + count);
        self.revision = changes.revision;
        Ok(changes)
    }

    /// Checks that the whole agent has the expected table.
    fn check(&mut self) -> Result<()> {
        self.verifier.check(&self.world, self.revision)?;
        remark(&format!("checked: the table of revision {}", self.revision));
        Ok(())
    }

    /// Repeats the measurement with agents that acknowledge each Commit. No goal applies.
    fn with_acks(&mut self, agents: u32, count: u32) -> Result<Changes> {
        leave(&mut self.running, &mut self.client, 1)?;
        let how = Connect {
            acks: true,
            ..self.running.fresh(agents)
        };
        self.running.take_in(&mut self.client, how)?;
        self.changes(agents, count)
    }
}

/// The bare server and its clients.
struct Bare {
    /// Declared before the server: it must end first.
    client: Client,
    running: Running,
}

impl Bare {
    fn start(bench: &Bench<'_>, agents: u32, bytes: u32) -> Result<Self> {
        let mut running = bench.serve_bare(bytes)?;
        let mut client = bench.agents()?;
        let how = running.fresh(agents);
        running.take_in(&mut client, how)?;
        Ok(Self { running, client })
    }
}

/// Merges the turns: the median of processor time, the sum of bytes, all delays.
fn together(turns: Vec<Changes>) -> Result<Changes> {
    let cpu_us = median(turns.iter().map(|turn| turn.cpu_us))?;
    let received = turns.iter().map(|turn| turn.received).sum();
    let revision = turns.last().map_or(0, |turn| turn.revision);
    let mut last_ns: Vec<u64> = turns.into_iter().flat_map(|turn| turn.last_ns).collect();
    last_ns.sort_unstable();
    Ok(Changes {
        cpu_us,
        received,
        last_ns,
        revision,
    })
}

/// Closes the streams of the thin agents, and waits until the server has `others` streams left.
pub(super) fn leave(running: &mut Running, client: &mut Client, others: usize) -> Result<()> {
    client.ask(&crate::words::Order::Leave)?;
    running.server.streams(others)
}

/// Makes changes one by one. Each waits until all agents have the one before.
pub(super) fn changes(
    running: &mut Running,
    client: &mut Client,
    agents: u32,
    count: u32,
) -> Result<Changes> {
    let server = &mut running.server;
    let mut received_before = 0;
    for _ in 0..WARM_UP {
        let published = server.change(1)?;
        (_, received_before) = client.reach(published.revision)?;
    }
    let before = server.usage()?;
    let (mut last_ns, mut received, mut revision) = (Vec::new(), 0, 0);
    for _ in 0..count {
        let published = server.change(1)?;
        revision = published.revision;
        let at_ns;
        (at_ns, received) = client.reach(revision)?;
        last_ns.push(at_ns.saturating_sub(published.at_ns));
    }
    let cpu_ns = server.usage()?.cpu_ns - before.cpu_ns;
    last_ns.sort_unstable();
    Ok(Changes {
        cpu_us: cpu_ns as f64 / 1e3 / messages(agents, count) as f64,
        received: received - received_before,
        last_ns,
        revision,
    })
}

fn messages(agents: u32, count: u32) -> u64 {
    u64::from(agents) * u64::from(count)
}

/// Applies the same changes to the driver's own cluster.
pub(super) fn advance(world: &mut World, changes: u32) {
    (0..changes).for_each(|_| {
        world.change(&mut TableDelta::default());
    });
}
