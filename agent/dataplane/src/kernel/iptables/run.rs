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
        let now = process.and_then(processor_time);
        let works = before.is_none_or(|before| now > before);
        if !works || began.elapsed() >= AT_START {
            return None;
        }
        (before, wait) = (Some(now), pause);
    }
}

/// Processor time that a process has taken, in ticks; `None` if it is gone.
fn processor_time(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before may have spaces. Of the rest, the 12th and 13th fields are of the program and of the kernel.
    let (_, fields) = text.rsplit_once(") ")?;
    let fields: Vec<_> = fields.split(' ').collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(ticks(11)? + ticks(12)?)
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
