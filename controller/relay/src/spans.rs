// SPDX-License-Identifier: Apache-2.0

//! Spans of a change that a relay passes on: `receive` and `forward` in the trace of the controller, and `change`,
//! whose attributes name it, in that of the relay's own agents. None without `--otlp-endpoint`.

use std::time::Instant;

use portolan_serve::RELAY;
use portolan_tablelog::Committed;
use portolan_telemetry::{Change, Span, spans};

/// A change was published by the relay, from `began` to now.
pub(crate) fn forwarded(name: &str, upstream: &Committed, own: Change, began: Instant) {
    let Some(spans) = spans() else {
        return;
    };
    let above = Change {
        epoch: upstream.epoch,
        revision: upstream.revision,
    };
    let end = Instant::now();
    let node = format!("{RELAY}{name}");
    let forward = Span::new("forward", began, end).at(&node);
    spans.export(above, forward.after("send", &node).consumer());
    let id = above.trace_id().to_string();
    let span = Span::new("change", began, end).with("portolan.upstream_trace", id);
    spans.export(own, span);
    spans.export(own, Span::new("publish", began, end).within("change"));
}
