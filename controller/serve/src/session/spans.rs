// SPDX-License-Identifier: Apache-2.0

//! The span `send` of a change at one node. None without `--otlp-endpoint`.

use std::time::Instant;

use portolan_telemetry::{Change, Span, spans};

/// The time, if there are spans.
pub(super) fn now() -> Option<Instant> {
    spans().map(|_| Instant::now())
}

/// A change has been handed to a node's connection, from `began` to now.
pub(super) fn sent(change: Change, node: &str, began: Instant) {
    if let Some(spans) = spans() {
        let span = Span::new("send", began, Instant::now()).at(node);
        spans.export(change, span.within("publish").producer());
    }
}
