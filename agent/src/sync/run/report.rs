// SPDX-License-Identifier: Apache-2.0

//! Outcome of a reconciliation, in the log and for the controller.

use std::collections::HashSet;

use portolan_model::RecordKey;
use tokio::sync::watch;

use crate::subscribe::{Report, Subscribed};
use crate::sync::Outcome;

/// An error, with its record if it belongs to one.
type RecordError = (Option<RecordKey>, String);

/// Limit of new errors logged at a time.
const MAX_LOGGED_ERRORS: usize = 64;

/// Reports the outcome for a table. With a broken family it counts for the last programmed table.
pub(super) fn report(
    target: &Subscribed,
    last: Option<(u64, u64)>,
    outcome: &Outcome,
    reports: &watch::Sender<Option<Report>>,
) {
    if outcome.objects > 0 {
        tracing::info!(
            revision = target.revision,
            objects = outcome.objects,
            duration_ms = outcome.duration.as_secs_f64() * 1e3,
            errors = outcome.errors.len(),
            "programmed"
        );
    }
    let report = last.map(|(epoch, revision)| Report {
        epoch,
        revision,
        duration: target.received_at.elapsed(),
        errors: outcome.errors.clone(),
        checked: target.checked,
    });
    let before = reports.borrow().as_ref().map(|last| last.errors.clone());
    log_new_errors(&before.unwrap_or_default(), &outcome.errors);
    if report.is_some() {
        reports.send_replace(report);
    }
}

/// Logs errors that are new since the last reconciliation.
fn log_new_errors(before: &[RecordError], now: &[RecordError]) {
    let before: HashSet<&RecordError> = before.iter().collect();
    let mut new = now.iter().filter(|error| !before.contains(error));
    for (record, message) in new.by_ref().take(MAX_LOGGED_ERRORS) {
        let record = record.as_ref().map(ToString::to_string);
        tracing::warn!(record = record.unwrap_or_default(), "{message}");
    }
    let more = new.count();
    if more > 0 {
        tracing::warn!(more, "further errors: see /debug");
    }
}
