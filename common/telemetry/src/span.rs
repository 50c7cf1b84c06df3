// SPDX-License-Identifier: Apache-2.0

//! One finished step of a change.

use std::time::{Duration, Instant, SystemTime};

use opentelemetry::trace::SpanKind;
use opentelemetry::{KeyValue, Value};

/// One finished step of a change.
#[derive(Debug, Clone)]
pub struct Span {
    pub(crate) step: &'static str,
    pub(crate) node: String,
    /// Step and node of its parent; `None` for the whole change.
    pub(crate) parent: Option<(&'static str, String)>,
    pub(crate) kind: SpanKind,
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) error: Option<String>,
    pub(crate) attributes: Vec<KeyValue>,
}

impl Span {
    /// A step between two times, with no parent.
    #[must_use]
    pub fn new(step: &'static str, start: Instant, end: Instant) -> Self {
        let now = (Instant::now(), SystemTime::now());
        Self {
            step,
            node: String::new(),
            parent: None,
            kind: SpanKind::Internal,
            start: wall(start, now),
            end: wall(end, now),
            error: None,
            attributes: Vec::new(),
        }
    }

    /// Begins at an earlier time of the wall clock, if that is earlier.
    #[must_use]
    pub fn since(mut self, start: SystemTime) -> Self {
        self.start = self.start.min(start);
        self
    }

    /// A step at one node.
    #[must_use]
    pub fn at(mut self, node: &str) -> Self {
        node.clone_into(&mut self.node);
        self
    }

    /// A part of a step that is no node's.
    #[must_use]
    pub fn within(self, step: &'static str) -> Self {
        self.after(step, "")
    }

    /// A part of a step, or caused by it, at a node.
    #[must_use]
    pub fn after(mut self, step: &'static str, node: &str) -> Self {
        self.parent = Some((step, node.to_owned()));
        self
    }

    /// A message that leaves the program.
    #[must_use]
    pub fn producer(mut self) -> Self {
        self.kind = SpanKind::Producer;
        self
    }

    /// A message from another program.
    #[must_use]
    pub fn consumer(mut self) -> Self {
        self.kind = SpanKind::Consumer;
        self
    }

    /// The step failed, if there is an error.
    #[must_use]
    pub fn failed(mut self, error: Option<String>) -> Self {
        self.error = error;
        self
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push(KeyValue::new(name, value));
        self
    }
}

/// The wall clock's time at an instant, given both clocks now.
fn wall(at: Instant, (instant, wall): (Instant, SystemTime)) -> SystemTime {
    let ago = instant.saturating_duration_since(at);
    let ahead = at.saturating_duration_since(instant);
    let past = wall.checked_sub(ago).unwrap_or(wall);
    past.checked_add(ahead.min(Duration::from_secs(1)))
        .unwrap_or(past)
}
