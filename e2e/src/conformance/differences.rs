// SPDX-License-Identifier: Apache-2.0

//! Known differences of a real kube-proxy, with reasons.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context as _, Result, ensure};

use super::run::Outcome;

/// A row in which kube-proxy's result differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The row's name.
    pub row: String,
    /// The observation.
    pub seen: String,
}

impl From<&Outcome> for Difference {
    fn from(outcome: &Outcome) -> Self {
        Self {
            row: outcome.row.to_string(),
            seen: outcome.observed.to_string(),
        }
    }
}

/// The known differences, grouped by reason.
///
/// A list is text: a reason is one or more lines that start with `#`, under it a line
/// `PATTERN: WHAT IS SEEN` for each group of rows, where `*` in the pattern stands for any text
/// within one part of a row's name, and in the observation for any text.
#[derive(Clone, Debug, Default)]
pub struct KnownDifferences {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    pattern: String,
    seen: String,
    reason: String,
}

impl KnownDifferences {
    /// Reads a list.
    ///
    /// # Errors
    /// If a line is neither a reason nor an entry, or an entry has no reason above it.
    pub fn parse(text: &str) -> Result<Self> {
        let mut reason = String::new();
        let mut in_reason = false;
        let mut entries = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(comment) = line.strip_prefix('#') {
                if !in_reason {
                    reason.clear();
                }
                in_reason = true;
                reason.push_str(comment);
                continue;
            }
            in_reason = false;
            ensure!(!reason.is_empty(), "no reason above {line:?}");
            let (pattern, seen) = line
                .split_once(": ")
                .with_context(|| format!("not `PATTERN: WHAT IS SEEN`: {line:?}"))?;
            entries.push(Entry {
                pattern: pattern.into(),
                seen: seen.into(),
                reason: reason.trim().into(),
            });
        }
        Ok(Self { entries })
    }

    /// The reason for a difference, if it is known.
    #[must_use]
    pub fn reason(&self, difference: &Difference) -> Option<&str> {
        let entry = self.entries.iter().find(|entry| entry.covers(difference))?;
        Some(&entry.reason)
    }

    /// Entries that none of the differences needs.
    #[must_use]
    pub fn unused(&self, differences: &[Difference]) -> BTreeSet<String> {
        let unused = |entry: &&Entry| !differences.iter().any(|d| entry.covers(d));
        let unused = self.entries.iter().filter(unused);
        unused.map(ToString::to_string).collect()
    }
}

impl Entry {
    fn covers(&self, difference: &Difference) -> bool {
        let (row, pattern) = (difference.row.split('/'), self.pattern.split('/'));
        row.clone().count() == pattern.clone().count()
            && row
                .zip(pattern)
                .all(|(text, pattern)| matches(pattern, text))
            && matches(&self.seen, &difference.seen)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.pattern, self.seen)
    }
}

/// True if the text is the pattern with each `*` replaced by something.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .any(|at| matches(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(row: &str, seen: &str) -> Difference {
        Difference {
            row: row.into(),
            seen: seen.into(),
        }
    }

    #[test]
    fn a_pattern_covers_what_it_says_and_no_more() {
        let list = "# why\n# indeed\na/x-*/tcp: timed out\n\n# other\na/*/udp: answered by *\n";
        let known = KnownDifferences::parse(list).unwrap();
        let reason = |row, seen| known.reason(&difference(row, seen));
        assert_eq!(reason("a/x-1/tcp", "timed out"), Some("why indeed"));
        assert_eq!(reason("a/q/udp", "answered by b"), Some("other"));
        assert_eq!(reason("a/x-1/tcp", "refused"), None);
        assert_eq!(reason("a/x-1/q/tcp", "timed out"), None);
        assert_eq!(reason("a/y-1/tcp", "timed out"), None);
        let unused = known.unused(&[difference("a/x-1/tcp", "timed out")]);
        assert_eq!(unused, ["a/*/udp: answered by *".to_owned()].into());
    }

    #[test]
    fn an_entry_needs_a_reason() {
        assert!(KnownDifferences::parse("a/b: refused\n").is_err());
        assert!(KnownDifferences::parse("# why\na/b\n").is_err());
    }
}
