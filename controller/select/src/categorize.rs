//! Upstream's endpoint selection for one node (`pkg/proxy/topology.go`, `CategorizeEndpoints`).
//!
//! [`crate::project`] computes the same for all nodes at once; a property test holds it to this.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_catalog::{EndpointRef, TrafficPolicy};

/// What selection looks at of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a> {
    /// Its name; empty is no node's.
    pub name: &'a str,
    /// Its zone, if it has one that is not empty.
    pub zone: Option<&'a str>,
}

/// What selection looks at of a Service port, in one family.
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
    /// For ways in with policy Cluster; `None` if there are none.
    pub cluster: Option<BTreeSet<SocketAddr>>,
    /// For ways in with policy Local; `None` if there are none.
    pub local: Option<BTreeSet<SocketAddr>>,
    /// All that the node needs to know.
    pub all: BTreeSet<SocketAddr>,
    /// Whether any node has an endpoint that could be used.
    pub has_any: bool,
}

/// How hints narrow the cluster list down on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topology {
    All,
    SameNode,
    SameZone,
}

/// Whether an endpoint may be used when none is ready (KEP-1669).
pub(crate) fn still_serving(endpoint: &EndpointRef<'_>) -> bool {
    endpoint.serving && endpoint.terminating
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
    let topology = topology(endpoints, node);
    let pick = |wanted: &dyn Fn(&EndpointRef<'_>) -> bool| -> BTreeSet<SocketAddr> {
        endpoints
            .iter()
            .filter(|(_, e)| wanted(e))
            .map(|(address, _)| *address)
            .collect()
    };
    let is_local = |e: &EndpointRef<'_>| e.node.is_some_and(|name| **name == *node.name);

    let mut has_any = false;
    let cluster = uses.cluster.then(|| {
        let ready = pick(&|e| e.ready && available(e, topology, node));
        if ready.is_empty() {
            pick(&still_serving)
        } else {
            ready
        }
    });
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
    let local_ready = pick(&|e| e.ready && is_local(e));
    let fell_back = local_ready.is_empty();
    let local = if fell_back {
        pick(&|e| still_serving(e) && is_local(e))
    } else {
        local_ready
    };
    let all = match &cluster {
        None => local.clone(),
        Some(cluster) if topology == Topology::All && (!fell_back || local.is_empty()) => {
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

/// Hints count all or nothing: one ready endpoint without them, or none for this node, and
/// everything may be used. Endpoints that are not ready have no say.
fn topology(endpoints: &BTreeMap<SocketAddr, EndpointRef<'_>>, node: NodeView<'_>) -> Topology {
    let mut ready = endpoints.values().filter(|e| e.ready).peekable();
    if ready.peek().is_none() {
        return Topology::All;
    }
    let ready: Vec<_> = ready.collect();
    let hinted = |mode| {
        ready.iter().all(|e| has_hint(e, mode)) && ready.iter().any(|e| available(e, mode, node))
    };
    if hinted(Topology::SameNode) {
        Topology::SameNode
    } else if node.zone.is_some() && hinted(Topology::SameZone) {
        Topology::SameZone
    } else {
        Topology::All
    }
}

fn has_hint(endpoint: &EndpointRef<'_>, mode: Topology) -> bool {
    match mode {
        Topology::All => true,
        Topology::SameNode => endpoint.node_hints.is_some(),
        Topology::SameZone => endpoint.zone_hints.is_some(),
    }
}

fn available(endpoint: &EndpointRef<'_>, mode: Topology, node: NodeView<'_>) -> bool {
    let names = |hints: Option<&[Arc<str>]>, wanted: Option<&str>| {
        let mut hints = hints.into_iter().flatten();
        hints.any(|name| Some(&**name) == wanted)
    };
    match mode {
        Topology::All => true,
        Topology::SameNode => names(endpoint.node_hints, Some(node.name)),
        Topology::SameZone => names(endpoint.zone_hints, node.zone),
    }
}

#[cfg(test)]
mod tests;
