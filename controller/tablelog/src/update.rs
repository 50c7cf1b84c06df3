// SPDX-License-Identifier: Apache-2.0

//! The input of the writer, and the observer of its output.

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
    /// An update whose tables the caller has encoded, outside of any lock.
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

    /// States the nodes that the source has (`true`) or has no longer (`false`).
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

/// An observer of updates: the registry of agents.
pub trait PublishObserver: Debug + Send + Sync {
    /// Called before the tables change, for a node that the source has (`is_present`) or has no
    /// longer.
    fn node_changed(&self, node: &NodeKey, is_present: bool);

    /// Called when a cluster has a new head. The first event of the update was seen at `observed`.
    fn head_changed(&self, cluster: &Arc<str>, head: u64, observed: Instant);
}
