// SPDX-License-Identifier: Apache-2.0

//! Values as texts for people.

use std::time::Duration;

/// A duration in its largest units: `3 ms`, `1.5 s`, `4 min`, `2 h`, `5 d`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A duration that may be unknown.
pub(crate) fn maybe(time: Option<Duration>) -> String {
    time.map_or_else(|| "–".to_owned(), duration)
}

/// A number that may be unknown.
pub(crate) fn number(number: Option<u64>) -> String {
    number.map_or_else(|| "–".to_owned(), |it| it.to_string())
}

/// A count with its noun: `1 node`, `2 nodes`.
pub(crate) fn count(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_unit_that_fits() {
        for (ms, expected) in [
            (3, "3 ms"),
            (1_500, "1.5 s"),
            (59_999, "59 s"),
            (240_000, "4 min"),
            (7_200_000, "2 h"),
            (432_000_000, "5 d"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), expected);
        }
        assert_eq!(count(1, "node"), "1 node");
        assert_eq!(count(0, "node"), "0 nodes");
    }
}
