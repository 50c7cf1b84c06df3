// SPDX-License-Identifier: Apache-2.0

//! A program.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use portolan_health::{DynamicWeight, Outcome, Word};
use portolan_model::check::{ExecProbe, WeightFrom};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::agent;
use super::connection::beside;
use crate::fault::{Checked, Stop};
use crate::{Context, Programs, Target};

/// The time between the request to end and the end by force.
const GRACE: Duration = Duration::from_secs(2);
/// The part of the output that is read, in bytes.
const MAX_OUTPUT: u64 = 512;

pub(crate) async fn run(
    probe: &ExecProbe,
    target: &Target,
    context: &Context,
    limit: Duration,
) -> Checked<Outcome> {
    let start = async {
        let mut command = command(probe, target, context).await?;
        let child = command.spawn();
        child.map_err(|error| Stop::local(&probe.command[0], &error))
    };
    let late = || Stop::fails(format_args!("not done within {limit:?}"));
    let (status, output) = ended(start, limit, late).await?;
    judge(probe.weight_from, status, &output)
}

/// Starts a program, and waits for its end. When its time is over, the search for its file included, it is asked to end.
async fn ended(
    start: impl Future<Output = Checked<Child>>,
    limit: Duration,
    late: impl FnOnce() -> Stop,
) -> Checked<(ExitStatus, String)> {
    let mut group = None;
    let exchange = async {
        let started = group.insert(Group::new(start.await?)?);
        started.end().await
    };
    let ended = match timeout(limit, exchange).await {
        Ok(ended) => ended,
        Err(_) => Err(late()),
    };
    if ended.is_err()
        && let Some(group) = group
    {
        group.terminate();
    }
    ended
}

/// Reason why a program did not do its work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProgramError(Arc<str>);

/// Runs a program that is no check, with these variables; an error says why it failed. It is ended like one of a check
/// when its time is over. Nothing is read of its output.
///
/// # Errors
/// If the program cannot be started or fails, or its time is over.
pub async fn run_program(
    programs: &Programs,
    command: &[String],
    variables: &[(&str, String)],
    limit: Duration,
) -> Result<(), ProgramError> {
    let start = async {
        let mut command = programs.command(command, Stdio::null()).await?;
        command.envs(variables.iter().map(|(name, value)| (*name, value)));
        let child = command.spawn();
        child.map_err(|error| Stop::ours(format_args!("not started: {error}")))
    };
    let late = || Stop::fails(format_args!("not finished in {limit:?}: ended"));
    let ended = ended(start, limit, late).await;
    let judged = ended.and_then(|(status, _)| judge(WeightFrom::None, status, ""));
    judged.map(drop).map_err(|stop| match stop {
        Stop::Fails(reason) | Stop::Ours(reason) => ProgramError(reason),
    })
}

async fn command(probe: &ExecProbe, target: &Target, context: &Context) -> Checked<Command> {
    let output = match probe.weight_from {
        WeightFrom::Stdout => Stdio::piped(),
        WeightFrom::None | WeightFrom::ExitCode => Stdio::null(),
    };
    let mut command = context.programs().command(&probe.command, output).await?;
    command.env("PORTOLAN_ADDRESS", target.address.ip().to_string());
    command.env("PORTOLAN_PORT", target.address.port().to_string());
    if let Some(names) = &target.names {
        command.env("PORTOLAN_NAME", &*names.name);
        command.env("PORTOLAN_FRONTEND", &*names.frontend);
    }
    Ok(command)
}

fn judge(weight_from: WeightFrom, status: ExitStatus, output: &str) -> Checked<Outcome> {
    let Some(code) = status.code() else {
        return Err(Stop::fails(format_args!("the program ended by {status}")));
    };
    match (weight_from, code) {
        (WeightFrom::Stdout, 0) => {
            let word = agent::word(output);
            let up = word.up.or(Some(true));
            Ok(Outcome::Word(Word { up, ..word }))
        }
        (WeightFrom::ExitCode, 2..=255) => {
            let weight = u16::try_from(code - 2).unwrap_or_default();
            let weight = Some(DynamicWeight::Absolute(weight));
            Ok(Outcome::Pass { weight })
        }
        (_, 0) => Ok(Outcome::pass()),
        (_, code) => Err(Stop::fails(format_args!("exit code {code}"))),
    }
}

/// A program and its children. Dropped, all of them are killed.
struct Group {
    /// `None` once it has ended, or somebody else ends it.
    child: Option<Child>,
    id: Pid,
}

impl Group {
    fn new(child: Child) -> Checked<Self> {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let id = id
            .and_then(Pid::from_raw)
            .ok_or(Stop::ours("the program has no id"))?;
        let child = Some(child);
        Ok(Self { child, id })
    }

    /// Waits for the end of the output and of the program.
    async fn end(&mut self) -> Checked<(ExitStatus, String)> {
        let child = self
            .child
            .as_mut()
            .ok_or(Stop::ours("the program has ended"))?;
        let mut stdout = child.stdout.take();
        let output = match &mut stdout {
            None => String::new(),
            Some(stdout) => first_line(stdout).await,
        };
        // The rest must go somewhere, or the program ends by SIGPIPE or waits for room.
        let rest = async {
            if let Some(stdout) = &mut stdout {
                let _ = tokio::io::copy(stdout, &mut tokio::io::sink()).await;
            }
        };
        let status = beside(child.wait(), rest).await;
        let status = status.map_err(|error| Stop::local("wait", &error))?;
        self.child = None;
        Ok((status, output))
    }

    /// Asks all to end, and kills what is left after a while.
    fn terminate(mut self) {
        let (child, id) = (self.child.take(), self.id);
        // It may have ended meanwhile.
        let _ = kill_process_group(id, Signal::TERM);
        tokio::spawn(async move {
            let mut rest = Self { child, id };
            if let Some(child) = &mut rest.child {
                let _ = timeout(GRACE, child.wait()).await;
            }
        });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.child.is_some() {
            // The program itself is waited for by the runtime.
            let _ = kill_process_group(self.id, Signal::KILL);
        }
    }
}

async fn first_line(output: &mut (impl AsyncRead + Unpin)) -> String {
    let mut line = Vec::new();
    let mut limited = output.take(MAX_OUTPUT);
    while !line.contains(&b'\n') {
        match limited.read_buf(&mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    String::from_utf8_lossy(&line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_search_for_a_program_counts() {
        let hangs = std::future::pending::<Checked<Child>>();
        let late = ended(hangs, Duration::from_secs(2), || Stop::fails("late")).await;
        assert_eq!(late, Err(Stop::fails("late")));
    }
}
