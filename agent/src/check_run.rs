// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent check run`: the checks of files, once, without an agent.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure};
use futures_util::StreamExt as _;
use portolan_health::{Administrative, DynamicWeight, LoadBalancer, Outcome, Word};
use portolan_model::check::Check;
use portolan_model::{NodeKey, NodeTable};
use portolan_probe::{Context, Prober as _, Programs, Target, kind};
use portolan_select::SelectConfig;
use portolan_source::file::Files;
use tokio::time::Instant;

use crate::args::{CheckRunArgs, CheckedName};
use crate::backends::load_balancers;
use crate::check_config::problems;
use crate::director::follow_scripts;
use crate::once::print;
use crate::overview::plain;
use crate::standalone::table_of;

/// Checks that run at one time, at most: as many as programs in an agent.
const CONCURRENCY: usize = 32;

/// Exit code if a check fails.
const FAILS: u8 = 3;

/// Reason why a check with `via: Service` has no result.
const BY_SERVICE: &str =
    "via Service: only the running agent has the virtual server for it: see status";

/// A check of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Job {
    /// `NAMESPACE/NAME/ADDRESS:PORT`.
    backend: String,
    task: Task,
}

/// Task for a backend.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Task {
    /// Nothing: it has no checks.
    Nothing,
    /// A probe.
    Probe(Arc<Check>, Target),
    /// A check by way of the service: the running agent has the virtual server that leads to the backend.
    ByService(Arc<Check>),
}

/// Result of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// There is no check.
    #[default]
    Unchecked,
    /// The backend answered as it must.
    Passes,
    /// It did not answer because of this machine.
    Unknown,
    /// The backend did not answer, or not as it must.
    Fails,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Unchecked => "unchecked",
            Self::Passes => "passes",
            Self::Unknown => "unknown",
            Self::Fails => "fails",
        }
    }
}

/// Runs the checks, and prints a line for each as they end, in order.
///
/// # Errors
/// If a file is bad, there is no such load balancer or backend, or the lines cannot be written.
pub async fn run(args: &CheckRunArgs) -> anyhow::Result<ExitCode> {
    let (table, programs) = table(args)?;
    let jobs = jobs(&table, args.name.as_ref())?;
    let width = jobs.iter().map(|job| job.backend.chars().count()).max();
    let width = width.unwrap_or(0).max("BACKEND".len());
    print(&line(
        width,
        ["BACKEND", "CHECK", "RESULT", "TIME", "REASON"],
    ))?;
    let context = Context::new(programs);
    let results = jobs.into_iter().map(|job| run_one(job, context.clone()));
    let mut results = futures_util::stream::iter(results).buffered(CONCURRENCY);
    let mut worst = Verdict::default();
    while let Some((verdict, line_of)) = results.next().await {
        worst = worst.max(verdict);
        print(&line(width, line_of.each_ref().map(String::as_str)))?;
    }
    Ok(match worst {
        Verdict::Passes => ExitCode::SUCCESS,
        Verdict::Fails => ExitCode::from(FAILS),
        Verdict::Unchecked => bail!("no backend has checks"),
        Verdict::Unknown => bail!("some checks gave no verdict: see their reasons"),
    })
}

/// The table of the files, and the rules for programs. Any error of a file is one of the command.
fn table(args: &CheckRunArgs) -> anyhow::Result<(NodeTable, Programs)> {
    let cluster: Arc<str> = "".into();
    let node = NodeKey {
        cluster: Arc::clone(&cluster),
        name: crate::args::node_name(args.node_name.as_deref())?.into(),
    };
    let files = Files::new(vec![args.path.clone()], &cluster);
    let report = files.on_host(Arc::clone(&node.name)).refresh();
    let errors = problems(&report);
    errors.iter().for_each(|error| tracing::error!("{error}"));
    ensure!(
        errors.is_empty() && report.complete,
        "the files have {} errors: nothing is checked",
        errors.len()
    );
    let (table, warnings) = table_of(report.changes, &node, SelectConfig::default());
    warnings
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    let programs = Programs::default();
    if let Some(director) = &report.director {
        follow_scripts(&programs, &director.scripts);
    }
    Ok((table, programs))
}

/// The checks of the load balancers with a name, or of all; those that frontends share once.
fn jobs(table: &NodeTable, name: Option<&CheckedName>) -> anyhow::Result<Vec<Job>> {
    let balancers = load_balancers(&table.records);
    let mut jobs = Vec::new();
    let mut seen = HashSet::new();
    let mut is_known = false;
    for balancer in &balancers {
        let wanted = |address: SocketAddr| match name {
            None => true,
            Some(CheckedName::Balancer(name)) => *balancer.name == **name,
            Some(CheckedName::Backend(name)) => {
                *balancer.name == *name.balancer && name.covers(address)
            }
        };
        is_known |= matches!(name, Some(CheckedName::Balancer(name)) if *balancer.name == **name);
        for address in balancer
            .backends
            .keys()
            .copied()
            .filter(|each| wanted(*each))
        {
            is_known = true;
            for job in jobs_of(balancer, address) {
                if seen.insert(job.clone()) {
                    jobs.push(job);
                }
            }
        }
    }
    if let (Some(name), false) = (name, is_known) {
        let mut names: Vec<_> = balancers.iter().map(|each| &*each.name).collect();
        names.dedup();
        bail!("the files have no {name}: they have {}", names.join(", "));
    }
    ensure!(!jobs.is_empty(), "the files have no backends");
    Ok(jobs)
}

fn jobs_of(balancer: &LoadBalancer, address: SocketAddr) -> Vec<Job> {
    let Some(backend) = balancer.backends.get(&address) else {
        return Vec::new();
    };
    let job = |task| Job {
        backend: format!("{}/{address}", balancer.name),
        task,
    };
    let tasks = backend.checks.iter().map(|assigned| {
        let check = Arc::clone(&assigned.check);
        match Target::of(balancer, address, assigned) {
            Some(target) => Task::Probe(check, target),
            None => Task::ByService(check),
        }
    });
    let jobs: Vec<_> = tasks.map(job).collect();
    match jobs.is_empty() {
        true => vec![job(Task::Nothing)],
        false => jobs,
    }
}

/// Runs one check; gives its verdict, and the cells of its line.
async fn run_one(job: Job, context: Context) -> (Verdict, [String; 5]) {
    let dash = || "-".to_owned();
    let not_run = |backend, kind, verdict: Verdict, reason| {
        let cells = [backend, kind, verdict.name().to_owned(), dash(), reason];
        (verdict, cells)
    };
    let (check, target) = match job.task {
        Task::Nothing => return not_run(job.backend, dash(), Verdict::Unchecked, dash()),
        Task::ByService(check) => {
            let kind = kind(&check.probe).to_owned();
            return not_run(job.backend, kind, Verdict::Unknown, BY_SERVICE.to_owned());
        }
        Task::Probe(check, target) => (check, target),
    };
    let (begun, name) = (Instant::now(), kind(&check.probe));
    let outcome = context
        .probe(check, target, tokio::time::Instant::now())
        .await;
    let took = begun.elapsed();
    let (verdict, reason) = judge(&outcome);
    let cells = [
        job.backend,
        name.to_owned(),
        verdict.name().to_owned(),
        milliseconds(took),
        reason.as_deref().map_or_else(dash, plain),
    ];
    (verdict, cells)
}

fn judge(outcome: &Outcome) -> (Verdict, Option<String>) {
    match outcome {
        Outcome::Pass { weight } => (Verdict::Passes, weight.map(weight_text)),
        Outcome::Fail(reason) => (Verdict::Fails, Some(reason.to_string())),
        Outcome::NoVerdict(reason) => (Verdict::Unknown, Some(reason.to_string())),
        Outcome::Word(word) => match word.up {
            Some(false) => (Verdict::Fails, Some(said(word))),
            // Silence is no news: the engine takes it for a pass.
            Some(true) | None => (Verdict::Passes, Some(said(word))),
        },
    }
}

/// Returns the text for the word of an agent check: `says down, drain, weight 50%: reason`.
fn said(word: &Word) -> String {
    let up = word.up.map(|up| if up { "up" } else { "down" }.to_owned());
    let state = word.administrative.map(|state| match state {
        Administrative::Enabled => "ready".to_owned(),
        state => state.to_string(),
    });
    let weight = word.weight.map(weight_text);
    let parts: Vec<_> = [up, state, weight].into_iter().flatten().collect();
    let said = match parts.is_empty() {
        true => "says nothing".to_owned(),
        false => format!("says {}", parts.join(", ")),
    };
    match &word.reason {
        Some(reason) => format!("{said}: {reason}"),
        None => said,
    }
}

fn weight_text(weight: DynamicWeight) -> String {
    match weight {
        DynamicWeight::Percent(percent) => format!("weight {percent} %"),
        DynamicWeight::Absolute(weight) => format!("weight {weight}"),
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

fn line(width: usize, [backend, check, result, time, reason]: [&str; 5]) -> String {
    let line = format!("{backend:<width$}  {check:<5}  {result:<9}  {time:>8}  {reason}");
    format!("{}\n", line.trim_end())
}

#[cfg(test)]
mod tests;
