// SPDX-License-Identifier: Apache-2.0

//! Slow start: shares of the weight of a backend that came up.

use std::time::Duration;

/// The share at the beginning, in percent.
const FIRST: u32 = 10;
/// Steps of the share, in percent.
const STEP: u32 = 5;
/// The shortest time between two steps.
const SHORTEST: Duration = Duration::from_secs(1);

/// The time between two moments at which the share may change.
fn period(slow_start: Duration) -> Duration {
    SHORTEST.max(slow_start / ((100 - FIRST) / STEP))
}

/// The share of the weight, in percent, `elapsed` after the backend came up: 10 at first, 100 from
/// `slow_start` on, in steps of at least 5 that are at least a second apart.
pub(crate) fn share(slow_start: Duration, elapsed: Duration) -> u32 {
    if elapsed >= slow_start {
        return 100;
    }
    let period = period(slow_start);
    let periods = elapsed.as_nanos() / period.as_nanos();
    let gone = periods * period.as_nanos();
    let gained = u128::from(100 - FIRST) * gone / slow_start.as_nanos();
    let gained = u32::try_from(gained).unwrap_or(100);
    (FIRST + gained / STEP * STEP).min(100)
}

/// When the share may change next, as a time after the backend came up; `None` when it is 100.
pub(crate) fn next(slow_start: Duration, elapsed: Duration) -> Option<Duration> {
    if elapsed >= slow_start {
        return None;
    }
    let period = period(slow_start);
    let periods = u32::try_from(elapsed.as_nanos() / period.as_nanos()).unwrap_or(u32::MAX);
    let next = period.saturating_mul(periods.saturating_add(1));
    Some(next.min(slow_start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(slow_start: Duration) -> Vec<(Duration, u32)> {
        let mut all = vec![(Duration::ZERO, share(slow_start, Duration::ZERO))];
        while let Some(at) = next(slow_start, all[all.len() - 1].0) {
            all.push((at, share(slow_start, at)));
        }
        all
    }

    #[test]
    fn eighteen_steps_lead_from_a_tenth_to_all() {
        let all = shares(Duration::from_secs(36));
        let expected: Vec<u32> = (0..=18).map(|step| 10 + 5 * step).collect();
        assert_eq!(all.iter().map(|each| each.1).collect::<Vec<_>>(), expected);
        assert!(
            all.windows(2)
                .all(|pair| pair[1].0 - pair[0].0 == Duration::from_secs(2))
        );
    }

    #[test]
    fn steps_are_a_second_apart_however_short_the_ramp() {
        let all = shares(Duration::from_secs(5));
        let all: Vec<_> = all.iter().map(|each| (each.0.as_secs(), each.1)).collect();
        assert_eq!(all, [(0, 10), (1, 25), (2, 45), (3, 60), (4, 80), (5, 100)]);
        assert_eq!(share(Duration::ZERO, Duration::ZERO), 100);
        assert_eq!(share(Duration::from_millis(300), Duration::ZERO), 10);
        assert_eq!(
            next(Duration::from_millis(300), Duration::ZERO)
                .unwrap()
                .as_millis(),
            300
        );
    }
}
