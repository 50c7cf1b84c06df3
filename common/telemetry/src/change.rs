// SPDX-License-Identifier: Apache-2.0

//! Identifiers of a change's trace and spans. Pure.

use opentelemetry::trace::TraceId;

pub use opentelemetry::trace::SpanId;

/// Key of the hashes: they are those of no other use.
const KEY: &[u8; 32] = b"portolan change of a table 1    ";

/// A change of the tables, as its controller numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Change {
    /// Epoch of the controller; never 0 for one.
    pub epoch: u64,
    /// Revision that the change made.
    pub revision: u64,
}

impl Change {
    /// The trace of the change, the same in every program.
    #[must_use]
    pub fn trace_id(self) -> TraceId {
        let mut bytes = [0; 16];
        self.hasher().finalize_xof().fill(&mut bytes);
        TraceId::from_bytes(bytes)
    }

    /// The span of a step of the change, at a node if it is one of many; the same in every program.
    #[must_use]
    pub fn span_id(self, step: &str, node: &str) -> SpanId {
        let mut hasher = self.hasher();
        for text in [step, node] {
            hasher.update(&(text.len() as u64).to_be_bytes());
            hasher.update(text.as_bytes());
        }
        let mut bytes = [0; 8];
        hasher.finalize_xof().fill(&mut bytes);
        SpanId::from_bytes(bytes)
    }

    /// Returns `true` if the change is one of a part of all, from 0 to 1: that of the greatest
    /// identifiers, as OpenTelemetry's samplers choose it.
    #[must_use]
    pub fn is_sampled(self, part: f64) -> bool {
        let bytes = self.trace_id().to_bytes();
        let random = bytes[9..]
            .iter()
            .fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
        random as f64 >= (1.0 - part) * (1_u64 << 56) as f64
    }

    fn hasher(self) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(KEY);
        hasher.update(&self.epoch.to_be_bytes());
        hasher.update(&self.revision.to_be_bytes());
        hasher
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGE: Change = Change {
        epoch: 7,
        revision: 9,
    };

    #[test]
    fn steps_nodes_and_changes_have_identifiers_of_their_own() {
        let other = Change {
            revision: 10,
            ..CHANGE
        };
        assert_ne!(CHANGE.trace_id(), other.trace_id());
        let ids = [
            CHANGE.span_id("send", "a"),
            CHANGE.span_id("send", "b"),
            CHANGE.span_id("receive", "a"),
            CHANGE.span_id("senda", ""),
            other.span_id("send", "a"),
        ];
        for (index, id) in ids.iter().enumerate() {
            assert!(!ids[..index].contains(id), "{index}");
        }
        assert_eq!(CHANGE.span_id("send", "a"), ids[0]);
    }

    #[test]
    fn a_part_of_the_changes_is_sampled() {
        let count = |part: f64| {
            let changes = (0..10_000).map(|revision| Change { epoch: 1, revision });
            changes.filter(|change| change.is_sampled(part)).count()
        };
        assert_eq!((count(0.0), count(1.0)), (0, 10_000));
        let tenth = count(0.1);
        assert!((900..1_100).contains(&tenth), "{tenth}");
        // A greater part has the changes of a smaller one.
        let changes = (0..1_000).map(|revision| Change { epoch: 1, revision });
        assert!(
            changes
                .filter(|it| it.is_sampled(0.1))
                .all(|it| it.is_sampled(0.5))
        );
    }
}
