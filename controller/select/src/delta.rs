// SPDX-License-Identifier: Apache-2.0

//! The changes of the nodes' tables by one transition of the catalog.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_model::{NodeInfo, NodeKey, NodeOverlay, Record, RecordKey};

/// One atomic transition of all tables. `None` stands for a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableDelta {
    /// Shared records.
    pub records: BTreeMap<RecordKey, Option<Arc<Record>>>,
    /// The nodes' overlays.
    pub lists: BTreeMap<NodeKey, BTreeMap<RecordKey, Option<Arc<NodeOverlay>>>>,
    /// The nodes' information.
    pub nodes: BTreeMap<NodeKey, NodeInfo>,
}

impl TableDelta {
    /// Returns `true` if nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.lists.is_empty() && self.nodes.is_empty()
    }
}
