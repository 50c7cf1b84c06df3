//! What one catalog transition changed in the tables of the nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_model::{NodeInfo, NodeKey, NodeOverlay, Record, RecordKey};

/// One atomic transition of all tables. `None` means that the entry is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableDelta {
    /// Shared records.
    pub records: BTreeMap<RecordKey, Option<Arc<Record>>>,
    /// What nodes have of their own.
    pub lists: BTreeMap<NodeKey, BTreeMap<RecordKey, Option<Arc<NodeOverlay>>>>,
    /// What is known of nodes.
    pub nodes: BTreeMap<NodeKey, NodeInfo>,
}

impl TableDelta {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.lists.is_empty() && self.nodes.is_empty()
    }
}
