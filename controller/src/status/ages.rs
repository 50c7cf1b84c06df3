// SPDX-License-Identifier: Apache-2.0

//! Since when problems are known.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// When each present problem was first seen.
#[derive(Debug, Default)]
pub(super) struct Ages(BTreeMap<String, Instant>);

impl Ages {
    /// Remembers new problems, and forgets those that are gone.
    pub(super) fn update(&mut self, now: Instant, present: &[String]) {
        let mut known = std::mem::take(&mut self.0);
        for text in present {
            let (text, since) = known
                .remove_entry(text)
                .unwrap_or_else(|| (text.clone(), now));
            self.0.entry(text).or_insert(since);
        }
    }

    /// Time since a problem was first seen.
    pub(super) fn since(&self, text: &str, now: Instant) -> Option<Duration> {
        let since = self.0.get(text)?;
        Some(now.saturating_duration_since(*since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_that_returns_begins_anew() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let texts = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let mut ages = Ages::default();
        ages.update(start, &texts(&["a", "b", "a"]));
        ages.update(start + second, &texts(&["b", "c"]));
        ages.update(start + second * 2, &texts(&["a", "b"]));
        let now = start + second * 5;
        assert_eq!(ages.since("a", now), Some(second * 3));
        assert_eq!(ages.since("b", now), Some(second * 5));
        assert_eq!(ages.since("c", now), None);
    }
}
