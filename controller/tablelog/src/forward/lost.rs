// SPDX-License-Identifier: Apache-2.0

//! Losses of a transition: parts of the published tables that it lacks.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_model::{Loss, RecordKey, TableSize};

/// Parts of the published tables that the last Commit lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lost {
    /// Records that are deleted or left without endpoints.
    pub records: BTreeSet<RecordKey>,
    /// Nodes that have no Director any more. All facts of such a node stay as they are while its
    /// Director is withheld: they are forwarded as one piece.
    pub directors: BTreeSet<Arc<str>>,
}

impl Lost {
    /// The part of a loss of this size that records make up: each Director counts as one record.
    #[must_use]
    pub fn of_records(&self, loss: Loss) -> Loss {
        let without_directors = |size: TableSize| TableSize {
            records: size.records.saturating_sub(self.directors.len()),
            ..size
        };
        Loss {
            lost: without_directors(loss.lost),
            of: without_directors(loss.of),
        }
    }

    /// The Directors alone, and the size of their loss.
    #[must_use]
    pub fn without_records(self, loss: Loss) -> (Self, Loss) {
        let lost = TableSize {
            records: self.directors.len(),
            endpoints: 0,
        };
        let directors = Self {
            records: BTreeSet::new(),
            ..self
        };
        (directors, Loss { lost, ..loss })
    }

    /// Returns `true` if nothing is lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.directors.is_empty()
    }
}
