// SPDX-License-Identifier: Apache-2.0

//! The driver's child processes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::marker::PhantomData;
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::usage::Usage;
use crate::words::{Ask, Connect, Connected, Done, Order, Published, Speak, Told};

/// A child process that answers each line with one line. Killed on drop.
pub(super) struct Child<Line, Answer> {
    process: Process,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    lines: PhantomData<(Line, Answer)>,
}

/// The server and the thin agents.
pub(super) type Server = Child<Ask, Told>;
pub(super) type Client = Child<Order, Done>;

impl<Line: Serialize, Answer: DeserializeOwned> Child<Line, Answer> {
    /// Starts this program in another role.
    pub(super) fn start(arguments: &[String]) -> Result<Self> {
        let program = std::env::current_exe().context("our own program")?;
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("another process")?;
        let (to, from) = (process.stdin.take(), process.stdout.take());
        Ok(Self {
            process,
            to,
            from: BufReader::new(from.context("no pipe")?),
            lines: PhantomData,
        })
    }

    /// Sends a line, without waiting for the answer.
    pub(super) fn tell(&mut self, line: &Line) -> Result<()> {
        let line = serde_json::to_string(line)?;
        writeln!(self.to.as_mut().context("no pipe")?, "{line}").context("the process is gone")
    }

    /// Reads the next answer.
    pub(super) fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        if line.is_empty() {
            bail!("the process has ended: {}", self.process.wait()?);
        }
        serde_json::from_str(&line).with_context(|| format!("an answer: {line}"))
    }

    pub(super) fn ask(&mut self, line: &Line) -> Result<Answer> {
        self.tell(line)?;
        self.answer()
    }
}

impl<Line, Answer> Drop for Child<Line, Answer> {
    fn drop(&mut self) {
        // Killing is safe: a child has nothing left to do but end.
        self.to = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    pub(super) fn usage(&mut self) -> Result<Usage> {
        match self.ask(&Ask::Usage)? {
            Told::Usage(usage) => Ok(usage),
            other => bail!("no usage but {other:?}"),
        }
    }

    pub(super) fn change(&mut self, count: u32) -> Result<Published> {
        match self.ask(&Ask::Change(count))? {
            Told::Published(published) => Ok(published),
            other => bail!("nothing published but {other:?}"),
        }
    }

    /// Waits until the server has `count` streams.
    pub(super) fn streams(&mut self, count: usize) -> Result<()> {
        self.ask(&Ask::Streams(count)).map(drop)
    }
}

impl Client {
    /// Processor time of the agents' one thread so far, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> Result<u64> {
        let path = format!("/proc/{}/schedstat", self.process.id());
        let text = std::fs::read_to_string(&path).context(path)?;
        let first = text.split_whitespace().next().context("no times")?;
        Ok(first.parse()?)
    }

    /// Connects agents to a server, which must accept them meanwhile.
    pub(super) fn connect(&mut self, how: Connect, server: &mut Server) -> Result<Connected> {
        let (agents, speak) = (how.agents as usize, how.speak);
        self.tell(&Order::Connect(how))?;
        if matches!(speak, Speak::Bare(_)) {
            // The bare server accepts only when asked to.
            server.streams(agents)?;
        }
        match self.answer()? {
            Done::Connected(connected) => Ok(connected),
            other => bail!("not connected but {other:?}"),
        }
    }

    /// Waits until all agents have a revision. Returns the time at which the last had it, and the
    /// number of bytes received by all.
    pub(super) fn reach(&mut self, revision: u64) -> Result<(u64, u64)> {
        match self.ask(&Order::Reach(revision))? {
            Done::Reached { at_ns, received } => Ok((at_ns, received)),
            other => bail!("not reached but {other:?}"),
        }
    }

    pub(super) fn arrivals(&mut self, first: u64, last: u64) -> Result<Vec<u64>> {
        match self.ask(&Order::Arrivals { first, last })? {
            Done::Arrivals(arrivals) => Ok(arrivals),
            other => bail!("no arrivals but {other:?}"),
        }
    }
}
