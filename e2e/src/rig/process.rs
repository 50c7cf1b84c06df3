// SPDX-License-Identifier: Apache-2.0

//! Programs under test: run in a namespace, log to a file, never outlive the test.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::namespace::Namespace;
use crate::wait::wait_for;

/// The number of log lines printed to the console of a failed test.
const TAIL: usize = 40;

/// A running program. Dropping it kills it; if the test is failing, prints the end of its log.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` in `namespace`; its output is appended to `<log_directory>/<name>.log`.
    pub fn spawn(
        namespace: &Namespace,
        name: &str,
        command: &mut Command,
        log_directory: &Path,
    ) -> Result<Self> {
        let log = log_directory.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        // A process has the namespace of the thread that started it.
        let child = namespace
            .run(|| command.spawn())?
            .with_context(|| format!("start {name}: {command:?}"))?;
        Ok(Self {
            name: name.into(),
            child,
            log,
        })
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// All that it has printed.
    pub fn log(&self) -> Result<String> {
        let bytes = fs::read(&self.log).with_context(|| self.log.display().to_string())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits until its log has a line that contains `text`, and returns that line.
    pub fn wait_for_log(&mut self, text: &str, deadline: Duration) -> Result<String> {
        let what = format!("{text:?} in the log of {}", self.name);
        wait_for(&what, deadline, || {
            let log = self.log().ok()?;
            log.lines().find(|line| line.contains(text)).map(Into::into)
        })
    }

    /// True while it runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).with_context(|| format!("send {signal:?} to {}", self.name))
    }

    /// Kills it without a warning, as a crash or a node failure would.
    pub fn kill9(&mut self) -> Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// Asks it to end with SIGTERM; an error if it has not by the deadline.
    pub fn stop(&mut self, deadline: Duration) -> Result<ExitStatus> {
        if self.is_running() {
            self.signal(Signal::TERM)?;
        }
        self.wait(deadline)
    }

    /// Waits for its end.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        wait_for(&what, deadline, || self.child.try_wait().transpose())?
            .with_context(|| format!("wait for {}", self.name))
    }

    #[expect(clippy::print_stderr, reason = "for the reader of a failed test")]
    fn print_tail(&mut self) {
        let state = match self.child.try_wait() {
            Ok(Some(status)) if status.signal().is_some() => format!("killed: {status}"),
            Ok(Some(status)) => format!("ended: {status}"),
            _ => "still running".into(),
        };
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
        eprintln!("--- {} ({state}), end of its log:\n{tail}", self.name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            self.print_tail();
        }
        let _ = self.kill9();
    }
}
