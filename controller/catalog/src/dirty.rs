//! What a change to the catalog makes dirty.

use std::collections::BTreeSet;

use portolan_model::NodeKey;

use crate::ObjectKey;

/// What has to be projected again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirtySet {
    /// Services whose records or node lists may differ now.
    pub services: BTreeSet<ObjectKey>,
    /// Nodes of which something else may be known now.
    pub nodes: BTreeSet<NodeKey>,
    /// Nodes that give their endpoints another weight now; see
    /// [`Catalog::weighed_by`](crate::Catalog::weighed_by).
    pub node_weights: BTreeSet<NodeKey>,
    /// Pods that have another weight now.
    pub pod_weights: BTreeSet<ObjectKey>,
    /// Whether the catalog's problems changed.
    pub problems: bool,
}

impl DirtySet {
    /// Whether nothing has to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            services,
            nodes,
            node_weights,
            pod_weights,
            problems,
        } = self;
        services.is_empty()
            && nodes.is_empty()
            && node_weights.is_empty()
            && pod_weights.is_empty()
            && !problems
    }
}
