//! The endpoints of a Service port, and their weights.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::NodeKey;

use super::Catalog;
use crate::{DirtySet, Endpoint, EndpointSlice, ObjectKey, Service, ServicePort};

impl Catalog {
    /// The endpoints of a Service port in all its slices, by address: merged, sorted, each once.
    ///
    /// While an endpoint moves from one slice to another, both may have it. Upstream takes any of
    /// the two; we take the better one (it has a node, it is ready, it serves), so that the result
    /// does not depend on the order of events and a move loses nothing.
    #[must_use]
    pub fn endpoints(
        &self,
        service: &Service,
        port: &ServicePort,
    ) -> BTreeMap<SocketAddr, &Endpoint> {
        let mut merged: BTreeMap<SocketAddr, &Endpoint> = BTreeMap::new();
        let slices = self.slices_of.get(&service.key).into_iter().flatten();
        for slice in slices.filter_map(|key| self.slices.get(key)) {
            if !service.has_family(slice.family) {
                continue;
            }
            let numbers = slice
                .ports
                .iter()
                .filter(|p| p.name == port.name && p.protocol == port.protocol)
                .map(|p| p.port);
            for number in numbers {
                for endpoint in &slice.endpoints {
                    let address = SocketAddr::new(endpoint.address, number);
                    let kept = merged.entry(address).or_insert(endpoint);
                    if preference(endpoint) > preference(kept) {
                        *kept = endpoint;
                    }
                }
            }
        }
        merged
    }

    /// The weight of an endpoint of a Service: its pod's, else its node's, else 1.
    #[must_use]
    pub fn weight(&self, service: &ObjectKey, endpoint: &Endpoint) -> u32 {
        self.pod_weight(service, endpoint)
            .or_else(|| self.node_weight(service, endpoint))
            .unwrap_or(1)
    }

    fn pod_weight(&self, service: &ObjectKey, endpoint: &Endpoint) -> Option<u32> {
        // Mostly there are none: then no key has to be built.
        if self.pods.is_empty() {
            return None;
        }
        Some(self.pods.get(&pod_key(service, endpoint)?)?.weight)
    }

    fn node_weight(&self, service: &ObjectKey, endpoint: &Endpoint) -> Option<u32> {
        if self.node_weights.is_empty() {
            return None;
        }
        let key = host_key(service, endpoint)?;
        self.node_weights.get(&key).copied()
    }

    /// The Services with endpoints whose weight changed.
    ///
    /// Weights change rarely, and endpoints are many: instead of an index of all endpoints by node
    /// and pod, this looks at all slices once for all weights that changed since the last time.
    #[must_use]
    pub fn weighed_by(&self, dirty: &DirtySet) -> BTreeSet<ObjectKey> {
        let (nodes, pods) = (&dirty.node_weights, &dirty.pod_weights);
        if nodes.is_empty() && pods.is_empty() {
            return BTreeSet::new();
        }
        let is_affected = |slice: &&EndpointSlice| {
            slice.endpoints.iter().any(|endpoint| {
                host_key(&slice.key, endpoint).is_some_and(|node| nodes.contains(&node))
                    || pod_key(&slice.key, endpoint).is_some_and(|pod| pods.contains(&pod))
            })
        };
        let affected = self.slices.values().filter(is_affected);
        affected.map(EndpointSlice::service_key).collect()
    }
}

/// The Node of an endpoint of a Service or slice.
fn host_key(of: &ObjectKey, endpoint: &Endpoint) -> Option<NodeKey> {
    Some(NodeKey {
        cluster: Arc::clone(&of.cluster),
        name: Arc::clone(endpoint.node.as_ref()?),
    })
}

/// The Pod of an endpoint of a Service or slice.
fn pod_key(of: &ObjectKey, endpoint: &Endpoint) -> Option<ObjectKey> {
    Some(ObjectKey {
        name: Arc::clone(endpoint.pod.as_ref()?),
        ..of.clone()
    })
}

/// Which of two copies of an endpoint counts; the greater one does.
fn preference(endpoint: &Endpoint) -> impl Ord + use<'_> {
    let Endpoint {
        address: _,
        ready,
        serving,
        terminating,
        node,
        pod,
        zone_hints,
        node_hints,
    } = endpoint;
    // The node, before the rest, as upstream prefers the copy that is local; the hints and the
    // pod last, only so that no tie is left to the order of the slices.
    (
        node.is_some(),
        *ready,
        *serving,
        !*terminating,
        node,
        zone_hints,
        node_hints,
        pod,
    )
}
