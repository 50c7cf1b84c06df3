// SPDX-License-Identifier: Apache-2.0

//! Reconnection of all agents at once: to the same controller, or to another.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::child::Client;
use super::delta::{advance, leave};
use super::figures::{at_least, at_most, median, remark, say};
use super::verify::Verifier;
use super::{Bench, Intake, Running};
use crate::server::Kind;
use crate::words::{Connect, Order};

/// The number of changed Services that the goals apply to.
const SOME: u32 = 100;
const SAME: Goals = Goals {
    cpu: 4.0,
    bytes: 50.0,
};
const OTHER: Goals = Goals {
    cpu: 2.5,
    bytes: 6.0,
};

/// Rounds of resumptions and whole tables, measured alternately: with the number of changes that
/// the goals apply to, and with other numbers. At the same controller these are rounds of each of
/// several servers, as the memory layout differs between processes.
const ROUNDS: usize = 3;
const ROUNDS_OF_OTHERS: usize = 2;
const SERVERS: usize = 3;

/// The rounds at another controller, where each round has servers of its own.
const ROUNDS_ELSEWHERE: usize = 5;
const ROUNDS_OF_OTHERS_ELSEWHERE: usize = 3;

/// The highest permitted ratio of a resumption's cost to a whole table's, for any number of
/// changes.
const NEVER_MORE: f64 = 1.1;

/// The lowest permitted ratios of a whole table's cost to a resumption's.
struct Goals {
    cpu: f64,
    bytes: f64,
}

/// The costs of accepting agents that resume, and agents without a table, by the number of changed
/// Services.
#[derive(Default)]
struct Measured(BTreeMap<u32, (Vec<Intake>, Vec<Intake>)>);

pub(super) fn run(bench: &Bench<'_>) -> Result<()> {
    let mut client = bench.agents()?;
    let (mut measured, mut firsts, mut fulls) = (Measured::default(), Vec::new(), Vec::new());
    for _ in 0..SERVERS {
        let mut running = bench.serve(Kind::Ours, &[])?;
        // A controller pays for state built once when agents first connect. The first storm is
        // therefore the reference for another controller, and a later one for the same controller.
        let how = running.fresh(bench.args.many);
        firsts.push(running.take_in(&mut client, how.clone())?);
        fulls.push(fresh(&mut running, &mut client, &how)?);
        client.ask(&Order::Keep)?;
        leave(&mut running, &mut client, 0)?;
        same(bench, &mut running, &mut client, &mut measured)?;
        client.ask(&Order::Leave)?;
    }
    say(
        "stream_reconnect_first_full_cpu",
        middle(&firsts, CPU)?,
        "us/agent",
    );
    say(
        "stream_reconnect_full_cpu",
        middle(&fulls, CPU)?,
        "us/agent",
    );
    say(
        "stream_reconnect_full_bytes",
        middle(&fulls, DOWN)?,
        "bytes/agent",
    );
    let most = measured.judge("resume", &SAME)?;
    remark("checked: the table after each resumption");
    at_most("stream_resume_most_to_full", most, "x", NEVER_MORE);
    other(bench, &mut client)
}

/// Disconnects all agents, and connects them again without a table.
fn fresh(running: &mut Running, client: &mut Client, how: &Connect) -> Result<Intake> {
    leave(running, client, 0)?;
    running.take_in(client, how.clone())
}

/// Agents resume at the controller that sent them their table.
fn same(
    bench: &Bench<'_>,
    running: &mut Running,
    client: &mut Client,
    measured: &mut Measured,
) -> Result<()> {
    let mut world = bench.world.clone();
    let mut verifier = Verifier::start(&world, None)?;
    verifier.lead_to(running.port);
    verifier.check(&world, 1)?;
    let mut revision = 1;
    for &changed in &bench.args.sweep {
        for _ in 0..rounds(changed, ROUNDS, ROUNDS_OF_OTHERS) {
            verifier.cut_off();
            running.server.streams(0)?;
            for _ in 0..changed / SOME {
                revision = running.server.change(SOME)?.revision;
            }
            advance(&mut world, changed / SOME * SOME);
            let how = Connect {
                resume: true,
                ..running.fresh(bench.args.many)
            };
            let intake = running.take_in(client, how)?;
            ensure!(
                intake.connected.revision == revision,
                "not all came to the head"
            );
            verifier.lead_to(running.port);
            verifier.check(&world, revision)?;
            leave(running, client, 1)?;
            verifier.cut_off();
            let how = running.fresh(bench.args.many);
            let full = fresh(running, client, &how)?;
            measured.add(changed, intake, full);
            leave(running, client, 0)?;
            verifier.lead_to(running.port);
            verifier.check(&world, revision)?;
        }
    }
    Ok(())
}

/// Agents resume at another controller, whose Services differ in `changed` cases.
fn other(bench: &Bench<'_>, client: &mut Client) -> Result<()> {
    let mut measured = Measured::default();
    for &changed in &bench.args.sweep {
        for _ in 0..rounds(changed, ROUNDS_ELSEWHERE, ROUNDS_OF_OTHERS_ELSEWHERE) {
            let mut first = bench.serve(Kind::Ours, &[])?;
            let how = first.fresh(bench.args.many);
            let full = first.take_in(client, how)?;
            leave(&mut first, client, 0)?;
            let mut verifier = Verifier::start(&bench.world, None)?;
            verifier.lead_to(first.port);
            verifier.check(&bench.world, 1)?;
            verifier.cut_off();
            let mut second = bench.serve(Kind::Ours, &[format!("--changes={changed}")])?;
            client.ask(&Order::Restore)?;
            let how = Connect {
                resume: true,
                ..second.fresh(bench.args.many)
            };
            measured.add(changed, second.take_in(client, how)?, full);
            verifier.lead_to(second.port);
            let mut world = bench.world.clone();
            advance(&mut world, changed);
            verifier.check(&world, 1)?;
            client.ask(&Order::Leave)?;
        }
    }
    let most = measured.judge("other", &OTHER)?;
    remark("checked: the table from each other controller");
    at_most("stream_other_most_to_full", most, "x", NEVER_MORE);
    Ok(())
}

/// The number of rounds with `changed` changes.
fn rounds(changed: u32, of_some: usize, of_others: usize) -> usize {
    match changed {
        SOME => of_some,
        _ => of_others,
    }
}

impl Measured {
    fn add(&mut self, changed: u32, resumed: Intake, full: Intake) {
        let (intakes, fulls) = self.0.entry(changed).or_default();
        intakes.push(resumed);
        fulls.push(full);
    }

    /// Prints the cost beside that of a whole table. Returns the highest ratio of the two.
    fn judge(&self, name: &str, goals: &Goals) -> Result<f64> {
        let mut most = 0.0_f64;
        for (&changed, (intakes, fulls)) in &self.0 {
            most = most.max(judge(name, changed, intakes, fulls, goals)?);
        }
        Ok(most)
    }
}

/// Prints the cost beside that of a whole table. Returns the ratio of the two.
fn judge(
    name: &str,
    changed: u32,
    intakes: &[Intake],
    fulls: &[Intake],
    goals: &Goals,
) -> Result<f64> {
    let of = format!("stream_{name}_{changed}");
    let (cpu, full) = (middle(intakes, CPU)?, middle(fulls, CPU)?);
    say(&format!("{of}_cpu"), cpu, "us/agent");
    let (bytes, full_bytes) = (middle(intakes, DOWN)?, middle(fulls, DOWN)?);
    say(&format!("{of}_bytes"), bytes, "bytes/agent");
    let up = middle(intakes, |intake| intake.up)?;
    say(&format!("{of}_bytes_up"), up, "bytes/agent");
    let asked = middle(intakes, |intake| f64::from(intake.connected.asked))?;
    say(&format!("{of}_asked"), asked, "agents");
    if changed == SOME {
        say(&format!("{of}_full_cpu"), full, "us/agent");
        let less = full / cpu;
        at_least(&format!("{of}_cpu_full_to_this"), less, "x", goals.cpu);
        let less = full_bytes / bytes;
        at_least(&format!("{of}_bytes_full_to_this"), less, "x", goals.bytes);
    }
    Ok(cpu / full)
}

/// The median of a figure.
fn middle(of: &[Intake], figure: fn(&Intake) -> f64) -> Result<f64> {
    median(of.iter().map(figure))
}

const CPU: fn(&Intake) -> f64 = |intake| intake.cpu_us;
const DOWN: fn(&Intake) -> f64 = |intake| intake.down;
