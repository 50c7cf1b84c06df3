//! What one change costs: to few agents and to many, beside a loop that writes as many bytes to
//! as many sockets and does nothing else.

use anyhow::Result;
use portolan_select::TableDelta;

use super::child::Client;
use super::figures::{at_most, median, quantile, remark, say};
use super::verify::Verifier;
use super::{Bench, Running};
use crate::server::Kind;
use crate::words::Connect;
use crate::world::World;

/// So many changes go first and are not counted.
pub(super) const WARM_UP: u32 = 10;

/// What is compared is measured in so many turns, the one and the other.
const TURNS: u32 = 5;

/// Memory per stream, in KiB, at most.
const KIB: f64 = 40.0;

/// What single changes cost.
pub(super) struct Changes {
    /// Per agent and change, in microseconds.
    pub(super) cpu_us: f64,
    /// By all agents, in bytes.
    pub(super) received: u64,
    /// Until the last agent had it, sorted, in nanoseconds.
    pub(super) last_ns: Vec<u64>,
    /// The last one.
    pub(super) revision: u64,
}

/// How much more than the bare loop it may cost.
struct Goals {
    cpu: f64,
    /// Until the last agent has it: half of the changes, and 99 of 100.
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
    // The same bytes as one change of ours.
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

/// Our server, and agents of it.
struct Ours {
    /// Ends before its server, whose end it would call an error.
    client: Client,
    running: Running,
    verifier: Verifier,
    /// As the server's must be.
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

    /// Whether the whole agent has what it should.
    fn check(&mut self) -> Result<()> {
        self.verifier.check(&self.world, self.revision)?;
        remark(&format!("checked: the table of revision {}", self.revision));
        Ok(())
    }

    /// The same once more with agents that say what they have; no goal holds for that.
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

/// The bare server, and what reads from it.
struct Bare {
    /// Ends before its server.
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

/// What changes cost that were measured in turns.
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

/// Ends the streams of thin agents, and waits until the server has so many others left.
pub(super) fn leave(running: &mut Running, client: &mut Client, others: usize) -> Result<()> {
    client.ask(&crate::words::Order::Leave)?;
    running.server.streams(others)
}

/// Makes changes one by one, each when all agents have the one before.
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

/// Makes the same changes of our own cluster.
pub(super) fn advance(world: &mut World, changes: u32) {
    (0..changes).for_each(|_| {
        world.change(&mut TableDelta::default());
    });
}
