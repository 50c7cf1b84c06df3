// SPDX-License-Identifier: Apache-2.0

//! Collects what is wrong with one object while it is converted.
//!
//! Conversions go on after a fault with a value that stands in for the wrong one, so that all faults
//! are found; the caller discards the result if there was any.

use std::str::FromStr;
use std::time::Duration;

use portolan_director::document::Period;
use portolan_director::read::Path;

use crate::{Fault, PolicyError};

/// The longest duration of any field: waits are counted in seconds, and nobody means a longer one.
pub(crate) const MOST: (Duration, &str) = (Duration::from_hours(24 * 31), "31d");

/// All faults of one object.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    pub(crate) fn add(&mut self, path: &Path, error: PolicyError) {
        self.0.push(Fault {
            field: path.as_str().to_owned(),
            error,
        });
    }

    pub(crate) fn into_result<T>(self, object: T) -> Result<T, Vec<Fault>> {
        if self.0.is_empty() {
            Ok(object)
        } else {
            Err(self.0)
        }
    }

    /// A duration, or the default if none is given.
    pub(crate) fn duration(
        &mut self,
        path: &Path,
        text: Option<&String>,
        default: Duration,
    ) -> Duration {
        text.map_or(default, |text| self.given(path, text))
    }

    /// A duration, if one is given.
    pub(crate) fn optional_duration(
        &mut self,
        path: &Path,
        text: Option<&String>,
    ) -> Option<Duration> {
        text.map(|text| self.given(path, text))
    }

    fn given(&mut self, path: &Path, text: &str) -> Duration {
        let Ok(period) = Period::from_str(text) else {
            self.add(path, PolicyError::Duration(text.to_owned()));
            return Duration::ZERO;
        };
        let (most, most_text) = MOST;
        if period.get() > most {
            let error = PolicyError::DurationRange {
                found: text.to_owned(),
                most: most_text,
            };
            self.add(path, error);
        }
        period.get()
    }

    /// A percentage from a lowest value on.
    pub(crate) fn percent(&mut self, path: &Path, number: i64, least: u8) -> u8 {
        let fits = u8::try_from(number)
            .ok()
            .filter(|percent| (least..=100).contains(percent));
        fits.unwrap_or_else(|| {
            let expected = if least == 0 {
                "a percentage of 0 to 100"
            } else {
                "a percentage of 1 to 100"
            };
            let found = number.to_string();
            self.add(path, PolicyError::Threshold { found, expected });
            least
        })
    }
}
