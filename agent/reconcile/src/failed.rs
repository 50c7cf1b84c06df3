//! What the kernel refused and lacks since, by record, and when it is tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portolan_model::{NodeTable, RecordKey};

/// What went wrong, with the record that it belongs to where it belongs to one.
pub(crate) type RecordError = (Option<RecordKey>, String);

/// What did not work at its last attempt. What belongs to no record is tried again with everything.
#[derive(Debug, Default)]
pub(crate) struct FailedRecords(BTreeMap<Option<RecordKey>, FailedRecord>);

#[derive(Debug, Default)]
struct FailedRecord {
    messages: Vec<String>,
    /// How many attempts have failed in a row.
    attempts: u32,
    /// When the next attempt is; unknown until somebody asks.
    at: Option<Instant>,
    /// Whether the next reconciliation tries again.
    is_due: bool,
    /// Whether it has failed right after the kernel was read.
    is_stubborn: bool,
}

impl FailedRecords {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, record: &RecordKey) -> bool {
        self.0.contains_key(&Some(record.clone()))
    }

    pub(crate) fn errors(&self) -> impl Iterator<Item = RecordError> {
        self.0.iter().flat_map(|(record, failed)| {
            let messages = failed.messages.iter();
            messages.map(move |message| (record.clone(), message.clone()))
        })
    }

    /// Whether this has failed right after the kernel was read: then what was known is not why.
    pub(crate) fn is_stubborn(&self, record: Option<&RecordKey>) -> bool {
        let failed = self.0.get(&record.cloned());
        failed.is_some_and(|failed| failed.is_stubborn)
    }

    /// Whether something is due that belongs to no record.
    pub(crate) fn needs_all(&self) -> bool {
        self.0.get(&None).is_some_and(|failed| failed.is_due)
    }

    /// The records of which something is due.
    pub(crate) fn due(&self) -> impl Iterator<Item = &RecordKey> {
        let due = self.0.iter().filter(|(_, failed)| failed.is_due);
        due.filter_map(|(record, _)| record.as_ref())
    }

    /// Takes note of an attempt at some records, or at everything, and of what failed then. `is_fresh`
    /// if the kernel was read right before.
    pub(crate) fn note(
        &mut self,
        tried: Option<&BTreeSet<RecordKey>>,
        errors: Vec<RecordError>,
        is_fresh: bool,
        table: &NodeTable,
    ) {
        for (record, failed) in &mut self.0 {
            let was_tried = match (tried, record) {
                (None, _) => true,
                (Some(tried), Some(record)) => tried.contains(record),
                (Some(_), None) => false,
            };
            if was_tried {
                failed.messages.clear();
            }
        }
        for (record, message) in errors {
            let failed = self.0.entry(record).or_default();
            if failed.messages.is_empty() {
                failed.attempts += 1;
                (failed.at, failed.is_due) = (None, false);
            }
            failed.is_stubborn |= is_fresh;
            if !failed.messages.contains(&message) {
                failed.messages.push(message);
            }
        }
        self.0.retain(|record, failed| {
            let is_there = record
                .as_ref()
                .is_none_or(|r| table.records.contains_key(r));
            is_there && !failed.messages.is_empty()
        });
    }

    /// Lets the next reconciliation try again what is due at a time.
    pub(crate) fn try_again(&mut self, now: Instant) {
        for failed in self.0.values_mut() {
            failed.is_due = failed.at.is_none_or(|at| at <= now);
        }
    }

    /// When something is due next: after a pause that doubles with each attempt that fails, from the
    /// first to the longest.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        first: Duration,
        longest: Duration,
    ) -> Option<Instant> {
        let next = self.0.values_mut().map(|failed| {
            let doublings = failed.attempts.saturating_sub(1).min(16);
            let pause = first.saturating_mul(1 << doublings).min(longest);
            *failed.at.get_or_insert(now + pause)
        });
        next.min()
    }
}
