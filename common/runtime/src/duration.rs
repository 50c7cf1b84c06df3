// SPDX-License-Identifier: Apache-2.0

//! Durations on the command line.

use std::time::Duration;

use jiff::SignedDuration;

/// A text that is not a usable duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Neither a duration with units nor a whole number.
    #[error("expected a duration such as 500ms, 30s or 5m, or a whole number of {unit}")]
    Malformed {
        /// The unit of plain numbers.
        unit: &'static str,
    },
    /// Outside of the bounds of the flag.
    #[error("expected a duration from {} to {}", friendly(*least), friendly(*most))]
    OutOfRange {
        /// The lower bound.
        least: Duration,
        /// The upper bound.
        most: Duration,
    },
}

/// Parses a duration such as `500ms`, `30s`, `5m` or `1h30m`. A plain number is in seconds.
///
/// # Errors
/// If the text is neither, or is negative.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let malformed = DurationError::Malformed { unit: "seconds" };
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let parsed = text.parse::<SignedDuration>().ok();
    parsed
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or(malformed)
}

/// A value parser for durations within bounds, both of them allowed.
pub fn duration_within(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, DurationError> + Clone + Send + Sync + 'static {
    move |text| within(parse_duration(text)?, least, most)
}

/// A value parser for renamed flags whose plain numbers are in milliseconds.
pub fn milliseconds_within(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, DurationError> + Clone + Send + Sync + 'static {
    move |text| {
        let unit = "milliseconds";
        let number = text
            .parse()
            .map_err(|_| DurationError::Malformed { unit })?;
        within(Duration::from_millis(number), least, most)
    }
}

fn within(duration: Duration, least: Duration, most: Duration) -> Result<Duration, DurationError> {
    match (least..=most).contains(&duration) {
        true => Ok(duration),
        false => Err(DurationError::OutOfRange { least, most }),
    }
}

/// In the form that is parsed.
fn friendly(duration: Duration) -> String {
    let signed = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    format!("{signed:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_or_are_in_seconds() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("30", 30_000),
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("15m0s", 900_000),
            ("1h30m", 5_400_000),
        ] {
            let expected = Duration::from_millis(milliseconds);
            assert_eq!(parse_duration(text), Ok(expected), "{text}");
        }
        for bad in ["", "x", "-5s", "-5", "1.5", "30 parsecs"] {
            let error = parse_duration(bad).unwrap_err().to_string();
            assert!(error.contains("30s"), "{bad}: {error}");
        }
    }

    #[test]
    fn bounds_are_inclusive_and_named() {
        let parse = duration_within(Duration::from_millis(10), Duration::from_secs(3_600));
        assert_eq!(parse("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(parse("1h"), Ok(Duration::from_secs(3_600)));
        for bad in ["9ms", "0", "3601"] {
            let error = parse(bad).unwrap_err().to_string();
            assert_eq!(error, "expected a duration from 10ms to 1h", "{bad}");
        }
    }

    #[test]
    fn renamed_flags_keep_milliseconds() {
        let parse = milliseconds_within(Duration::from_millis(10), Duration::from_secs(1));
        assert_eq!(parse("20"), Ok(Duration::from_millis(20)));
        for bad in ["20ms", "1001", "-1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
