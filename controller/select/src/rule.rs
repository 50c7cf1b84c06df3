// SPDX-License-Identifier: Apache-2.0

//! The membership of one endpoint in one list of one node, with the reason.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_catalog::EndpointRef;
use portolan_model::Lists;

use crate::NodeView;

/// Part of the cluster list that hints leave on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    All,
    SameNode,
    SameZone,
}

/// The membership of an endpoint in a list, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ready(Topology),
    /// In, since none is ready.
    StillServing,
    /// Out, since others are ready.
    Terminating,
    NotReady,
    /// Ready, but its hints name others.
    HintedElsewhere(Topology),
    Elsewhere,
}

impl Verdict {
    /// Returns `true` if the endpoint is in the list.
    pub(crate) fn is_in(self) -> bool {
        matches!(self, Self::Ready(_) | Self::StillServing)
    }
}

/// The rule of one list on one node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule<'a> {
    lists: Lists,
    node: NodeView<'a>,
    topology: Topology,
    none_ready: bool,
}

/// Returns `true` if an endpoint is usable when none is ready (KEP-1669).
pub(crate) fn still_serving(endpoint: &EndpointRef<'_>) -> bool {
    endpoint.serving && endpoint.terminating
}

impl<'a> Rule<'a> {
    /// The rule for these endpoints, which are of one family.
    pub(crate) fn new(
        endpoints: &BTreeMap<SocketAddr, EndpointRef<'_>>,
        lists: Lists,
        node: NodeView<'a>,
    ) -> Self {
        let topology = match lists {
            Lists::Cluster => topology(endpoints, node),
            Lists::Local => Topology::All,
        };
        let rule = Self {
            lists,
            node,
            topology,
            none_ready: false,
        };
        Self {
            none_ready: !endpoints.values().any(|e| rule.judge(e).is_in()),
            ..rule
        }
    }

    pub(crate) fn topology(&self) -> Topology {
        self.topology
    }

    /// Returns `true` if terminating endpoints are used for lack of ready ones.
    pub(crate) fn fell_back(&self) -> bool {
        self.none_ready
    }

    pub(crate) fn judge(&self, endpoint: &EndpointRef<'_>) -> Verdict {
        let is_local = endpoint.node.is_some_and(|name| **name == *self.node.name);
        if self.lists == Lists::Local && !is_local {
            return Verdict::Elsewhere;
        }
        match (endpoint.ready, still_serving(endpoint)) {
            (true, _) if available(endpoint, self.topology, self.node) => {
                Verdict::Ready(self.topology)
            }
            // Hints have no say when none is ready.
            (_, true) if self.none_ready => Verdict::StillServing,
            (true, _) => Verdict::HintedElsewhere(self.topology),
            (false, true) => Verdict::Terminating,
            (false, false) => Verdict::NotReady,
        }
    }
}

/// Hints count all or nothing: with one ready endpoint without hints, or without one for this node,
/// all endpoints are usable. Hints of unready endpoints are ignored.
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
