// SPDX-License-Identifier: Apache-2.0

//! Records with refused steps, and the times of their retries.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portolan_model::{NodeTable, RecordKey};

/// An error, with its record if it belongs to one.
pub(crate) type RecordError = (Option<RecordKey>, String);

/// Failures of the last attempts. Those without a record are retried with all records.
#[derive(Debug, Default)]
pub(crate) struct FailedRecords(BTreeMap<Option<RecordKey>, FailedRecord>);

#[derive(Debug, Default)]
struct FailedRecord {
    messages: Vec<String>,
    /// Failed attempts in a row.
    attempts: u32,
    /// Time of the next attempt; set when it is asked for.
    at: Option<Instant>,
    /// Whether the next reconciliation tries again.
    is_due: bool,
    /// Whether an attempt failed right after the kernel was read.
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

    /// Returns `true` if an attempt failed right after the kernel was read: a stale observed state
    /// is not the reason.
    pub(crate) fn is_stubborn(&self, record: Option<&RecordKey>) -> bool {
        let failed = self.0.get(&record.cloned());
        failed.is_some_and(|failed| failed.is_stubborn)
    }

    /// Returns `true` if a failure without a record is due.
    pub(crate) fn needs_all(&self) -> bool {
        self.0.get(&None).is_some_and(|failed| failed.is_due)
    }

    /// The records that are due.
    pub(crate) fn due(&self) -> impl Iterator<Item = &RecordKey> {
        let due = self.0.iter().filter(|(_, failed)| failed.is_due);
        due.filter_map(|(record, _)| record.as_ref())
    }

    /// Records an attempt at some records, or at all, with its errors. `is_fresh` if the kernel was read
    /// right before.
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

    /// Marks the failures that are due at a time for the next reconciliation.
    pub(crate) fn try_again(&mut self, now: Instant) {
        for failed in self.0.values_mut() {
            failed.is_due = failed.at.is_none_or(|at| at <= now);
        }
    }

    /// Time of the next retry, after a pause that doubles with each failed attempt, from `first` to
    /// `longest`.
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
