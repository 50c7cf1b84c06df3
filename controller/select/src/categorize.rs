// SPDX-License-Identifier: Apache-2.0

//! Upstream's endpoint selection for one node (`pkg/proxy/topology.go`, `CategorizeEndpoints`).
//!
//! [`crate::project`] computes the same for all nodes at once; a property test holds it to this.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use portolan_catalog::{EndpointRef, TrafficPolicy};
use portolan_model::Lists;

use crate::rule::{Rule, Topology, still_serving};

/// The fields of a node that selection uses.
#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a> {
    /// Its name; empty is no node's.
    pub name: &'a str,
    /// Its zone, if it has one that is not empty.
    pub zone: Option<&'a str>,
}

/// The fields of a Service port that selection uses, for one family.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Uses {
    /// Some way in may use all of the cluster's endpoints.
    pub(crate) cluster: bool,
    /// Some way in may use the node's own endpoints only.
    pub(crate) local: bool,
}

impl Uses {
    pub(crate) fn new(
        internal: TrafficPolicy,
        external: TrafficPolicy,
        externally_accessible: bool,
    ) -> Self {
        let internal_local = internal == TrafficPolicy::Local;
        let external_local = external == TrafficPolicy::Local;
        Self {
            cluster: !internal_local || externally_accessible,
            local: internal_local || (external_local && externally_accessible),
        }
    }
}

/// The endpoints of one Service port in one family, as one node sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Categories {
    /// The list of frontends with policy Cluster; `None` without such a frontend.
    pub cluster: Option<BTreeSet<SocketAddr>>,
    /// The list of frontends with policy Local; `None` without such a frontend.
    pub local: Option<BTreeSet<SocketAddr>>,
    /// All endpoints that the node needs.
    pub all: BTreeSet<SocketAddr>,
    /// Whether any node has a usable endpoint.
    pub has_any: bool,
}

/// Selects endpoints as kube-proxy does on a node.
#[must_use]
pub fn categorize(
    endpoints: &BTreeMap<SocketAddr, EndpointRef<'_>>,
    internal: TrafficPolicy,
    external: TrafficPolicy,
    externally_accessible: bool,
    node: NodeView<'_>,
) -> Categories {
    if endpoints.is_empty() {
        return Categories::default();
    }
    let uses = Uses::new(internal, external, externally_accessible);
    let list = |rule: Rule<'_>| -> BTreeSet<SocketAddr> {
        let chosen = endpoints.iter().filter(|(_, e)| rule.judge(e).is_in());
        chosen.map(|(address, _)| *address).collect()
    };
    let of_cluster = Rule::new(endpoints, Lists::Cluster, node);

    let mut has_any = false;
    let cluster = uses.cluster.then(|| list(of_cluster));
    has_any |= cluster.as_ref().is_some_and(|list| !list.is_empty());
    if !uses.local {
        let all = cluster.clone().unwrap_or_default();
        return Categories {
            cluster,
            local: None,
            all,
            has_any,
        };
    }

    has_any |= endpoints.values().any(|e| e.ready || still_serving(e));
    let of_node = Rule::new(endpoints, Lists::Local, node);
    let local = list(of_node);
    let all = match &cluster {
        None => local.clone(),
        Some(cluster)
            if of_cluster.topology() == Topology::All
                && (!of_node.fell_back() || local.is_empty()) =>
        {
            cluster.clone()
        }
        Some(cluster) => cluster.union(&local).copied().collect(),
    };
    Categories {
        cluster,
        local: Some(local),
        all,
        has_any,
    }
}

#[cfg(test)]
mod tests;
