// SPDX-License-Identifier: Apache-2.0

//! Spans of changes for OpenTelemetry: from the event at the source to the kernel of each node.
//!
//! A change is known to all programs by the controller's epoch and the revision, which are on the wire anyway. Trace
//! and span identifiers are hashes of them ([`Change`]), so that the spans of controller and agent meet in one trace
//! without another field of the protocol. A span is made after the fact, from times that are measured for other
//! reasons: without `--otlp-endpoint` nothing is made, kept or sent, and the cost is one look at [`spans`].

#![forbid(unsafe_code)]

mod args;
mod change;
mod exporter;
mod span;

pub use args::OtlpArgs;
pub use change::{Change, SpanId};
pub use exporter::{Credentials, OtlpError, Program, Spans, start, stop};
pub use span::Span;

use exporter::SPANS;

/// Where spans go; `None` if the program exports none.
#[must_use]
pub fn spans() -> Option<&'static Spans> {
    SPANS.get()
}

#[cfg(test)]
mod tests;
