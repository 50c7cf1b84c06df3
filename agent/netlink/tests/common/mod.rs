// SPDX-License-Identifier: Apache-2.0

//! Helpers of the kernel tests: a network namespace for each, and skipping where something is
//! missing.

use std::fmt::Display;
use std::io;
use std::process::Command;

/// Runs `body` with the result of `open` in a fresh network namespace whose loopback device is up.
///
/// In a thread of its own, since the namespace is the thread's. Skips as [`require`] does.
pub(crate) fn in_netns<K, E: Display>(
    test: &str,
    lanes: &[&str],
    open: impl FnOnce() -> Result<K, E> + Send,
    body: impl FnOnce(K) + Send,
) {
    let run = || {
        let Some(()) = require(test, lanes, enter_netns()) else {
            return;
        };
        let Some(kernel) = require(test, lanes, open()) else {
            return;
        };
        body(kernel);
    };
    let result = std::thread::scope(|scope| scope.spawn(run).join());
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// The result of a probe, or `None` and a line that says so. Under `CI=true` in one of the lanes
/// that promise it (`PORTOLAN_LANE`), it is there or the test fails.
#[expect(clippy::print_stdout, reason = "a skipped test must say so")]
pub(crate) fn require<T, E: Display>(test: &str, lanes: &[&str], probe: Result<T, E>) -> Option<T> {
    let reason = match probe {
        Ok(found) => return Some(found),
        Err(reason) => reason,
    };
    let lane = std::env::var("PORTOLAN_LANE").unwrap_or_default();
    let promised = std::env::var("CI").is_ok_and(|ci| ci == "true") && lanes.contains(&&*lane);
    assert!(!promised, "{test} must run in lane {lane}: {reason}");
    println!("SKIP {test}: {reason}");
    None
}

/// Runs a program, which must succeed, and returns its output.
pub(crate) fn output(program: &str, arguments: &str) -> io::Result<String> {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let error = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{program} {arguments}: {error}")))
    }
}

#[expect(unsafe_code, reason = "no safe wrapper of unshare is at hand")]
fn enter_netns() -> io::Result<()> {
    // SAFETY: no pointers are passed; the network namespace of this thread alone changes.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    output("ip", "link set lo up").map(drop)
}
