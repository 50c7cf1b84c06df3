//! Waiting for conditions. Nothing in the tests waits for a mere time to pass.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often a condition is looked at. Short against what tests wait for, long against one look.
const INTERVAL: Duration = Duration::from_millis(5);

/// Polls `condition` until it returns a value; fails after `deadline`, naming `what` was waited for.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    wait_with_pauses(what, deadline, INTERVAL, condition)
}

/// The same with such a pause between two looks: where the wait is long, and each look is a connection
/// that the kernel remembers for minutes.
pub fn wait_with_pauses<T>(
    what: &str,
    deadline: Duration,
    interval: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if start.elapsed() >= deadline {
            bail!("waited {deadline:?} in vain for {what}");
        }
        pause(interval);
    }
}

/// Lets `time` pass between two looks at something. Not a substitute for looking.
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
    fn names_what_never_came() {
        let error = wait_for("the tide", Duration::from_millis(20), || None::<()>).unwrap_err();
        assert!(error.to_string().contains("the tide"), "{error}");
    }
}
