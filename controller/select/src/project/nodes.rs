// SPDX-License-Identifier: Apache-2.0

//! The overlays of single nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::{Family, NodeKey, NodeOverlay};

use super::candidates::Candidate;

/// The lists of single nodes as they grow, family by family, IPv4 first.
#[derive(Debug)]
pub(super) struct Nodes<'a> {
    cluster: &'a Arc<str>,
    lists: BTreeMap<NodeKey, NodeOverlay>,
}

impl<'a> Nodes<'a> {
    pub(super) fn new(cluster: &'a Arc<str>) -> Self {
        Self {
            cluster,
            lists: BTreeMap::new(),
        }
    }

    /// The overlays of all nodes, without spare capacity: there are about as many lists as
    /// endpoints.
    pub(super) fn finish(mut self) -> BTreeMap<NodeKey, NodeOverlay> {
        // A name may be empty in files and at an edge. No agent has such a node, and a relay refuses its lists.
        if let Some(first) = self.lists.first_entry()
            && first.key().name.is_empty()
        {
            first.remove();
        }
        for lists in self.lists.values_mut() {
            lists.cluster.shrink_to_fit();
            lists.local.shrink_to_fit();
            lists.own.shrink_to_fit();
        }
        self.lists
    }

    fn of(&mut self, name: &Arc<str>) -> &mut NodeOverlay {
        let key = NodeKey {
            cluster: Arc::clone(self.cluster),
            name: Arc::clone(name),
        };
        self.lists.entry(key).or_default()
    }

    /// Notes where each endpoint is: its address, and its node, if that is known.
    pub(super) fn add_own<E>(
        &mut self,
        endpoints: &[E],
        place: impl Fn(&E) -> (SocketAddr, Option<&Arc<str>>),
    ) {
        // Neighbours are often on one node.
        for of_node in endpoints.chunk_by(|one, next| place(one).1 == place(next).1) {
            if let (_, Some(node)) = place(&of_node[0]) {
                let own = &mut self.of(node).own;
                own.reserve_exact(of_node.len());
                own.extend(of_node.iter().map(|one| place(one).0));
            }
        }
    }

    /// Gives each node its own endpoints: those that are ready, or, where none is, those that are
    /// terminating and still serve.
    pub(super) fn add_local(&mut self, family: Family, candidates: &[Candidate<'_>]) {
        let mut by_node: BTreeMap<&Arc<str>, Vec<&Candidate<'_>>> = BTreeMap::new();
        for candidate in candidates {
            if let Some(node) = candidate.endpoint.node {
                by_node.entry(node).or_default().push(candidate);
            }
        }
        for (node, local) in by_node {
            let any_ready = local.iter().any(|c| c.endpoint.ready);
            let is_usable = |c: &Candidate<'_>| {
                if any_ready {
                    c.endpoint.ready
                } else {
                    c.still_serves()
                }
            };
            let mut usable = local.iter().filter(|c| is_usable(c)).peekable();
            if usable.peek().is_none() {
                continue;
            }
            let lists = self.of(node);
            lists.local.extend(usable.map(|c| c.destination));
            if !any_ready {
                lists.terminating.insert(family);
            }
        }
    }

    /// Gives nodes that hints name their own cluster-wide list.
    pub(super) fn add_same_node_hints(&mut self, candidates: &[Candidate<'_>]) {
        let ready = || candidates.iter().filter(|c| c.endpoint.ready);
        if !ready().all(|c| c.endpoint.node_hints.is_some()) {
            return;
        }
        for candidate in ready() {
            let names: BTreeSet<_> = candidate
                .endpoint
                .node_hints
                .into_iter()
                .flatten()
                .collect();
            for name in names {
                self.of(name).cluster.push(candidate.destination);
            }
        }
    }
}
