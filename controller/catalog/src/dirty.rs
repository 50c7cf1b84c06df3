//! What a change to the catalog makes dirty.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Whether something went away that connections may still be sent to: a Service, an endpoint,
    /// or an endpoint's readiness. Says how soon, not what: of no account where nothing is dirty.
    pub urgent: bool,
    /// By Service, what triggered the changes of its slices, in milliseconds of Unix time. As
    /// upstream, a slice that is deleted takes along what its Service has here.
    pub triggers: BTreeMap<ObjectKey, Vec<u64>>,
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
            urgent: _,
            // Only with a Service that is dirty.
            triggers: _,
        } = self;
        services.is_empty()
            && nodes.is_empty()
            && node_weights.is_empty()
            && pod_weights.is_empty()
            && !problems
    }
}
