// SPDX-License-Identifier: Apache-2.0

//! A server's process: started with a log file, awaited by condition, stopped on drop.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait::wait_for;

/// The deadline of a start, sufficient for a guest kernel on a loaded machine.
const START_LIMIT: Duration = Duration::from_secs(180);
/// The time after which a server that ignores SIGTERM is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// The number of log lines shown on failure.
const TAIL_LINES: usize = 25;

/// A server that is stopped on drop.
#[derive(Debug)]
pub(super) struct Process {
    name: &'static str,
    log: PathBuf,
    child: Child,
}

impl Process {
    pub(super) fn spawn(
        dir: &Path,
        name: &'static str,
        program: &Path,
        args: &[String],
    ) -> Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let out = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        Ok(Self { name, log, child })
    }

    /// True once the server has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for `condition`, but not for a server that has ended; an error carries the log's tail.
    pub(super) fn wait_for(
        &mut self,
        what: &str,
        mut condition: impl FnMut() -> bool,
    ) -> Result<()> {
        let ended = wait_for(what, START_LIMIT, || {
            if self.has_ended() {
                return Some(true);
            }
            condition().then_some(false)
        });
        ensure!(
            !ended.with_context(|| self.tail())?,
            "{} ended before {what}\n{}",
            self.name,
            self.tail()
        );
        Ok(())
    }

    /// Asks the server to end, without waiting for it.
    pub(super) fn signal_stop(&mut self) {
        // The id of a process that has ended may already be another's.
        if !self.has_ended() {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
    }

    /// Ends the server at once, as a crash would.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| self.name)?;
        self.child.wait().with_context(|| self.name)?;
        Ok(())
    }

    /// Its name and the end of its log, for error messages.
    pub(super) fn tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        format!("--- {}:\n{}", self.log.display(), tail.join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal_stop();
        if wait_for("exit", STOP_LIMIT, || self.has_ended().then_some(())).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
