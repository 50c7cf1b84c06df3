// SPDX-License-Identifier: Apache-2.0

//! Durations as a file spells them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Units and their milliseconds, the largest first.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// A duration of whole milliseconds, written as one number and one unit: `500ms`, `5s`, `2m`,
/// `1h`, `31d`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(Duration);

impl Period {
    /// Its length; a fraction of a millisecond is cut off.
    #[must_use]
    pub fn new(length: Duration) -> Self {
        let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        Self(Duration::from_millis(millis))
    }

    /// A number of seconds.
    #[must_use]
    pub fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Its length.
    #[must_use]
    pub fn get(self) -> Duration {
        self.0
    }
}

impl fmt::Display for Period {
    /// In the largest unit that gives a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis == 0 {
            return f.write_str("0s");
        }
        let fitting = UNITS
            .into_iter()
            .find(|(_, unit)| millis.is_multiple_of(u128::from(*unit)));
        let (name, unit) = fitting.unwrap_or(("ms", 1));
        write!(f, "{}{name}", millis / u128::from(unit))
    }
}

/// A text that is not a [`Period`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeriodError;

impl fmt::Display for PeriodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a duration such as 500ms, 5s or 2m")
    }
}

impl std::error::Error for PeriodError {}

impl FromStr for Period {
    type Err = PeriodError;

    fn from_str(text: &str) -> Result<Self, PeriodError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if digits == 0 || digits > 9 {
            return Err(PeriodError);
        }
        let number: u64 = number.parse().map_err(|_| PeriodError)?;
        let (_, unit) = UNITS
            .into_iter()
            .find(|(name, _)| *name == unit)
            .ok_or(PeriodError)?;
        Ok(Self(Duration::from_millis(number * unit)))
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Period {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        Cow::Borrowed("Period")
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[0-9]{1,9}(ms|s|m|h|d)$",
            "x-expected": "a duration such as 500ms, 5s or 2m",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_one_number_and_one_unit() {
        let cases = [
            ("500ms", Some(500)),
            ("5s", Some(5_000)),
            ("2m", Some(120_000)),
            ("1h", Some(3_600_000)),
            ("31d", Some(31 * 86_400_000)),
            ("0s", Some(0)),
            ("5", None),
            ("s", None),
            ("1h30m", None),
            ("-1s", None),
            ("1.5s", None),
            ("9999999999s", None),
        ];
        for (text, millis) in cases {
            let expected = millis.map(|millis| Period(Duration::from_millis(millis)));
            assert_eq!(text.parse::<Period>().ok(), expected, "{text}");
        }
    }

    #[test]
    fn it_is_printed_in_its_largest_whole_unit() {
        for text in ["500ms", "5s", "2m", "1h", "31d", "0s", "1001ms", "90s"] {
            assert_eq!(text.parse::<Period>().unwrap().to_string(), text);
        }
        assert_eq!("120s".parse::<Period>().unwrap().to_string(), "2m");
    }
}
