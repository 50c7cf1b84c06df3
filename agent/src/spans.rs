// SPDX-License-Identifier: Apache-2.0

//! Spans of a change on its way through the agent: `receive`, `plan`, `kernel`, `acknowledge`. None without
//! `--otlp-endpoint`.

use std::time::Instant;

use portolan_runtime::Vital;
use portolan_telemetry::{Change, OtlpArgs, OtlpError, Program, Span, spans};
use portolan_tls::POLL;

use crate::subscribe::{Committed, Report, Subscribed};
use crate::sync::Outcome;

/// Starts the export of a node's spans, if the flags ask for it.
///
/// # Errors
/// If the exporter cannot be made.
pub(crate) fn start(args: &OtlpArgs, node: &str, vital: &Vital) -> Result<(), OtlpError> {
    let program = Program {
        name: "portolan-agent",
        version: env!("CARGO_PKG_VERSION"),
        instance: node,
    };
    if let Some(files) = portolan_telemetry::start(args, program)? {
        let follow = files.follow(POLL, vital.ending.clone());
        vital.spawn("credentials for the collector", follow);
    }
    Ok(())
}

/// The time, if there are spans.
pub(crate) fn now() -> Option<Instant> {
    spans().map(|_| Instant::now())
}

/// A table has been received: its last frame arrived at `began`.
pub(crate) fn received(committed: &Committed, began: Option<Instant>) {
    let (Some(spans), Some(began)) = (spans(), began) else {
        return;
    };
    let change = Change {
        epoch: committed.epoch,
        revision: committed.revision,
    };
    let node = spans.instance();
    let span = Span::new("receive", began, Instant::now())
        .at(node)
        .after("send", node)
        .consumer();
    let records = i64::try_from(committed.table.records.len()).unwrap_or(i64::MAX);
    let span = span
        .with("portolan.snapshot", committed.snapshot)
        .with("portolan.records", records);
    spans.export(change, span);
}

/// The last table whose programming has a span. A table is programmed again after an error, and with other health.
#[derive(Debug, Default)]
pub(crate) struct LastProgrammed(Option<(u64, u64)>);

impl LastProgrammed {
    /// A table was tried, from `began` to now.
    pub(crate) fn programmed(&mut self, target: &Subscribed, outcome: &Outcome, began: Instant) {
        let Some(spans) = spans() else {
            return;
        };
        let (epoch, revision) = (target.epoch, target.revision);
        if self.0.replace((epoch, revision)) == Some((epoch, revision)) {
            return;
        }
        let node = spans.instance();
        let end = Instant::now();
        let planned = (began + outcome.planned_in).min(end);
        let plan = Span::new("plan", began, planned).at(node);
        let error = outcome.errors.first().map(|(_, error)| error.clone());
        let objects = i64::try_from(outcome.objects).unwrap_or(i64::MAX);
        let kernel = Span::new("kernel", planned, end)
            .at(node)
            .after("receive", node)
            .failed(error)
            .with("portolan.objects", objects);
        let change = Change { epoch, revision };
        spans.export(change, plan.after("receive", node));
        spans.export(change, kernel);
    }
}

/// An acknowledgement was handed to the stream, which was due at `began`.
pub(crate) fn acknowledged(report: Option<&Report>, began: Instant) {
    let (Some(spans), Some(report)) = (spans(), report) else {
        return;
    };
    let change = Change {
        epoch: report.epoch,
        revision: report.revision,
    };
    let node = spans.instance();
    let span = Span::new("acknowledge", began, Instant::now()).at(node);
    spans.export(change, span.after("kernel", node).producer());
}
