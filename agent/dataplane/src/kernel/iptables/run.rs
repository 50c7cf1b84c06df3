// SPDX-License-Identifier: Apache-2.0

//! Runs of one tool, which may take long or hang.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::tools::AT_START;
use crate::DataplaneError;

/// Parts of a deadline after which a late tool is looked at again.
const LOOKS: u32 = 4;

/// Runs a tool; its output. One that sleeps at the deadline is killed.
pub(super) async fn run(
    program: &Path,
    args: &[&str],
    input: &str,
    deadline: Duration,
) -> Result<String, DataplaneError> {
    let failed = |message: String| failure(program, message);
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let process = child.id();
    let talk = async {
        if let Some(mut stdin) = child.stdin.take() {
            // A tool that ended without reading its input has reported the reason.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    // Dropping the future kills the child.
    let output = end_of(talk, process, deadline)
        .await
        .ok_or_else(|| DataplaneError::Hangs {
            command: name(program),
            deadline,
        })?
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits for the end of a tool: until a deadline, and then for as long as it works, at most for [`AT_START`]. A
/// machine may be so busy, or its rules so many, that no run would ever end in time.
async fn end_of<T>(
    talk: impl Future<Output = T>,
    process: Option<u32>,
    deadline: Duration,
) -> Option<T> {
    let mut talk = pin!(talk);
    let (began, pause) = (Instant::now(), deadline / LOOKS);
    let mut wait = deadline - pause;
    let mut before = None;
    loop {
        if let Ok(ended) = timeout(wait, &mut talk).await {
            return Some(ended);
        }
        let now = process.and_then(Look::at);
        let works = before.is_none_or(|before| now.is_some_and(|now| now.works_since(before)));
        if !works || began.elapsed() >= AT_START {
            return None;
        }
        (before, wait) = (Some(now), pause);
    }
}

/// A look at a process, by `/proc/PID/stat` (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    state: char,
    /// Processor time that it has taken, in ticks.
    ticks: u64,
}

impl Look {
    /// The process as it is now; `None` if it is gone.
    fn at(process: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat"));
        Self::read(&text.ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        // The name before may have spaces. Of the rest, the 12th and 13th fields are of the program and of the kernel.
        let (_, fields) = text.rsplit_once(") ")?;
        let fields: Vec<_> = fields.split(' ').collect();
        let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            ticks: ticks(11)? + ticks(12)?,
        })
    }

    /// True if the process has taken time since an earlier look, or waits for a processor (`R`) or for the kernel (`D`),
    /// which loads modules in a process of its own. One that waits for a lock or for input sleeps.
    fn works_since(self, before: Option<Self>) -> bool {
        let took_time = before.is_some_and(|before| self.ticks > before.ticks);
        took_time || matches!(self.state, 'R' | 'D')
    }
}

fn name(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn failure(program: &Path, message: String) -> DataplaneError {
    DataplaneError::Command {
        command: name(program),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_sleeps_without_taking_time_does_not_work() {
        let look = |state: char, ticks: u32| {
            let zeros = "0 ".repeat(10);
            Look::read(&format!("7 (a) b) {state} {zeros}{ticks} 1 0\n"))
        };
        assert_eq!(look('S', 4).map(|look| look.ticks), Some(5));
        let works = |state, before, now| look(state, now).unwrap().works_since(look('S', before));
        assert!(!works('S', 4, 4) && !works('Z', 4, 4) && !works('T', 4, 4));
        assert!(works('S', 4, 5));
        // It waits for a processor, or for the kernel, which loads a module.
        assert!(works('R', 4, 4) && works('D', 4, 4));
        assert_eq!(Look::read("7 (a"), None);
    }
}
