// SPDX-License-Identifier: Apache-2.0

//! The agent alone beside keepalived: both get the same load balancers, one after the other, in network namespaces
//! of their own. Our files are what our importer makes of keepalived's.
//!
//! `make bench-director` runs it in a guest. `PORTOLAN_KEEPALIVED` names keepalived,
//! `PORTOLAN_KEEPALIVED_LIBRARIES` the directory of its libraries. `PORTOLAN_BENCH_WAYS` is a list of parts.
#![allow(
    clippy::cast_precision_loss,
    clippy::print_stdout,
    missing_docs,
    reason = "a benchmark"
)]

mod busy;
mod checked;
mod director;
mod lateness;
mod setup;
mod traffic;

use std::time::Duration;

use anyhow::{Context as _, Result};
use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::lane::{Need, provides};

use checked::{Change, Checked};
use director::Program;
use setup::Load;

/// The deadline of things that must happen.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest wait for one weight: keepalived needs minutes at the largest size.
const TOO_LONG: Duration = Duration::from_secs(240);

const PLAIN: Load = Load {
    services: 500,
    backends: 10,
    period: 0,
};
const CHECKED: Load = Load { period: 5, ..PLAIN };
/// Almost as many checks as the agent makes in a second. What a machine does beside them changes by half a hundredth of
/// its time.
const COSTLY: Load = Load {
    backends: 16,
    ..CHECKED
};
/// Twice the checks, half as often: the one processor of a guest has to answer them too.
const LARGE: Load = Load {
    services: 1_000,
    backends: 10,
    period: 10,
};

/// As many connections as wait for a listener.
const BARE: Load = Load {
    backends: 8,
    ..PLAIN
};

/// Starts of each program that are measured.
const STARTS: usize = 3;
/// Measurements of the cost of checks of each program, in turn.
const COSTS: usize = 3;

fn main() -> Result<()> {
    if !provides("bench-director", &[Need::Root, Need::Ipvs]) {
        return Ok(());
    }
    let wanted = std::env::var("PORTOLAN_BENCH_WAYS").unwrap_or_default();
    let is_wanted = |way: &str| wanted.is_empty() || wanted.split(',').any(|wanted| wanted == way);
    if is_wanted("start") {
        starts()?;
    }
    if is_wanted("traffic") {
        reloads()?;
    }
    if is_wanted("checked") {
        checks()?;
    }
    if is_wanted("large") {
        large()?;
    }
    Ok(())
}

/// Starts without checks, in turn. The first turn, in which the guest loads modules and programs, does not count.
fn starts() -> Result<()> {
    let mut turns = [const { Vec::new() }; 4];
    for turn in 0..=STARTS {
        let theirs = checked::start(Program::Keepalived, PLAIN)?;
        let ours = checked::start(Program::Portolan, PLAIN)?;
        let bare = checked::restored(PLAIN)?;
        let times = [theirs, ours, bare.ipvsadm, bare.kernel];
        if turn > 0 {
            for (all, time) in turns.iter_mut().zip(times) {
                all.push(time);
            }
        }
    }
    let [theirs, ours, ipvsadm, kernel] = turns.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    });
    milliseconds("ipvsadm_start", ipvsadm);
    milliseconds("kernel_start", kernel);
    milliseconds("keepalived_start", theirs);
    milliseconds("director_start", ours);
    ratio("director_start_ratio", theirs, ours, Some(5.0));
    Ok(())
}

fn checks() -> Result<()> {
    costs()?;
    let theirs = checked::run(Program::Keepalived, CHECKED, 3)?;
    say(Program::Keepalived, CHECKED, &theirs);
    let ours = checked::run(Program::Portolan, CHECKED, 5)?;
    say(Program::Portolan, CHECKED, &ours);
    ratio(
        "director_start_checked_ratio",
        theirs.start,
        ours.start,
        None,
    );
    let late = ours.late.context("no lateness")?;
    figure(
        "director_checks_late_p99",
        late,
        "ms",
        Some(Goal::AtMost(100.0)),
    );
    changes(CHECKED, &theirs, &ours, 30.0);
    Ok(())
}

/// Processor time of a check.
fn costs() -> Result<()> {
    let bare = checked::bare(BARE)?;
    figure("bare_check_cost", bare.check, "us", None);
    figure("accept_cost", bare.accept, "us", None);
    let [mut theirs, mut ours] = [Vec::new(), Vec::new()];
    for _ in 0..COSTS {
        theirs.push(checked::cost(Program::Keepalived, COSTLY, bare)?);
        ours.push(checked::cost(Program::Portolan, COSTLY, bare)?);
    }
    let [theirs, ours] = [theirs, ours].map(|mut costs| {
        costs.sort_by(f64::total_cmp);
        costs.get(costs.len() / 2).copied()
    });
    let (theirs, ours) = theirs.zip(ours).context("no cost")?;
    figure("keepalived_check_cost", theirs, "us", None);
    figure("director_check_cost", ours, "us", None);
    let goal = Some(Goal::AtLeast(2.0));
    figure("director_check_cost_ratio", theirs / ours, "times", goal);
    // Each of 5,000 backends every 5 s.
    let load = f64::from(CHECKED.total()) / f64::from(CHECKED.period) * ours;
    let goal = Some(Goal::AtMost(50.0));
    figure("director_checks_cpu", load / 1e4, "percent", goal);
    Ok(())
}

fn large() -> Result<()> {
    let ours = checked::run(Program::Portolan, LARGE, 3)?;
    say(Program::Portolan, LARGE, &ours);
    let theirs = checked::run(Program::Keepalived, LARGE, 1)?;
    say(Program::Keepalived, LARGE, &theirs);
    changes(LARGE, &theirs, &ours, 300.0);
    Ok(())
}

/// Prints the figures of a program.
fn say(program: Program, load: Load, of: &Checked) {
    let (name, checks) = (program.name(), load.total());
    let figure = |what: &str, value, unit| {
        figure(&format!("{name}_{what}_{checks}"), value, unit, None);
    };
    figure("start_checked", of.start.as_secs_f64() * 1e3, "ms");
    figure("check_rate", of.rate, "checks/s");
    figure("memory", of.memory, "MiB");
    match of.weight {
        Change::Took(time) => figure("weight", time.as_secs_f64() * 1e3, "ms"),
        Change::NotWithin(time) => {
            println!("{name}: a weight among {checks} checks was not in the kernel after {time:?}");
        }
    }
}

/// Prints the ratio of the times of a change. One that did not end has at least the time that it was waited for.
fn changes(load: Load, theirs: &Checked, ours: &Checked, goal: f64) {
    let name = format!("director_weight_ratio_{}", load.total());
    match (theirs.weight, ours.weight) {
        (_, Change::NotWithin(_)) => figure(&name, 0.0, "times", Some(Goal::AtLeast(goal))),
        (Change::Took(theirs), Change::Took(ours)) => ratio(&name, theirs, ours, Some(goal)),
        (Change::NotWithin(theirs), Change::Took(ours)) => {
            println!("{name} is a lower bound: keepalived had not ended");
            ratio(&name, theirs, ours, Some(goal));
        }
    }
}

fn reloads() -> Result<()> {
    for program in Program::ALL {
        let of = traffic::run(program)?;
        let name = program.name();
        let goal = (program == Program::Portolan).then_some(Goal::AtMost(0.0));
        let figure = |what: &str, value: usize, unit, goal| {
            figure(&format!("{name}_reload_{what}"), value as f64, unit, goal);
        };
        println!("{name}: {} requests during the reloads", of.requests);
        milliseconds(&format!("{name}_reload"), of.reload);
        figure("failed", of.failed, "requests", goal);
        figure("reset", of.reset, "requests", goal);
        figure("lost", of.lost, "connections", goal);
    }
    Ok(())
}

fn milliseconds(name: &str, time: Duration) {
    figure(name, time.as_secs_f64() * 1e3, "ms", None);
}

fn ratio(name: &str, theirs: Duration, ours: Duration, goal: Option<f64>) {
    let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
    figure(name, ratio, "times", goal.map(Goal::AtLeast));
}
