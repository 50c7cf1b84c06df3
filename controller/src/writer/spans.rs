// SPDX-License-Identifier: Apache-2.0

//! Spans of a published change: the whole `change`, and its parts `source`, `compute` and `publish`. None without
//! `--otlp-endpoint`.

use std::time::{Duration, Instant, SystemTime};

use portolan_select::TableDelta;
use portolan_tablelog::{ClusterOrigin, Origin, Outcome};
use portolan_telemetry::{Change, Span, spans};

/// Times of a change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// The writer began to compute.
    pub(super) started: Instant,
    /// The differences were known.
    pub(super) computed: Instant,
}

/// A change was published now.
pub(super) fn published(
    epoch: u64,
    outcome: &Outcome,
    origin: &Origin,
    delta: &TableDelta,
    times: Times,
) {
    let Some(spans) = spans() else {
        return;
    };
    let end = Instant::now();
    let Times { started, computed } = times;
    let observed = origin.observed.unwrap_or(started).min(started);
    for (cluster, revision) in &outcome.heads {
        let change = Change {
            epoch,
            revision: *revision,
        };
        if !spans.wants(change) {
            continue;
        }
        let triggered = origin.clusters.get(cluster).and_then(triggered);
        let since = |span: Span| match triggered {
            Some(triggered) => span.since(triggered),
            None => span,
        };
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let whole = since(Span::new("change", observed, end))
            .with("portolan.cluster", cluster.to_string())
            .with("portolan.records", count(delta.records.len()))
            .with("portolan.nodes", count(delta.lists.len()));
        spans.export(change, whole);
        let source = since(Span::new("source", observed, started));
        let compute = Span::new("compute", started, computed);
        let publish = Span::new("publish", computed, end);
        for part in [source, compute, publish] {
            spans.export(change, part.within("change"));
        }
    }
}

/// The first trigger of a change of endpoints, by the wall clock of whoever wrote it.
fn triggered(origin: &ClusterOrigin) -> Option<SystemTime> {
    let first = origin.trigger_times_ms.iter().min()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(*first))
}
