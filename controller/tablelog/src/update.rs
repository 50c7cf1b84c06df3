//! The input of the writer, and those that learn of its output.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use portolan_model::NodeKey;
use portolan_select::TableDelta;

use crate::log::Prepared;
use crate::origin::Origin;

/// One update of the tables.
#[derive(Debug)]
pub struct Update {
    pub(crate) tables: Prepared,
    pub(crate) origin: Origin,
    pub(crate) nodes: Vec<(NodeKey, bool)>,
}

impl Update {
    /// An update with everything encoded already: in the caller's time, without a lock.
    #[must_use]
    pub fn new(tables: Prepared) -> Self {
        Self {
            tables,
            origin: Origin::default(),
            nodes: Vec::new(),
        }
    }

    /// States the events that made the update.
    #[must_use]
    pub fn from_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// States which nodes the source has (`true`) and which it has no longer.
    #[must_use]
    pub fn with_nodes(self, nodes: impl IntoIterator<Item = (NodeKey, bool)>) -> Self {
        Self {
            nodes: nodes.into_iter().collect(),
            ..self
        }
    }
}

impl From<&TableDelta> for Update {
    fn from(delta: &TableDelta) -> Self {
        Self::new(Prepared::from(delta))
    }
}

/// Learns of each update: the registry of agents.
pub trait PublishObserver: Debug + Send + Sync {
    /// The source has a node, or had it and has it no longer. Called before the tables change.
    fn node_changed(&self, node: &NodeKey, is_present: bool);

    /// A cluster has a new head. The first event of the update was seen at `observed`.
    fn head_changed(&self, cluster: &Arc<str>, head: u64, observed: Instant);
}
