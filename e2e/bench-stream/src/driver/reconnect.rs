//! All agents come back at once: to the same controller, or to another.

use anyhow::{Result, ensure};

use super::child::Client;
use super::delta::{advance, leave};
use super::figures::{at_least, at_most, median, remark, say};
use super::verify::Verifier;
use super::{Bench, Intake, Running};
use crate::server::Kind;
use crate::words::{Connect, Order};

/// With so many changed Services resuming must be this much cheaper than a whole table.
const SOME: u32 = 100;
const SAME: Goals = Goals {
    cpu: 4.0,
    bytes: 50.0,
};
const OTHER: Goals = Goals {
    cpu: 2.5,
    bytes: 6.0,
};

/// What is compared is measured so often, the one and the other in turn: with so many changes as
/// the goals are for, and with others.
const ROUNDS: usize = 5;
const ROUNDS_OF_OTHERS: usize = 3;

/// However many have changed, it must not cost more than this of a whole table.
const NEVER_MORE: f64 = 1.1;

/// How much cheaper.
struct Goals {
    cpu: f64,
    bytes: f64,
}

pub(super) fn run(bench: &Bench<'_>) -> Result<()> {
    let mut running = bench.serve(Kind::Ours, &[])?;
    let mut client = bench.agents()?;
    // A controller that meets agents for the first time pays for what is built once; so a first
    // storm is what another controller is compared with, and a later one what the same one is.
    let how = running.fresh(bench.args.many);
    let first = running.take_in(&mut client, how.clone())?;
    let full = fresh(&mut running, &mut client, &how)?;
    client.ask(&Order::Keep)?;
    leave(&mut running, &mut client, 0)?;
    say("stream_reconnect_first_full_cpu", first.cpu_us, "us/agent");
    say("stream_reconnect_full_cpu", full.cpu_us, "us/agent");
    say("stream_reconnect_full_bytes", full.down, "bytes/agent");
    same(bench, &mut running, &mut client)?;
    other(bench, &mut client)
}

/// All agents leave, and come back with nothing.
fn fresh(running: &mut Running, client: &mut Client, how: &Connect) -> Result<Intake> {
    leave(running, client, 0)?;
    running.take_in(client, how.clone())
}

/// To the controller that sent them what they have.
fn same(bench: &Bench<'_>, running: &mut Running, client: &mut Client) -> Result<()> {
    let mut world = bench.world.clone();
    let mut verifier = Verifier::start(&world, None)?;
    verifier.lead_to(running.port);
    verifier.check(&world, 1)?;
    let mut most = 0.0_f64;
    let mut revision = 1;
    for &changed in &bench.args.sweep {
        let (mut fulls, mut intakes) = (Vec::new(), Vec::new());
        for _ in 0..rounds(changed) {
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
            intakes.push(intake);
            verifier.lead_to(running.port);
            verifier.check(&world, revision)?;
            leave(running, client, 1)?;
            verifier.cut_off();
            let how = running.fresh(bench.args.many);
            fulls.push(fresh(running, client, &how)?);
            leave(running, client, 0)?;
            verifier.lead_to(running.port);
            verifier.check(&world, revision)?;
        }
        most = most.max(judge("resume", changed, &intakes, &fulls, &SAME)?);
    }
    remark("checked: the table after each resumption");
    at_most("stream_resume_most_to_full", most, "x", NEVER_MORE);
    Ok(())
}

/// To another one, that has the same Services but for some.
fn other(bench: &Bench<'_>, client: &mut Client) -> Result<()> {
    let mut most = 0.0_f64;
    for &changed in &bench.args.sweep {
        let (mut fulls, mut intakes) = (Vec::new(), Vec::new());
        for _ in 0..rounds(changed) {
            let mut first = bench.serve(Kind::Ours, &[])?;
            let how = first.fresh(bench.args.many);
            fulls.push(first.take_in(client, how)?);
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
            intakes.push(second.take_in(client, how)?);
            verifier.lead_to(second.port);
            let mut world = bench.world.clone();
            advance(&mut world, changed);
            verifier.check(&world, 1)?;
            client.ask(&Order::Leave)?;
        }
        most = most.max(judge("other", changed, &intakes, &fulls, &OTHER)?);
        let asked = intakes
            .iter()
            .map(|intake| f64::from(intake.connected.asked));
        say(
            &format!("stream_other_{changed}_asked"),
            median(asked)?,
            "agents",
        );
    }
    remark("checked: the table from each other controller");
    at_most("stream_other_most_to_full", most, "x", NEVER_MORE);
    Ok(())
}

/// How often to measure with so many changes.
fn rounds(changed: u32) -> usize {
    match changed {
        SOME => ROUNDS,
        _ => ROUNDS_OF_OTHERS,
    }
}

/// Says what it cost to take agents in, beside a whole table; and how much more that is than that.
fn judge(
    name: &str,
    changed: u32,
    intakes: &[Intake],
    fulls: &[Intake],
    goals: &Goals,
) -> Result<f64> {
    let of = format!("stream_{name}_{changed}");
    let middle = |of: &[Intake], figure: fn(&Intake) -> f64| median(of.iter().map(figure));
    let (cpu, full) = (middle(intakes, CPU)?, middle(fulls, CPU)?);
    say(&format!("{of}_cpu"), cpu, "us/agent");
    let (bytes, full_bytes) = (middle(intakes, DOWN)?, middle(fulls, DOWN)?);
    say(&format!("{of}_bytes"), bytes, "bytes/agent");
    say(
        &format!("{of}_bytes_up"),
        middle(intakes, |intake| intake.up)?,
        "bytes/agent",
    );
    if changed == SOME {
        say(&format!("{of}_full_cpu"), full, "us/agent");
        let less = full / cpu;
        at_least(&format!("{of}_cpu_full_to_this"), less, "x", goals.cpu);
        let less = full_bytes / bytes;
        at_least(&format!("{of}_bytes_full_to_this"), less, "x", goals.bytes);
    }
    Ok(cpu / full)
}

const CPU: fn(&Intake) -> f64 = |intake| intake.cpu_us;
const DOWN: fn(&Intake) -> f64 = |intake| intake.down;
