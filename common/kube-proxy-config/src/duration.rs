// SPDX-License-Identifier: Apache-2.0

//! Durations of Go, and of the chart.

use std::time::Duration;

/// Parses a duration as Go writes it: `1h30m0s`, `250ms`, `0`. Fractions are read to a millisecond.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut milliseconds = 0.0;
    if text.is_empty() {
        return None;
    }
    if text == "0" {
        return Some(Duration::ZERO);
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = rest.split_at(end);
        let end = unit
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(unit.len());
        let (unit, next) = unit.split_at(end);
        let scale = match unit {
            "h" => 3_600_000.0,
            "m" => 60_000.0,
            "s" => 1_000.0,
            "ms" => 1.0,
            "us" | "µs" => 0.001,
            "ns" => 0.000_001,
            _ => return None,
        };
        milliseconds += number.parse::<f64>().ok()? * scale;
        rest = next;
    }
    Duration::try_from_secs_f64((milliseconds / 1_000.0 * 1_000.0).round() / 1_000.0).ok()
}

/// Writes a duration with one unit, as the chart's values and our flags have it.
pub(crate) fn render(duration: Duration) -> String {
    let (seconds, milliseconds) = (duration.as_secs(), duration.subsec_millis());
    if milliseconds > 0 {
        return format!("{}ms", duration.as_millis());
    }
    for (unit, size) in [("h", 3_600), ("m", 60)] {
        if seconds > 0 && seconds.is_multiple_of(size) {
            return format!("{}{unit}", seconds / size);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go_become_durations_of_one_unit() {
        for (text, expected) in [
            ("24h0m0s", "24h"),
            ("1h30m0s", "90m"),
            ("30s", "30s"),
            ("250ms", "250ms"),
            ("1.5s", "1500ms"),
            ("0s", "0s"),
            ("0", "0s"),
            ("90s", "90s"),
        ] {
            assert_eq!(render(parse(text).unwrap()), expected, "{text}");
        }
        for bad in ["", "1", "s", "1d", "1h 2m", "-1s", "1..2s"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
