// SPDX-License-Identifier: Apache-2.0

//! The part of the tables that a change to the catalog affects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::NodeKey;

use crate::ObjectKey;

/// Services and nodes to project again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirtySet {
    /// Services whose records or node lists may differ now.
    pub services: BTreeSet<ObjectKey>,
    /// Those of them that changed themselves, beyond their endpoints and what others claim.
    pub objects: BTreeSet<ObjectKey>,
    /// Nodes whose information may have changed.
    pub nodes: BTreeSet<NodeKey>,
    /// Whether Nodes have other addresses now, or Services others that they were given
    /// ([`Catalog::service_given_address`](crate::Catalog::service_given_address)).
    pub addresses: bool,
    /// Clusters whose Nodes may be other gateways now ([`HostFacts`](crate::HostFacts)).
    pub hosts: BTreeSet<Arc<str>>,
    /// Nodes that give their endpoints another weight now; see
    /// [`Catalog::weighed_by`](crate::Catalog::weighed_by).
    pub node_weights: BTreeSet<NodeKey>,
    /// Pods that have another weight now.
    pub pod_weights: BTreeSet<ObjectKey>,
    /// Whether namespaces or properties changed, on which all imports depend.
    pub imports: bool,
    /// Exports that changed, of which imports are made.
    pub exports: BTreeSet<ObjectKey>,
    /// Whether ServiceImports, or statuses of ServiceExports, changed, came or went. No table depends on them.
    pub observed: bool,
    /// Whether load balancers changed.
    pub load_balancers: bool,
    /// Whether the catalog's problems changed.
    pub problems: bool,
    /// Whether a possible destination of connections went away: a Service, an endpoint, or an
    /// endpoint's readiness. Affects the time of a flush only.
    pub urgent: bool,
    /// The trigger times of each Service's changed slices, in milliseconds of Unix time. As
    /// upstream, a deleted slice removes those of its Service.
    pub triggers: BTreeMap<ObjectKey, Vec<u64>>,
}

impl DirtySet {
    /// Returns `true` if nothing is dirty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            services,
            nodes,
            hosts,
            node_weights,
            pod_weights,
            imports,
            exports,
            load_balancers,
            problems,
            urgent: _,
            // Whoever writes these objects looks by itself.
            observed: _,
            // Only with a Service that is dirty.
            objects: _,
            // Whoever judges other addresses by these looks by itself.
            addresses: _,
            triggers: _,
        } = self;
        services.is_empty()
            && nodes.is_empty()
            && hosts.is_empty()
            && node_weights.is_empty()
            && pod_weights.is_empty()
            && !imports
            && exports.is_empty()
            && !load_balancers
            && !problems
    }
}
