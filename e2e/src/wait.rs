// SPDX-License-Identifier: Apache-2.0

//! Waiting for conditions. No test waits for mere time to pass.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The pause after the first look at a condition.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause: many conditions start a process, which takes processor time from the awaited program.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Polls `condition` until it returns a value; fails after `deadline`, naming `what` was waited for. Pauses
/// grow with the time waited, of which they are a twentieth.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let pause = |waited: Duration| (waited / 20).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    poll(what, deadline, pause, condition)
}

/// Like [`wait_for`], with a constant pause: for long waits where each look is a connection that the kernel
/// remembers for minutes.
pub fn wait_with_pauses<T>(
    what: &str,
    deadline: Duration,
    interval: Duration,
    condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    poll(what, deadline, |_| interval, condition)
}

/// Repeats an action that others may disturb, such as `iptables-save`, which fails if a set of a rule goes meanwhile.
/// Fails with its last error after `deadline`.
pub fn retry<T>(
    what: &str,
    deadline: Duration,
    mut action: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut last = None;
    let done = wait_for(what, deadline, || {
        action().map_err(|error| last = Some(error)).ok()
    });
    done.map_err(|waited| match last {
        Some(last) => last.context(waited),
        None => waited,
    })
}

fn poll<T>(
    what: &str,
    deadline: Duration,
    pause_after: impl Fn(Duration) -> Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        // A look that begins before the deadline counts, however long it takes.
        let waited = start.elapsed();
        if let Some(value) = condition() {
            return Ok(value);
        }
        if waited >= deadline {
            bail!("waited {deadline:?} in vain for {what}");
        }
        pause(pause_after(waited));
    }
}

/// Lets `time` pass between two looks at a condition.
pub(crate) fn pause(time: Duration) {
    let end = Instant::now() + time;
    // Parking may end early, for no reason at all.
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_value_of_the_condition() {
        let mut looks = 0;
        let value = wait_for("three looks", Duration::from_secs(5), || {
            looks += 1;
            (looks == 3).then_some("done")
        });
        assert_eq!(value.unwrap(), "done");
    }

    #[test]
    fn an_error_names_the_condition() {
        let error = wait_for("the tide", Duration::from_millis(20), || None::<()>).unwrap_err();
        assert!(error.to_string().contains("the tide"), "{error}");
    }

    #[test]
    fn a_retry_fails_with_the_last_error() {
        let error = retry("the tide", Duration::from_millis(20), || -> Result<()> {
            bail!("it is low")
        });
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("the tide: it is low"), "{error}");
    }
}
