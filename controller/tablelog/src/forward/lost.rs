// SPDX-License-Identifier: Apache-2.0

//! Losses of a transition: parts of the published tables that it lacks.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_model::RecordKey;

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
    /// Returns `true` if nothing is lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.directors.is_empty()
    }
}
