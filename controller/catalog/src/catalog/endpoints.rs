// SPDX-License-Identifier: Apache-2.0

//! The endpoints of a Service port, and their weights.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::{Family, NodeKey, Protocol};

use super::Catalog;
use super::cluster::{Namespace, ServiceEntry};
use crate::packed::PackedSlice;
use crate::{DirtySet, EndpointRef, ObjectKey, QuickMap, Service, ServicePort};

/// The endpoints of a Service port by place: sorted, each once.
pub type Endpoints<'c, K = SocketAddr> = Vec<(K, EndpointRef<'c>)>;

/// The weights of the endpoints of one Service.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'c> {
    pods: Option<&'c QuickMap<Arc<str>, u32>>,
    nodes: Option<&'c QuickMap<Arc<str>, u32>>,
}

impl Weights<'_> {
    /// The weight of an endpoint: its pod's, else its node's, else 1.
    #[must_use]
    pub fn of(&self, endpoint: &EndpointRef<'_>) -> u32 {
        let of_pod = || self.pods?.get(endpoint.pod?);
        let of_node = || self.nodes?.get(endpoint.node?);
        of_pod().or_else(of_node).copied().unwrap_or(1)
    }
}

impl Catalog {
    /// The endpoints of a Service port in all its slices, by address: merged, sorted, each once.
    ///
    /// While an endpoint moves from one slice to another, both may have it. Upstream uses any of
    /// the two. The catalog prefers the one with a node, then a ready one, then a serving one, so
    /// that the result does not depend on the order of events and a move loses nothing.
    #[must_use]
    pub fn endpoints(&self, service: &Service, port: &ServicePort) -> Endpoints<'_> {
        let is_ours = |family| service.has_family(family);
        of_port(
            self.slices_of(&service.key, is_ours),
            &port.name,
            port.protocol,
        )
    }

    /// The same for the first such port of a Service; none if the controller does not serve the Service.
    #[must_use]
    pub fn endpoints_of(
        &self,
        service: &ObjectKey,
        is_it: impl Fn(&ServicePort) -> bool,
    ) -> Endpoints<'_> {
        let cluster = self.clusters.get(&service.cluster);
        let entry = cluster.and_then(|cluster| cluster.entry(&service.namespace, &service.name));
        let served = entry.and_then(|entry| Some((entry, entry.service.as_ref()?)));
        let Some((entry, packed)) = served else {
            return Vec::new();
        };
        let port = packed.ports().iter().find(|port| is_it(port));
        let slices = entry.slices_in(|family| packed.has_family(family));
        port.map(|port| of_port(slices, &port.name, port.protocol))
            .unwrap_or_default()
    }

    /// The endpoints of a port of any exported Service, headless ones included, in these families.
    /// Merged like [`endpoints`](Self::endpoints).
    #[must_use]
    pub fn exported_endpoints(
        &self,
        service: &ObjectKey,
        families: &[Family],
        port: (&str, Protocol),
    ) -> Endpoints<'_> {
        let slices = self.slices_of(service, |family| families.contains(&family));
        of_port(slices, port.0, port.1)
    }

    /// The endpoints of an exported Service without ports, in these families. Merged like
    /// [`endpoints`](Self::endpoints).
    #[must_use]
    pub fn exported_hosts(
        &self,
        service: &ObjectKey,
        families: &[Family],
    ) -> Endpoints<'_, IpAddr> {
        let slices = self.slices_of(service, |family| families.contains(&family));
        let mut all = Vec::new();
        for slice in slices {
            all.reserve(slice.len());
            all.extend(slice.endpoints().map(|one| (one.address, one)));
        }
        merged(all)
    }

    /// As [`exported_hosts`](Self::exported_hosts), but not merged: in the order of the slices, with all copies.
    pub fn exported_copies(
        &self,
        service: &ObjectKey,
        families: &[Family],
    ) -> impl Iterator<Item = EndpointRef<'_>> {
        let slices = self.slices_of(service, |family| families.contains(&family));
        slices.flat_map(PackedSlice::endpoints)
    }

    /// As [`exported_endpoints`](Self::exported_endpoints), but the addresses alone and not merged.
    pub fn exported_addresses(
        &self,
        service: &ObjectKey,
        families: &[Family],
        (name, protocol): (&str, Protocol),
    ) -> impl Iterator<Item = IpAddr> {
        let slices = self.slices_of(service, |family| families.contains(&family));
        slices.flat_map(move |slice| {
            let numbers = slice.numbers(name, protocol);
            numbers.flat_map(|_| slice.addresses())
        })
    }

    /// The addresses in all slices of a Service, copies too, each with the number of ports of its slice.
    pub fn addresses_of(&self, service: &ObjectKey) -> impl Iterator<Item = (IpAddr, usize)> {
        let slices = self.slices_of(service, |_| true);
        slices.flat_map(|slice| {
            let ports = slice.port_count();
            slice.addresses().map(move |address| (address, ports))
        })
    }

    /// The slices of a Service whose family is wanted.
    fn slices_of(
        &self,
        service: &ObjectKey,
        is_wanted: impl Fn(Family) -> bool,
    ) -> impl Iterator<Item = &PackedSlice> {
        let cluster = self.clusters.get(&service.cluster);
        let entry = cluster.and_then(|cluster| cluster.entry(&service.namespace, &service.name));
        let slices = entry.map(|entry| entry.slices_in(is_wanted));
        slices.into_iter().flatten()
    }

    /// The weights of the endpoints of a Service.
    #[must_use]
    pub fn weights(&self, service: &ObjectKey) -> Weights<'_> {
        let cluster = self.clusters.get(&service.cluster);
        // Usually no Pod has one, and the lookup is skipped.
        let with_pods = cluster.filter(|cluster| cluster.counts.pods > 0);
        let namespace = with_pods.and_then(|cluster| cluster.namespaces.get(&service.namespace));
        Weights {
            pods: namespace.map(|namespace| &namespace.pods),
            nodes: cluster.map(|cluster| &cluster.node_weights),
        }
    }

    /// As [`Weights::of`], for one endpoint.
    #[must_use]
    pub fn weight(&self, service: &ObjectKey, endpoint: &EndpointRef<'_>) -> u32 {
        self.weights(service).of(endpoint)
    }

    /// The Services with endpoints whose weight changed.
    ///
    /// Weights change rarely, and endpoints are many: instead of an index of all endpoints by node
    /// and pod, this looks at all slices once for all weights that changed since the last time.
    #[must_use]
    pub fn weighed_by(&self, dirty: &DirtySet) -> BTreeSet<ObjectKey> {
        let (nodes, pods) = (&dirty.node_weights, &dirty.pod_weights);
        let mut affected = BTreeSet::new();
        if nodes.is_empty() && pods.is_empty() {
            return affected;
        }
        for (service, entry) in self.entries() {
            let is_affected = |endpoint: EndpointRef<'_>| {
                host_key(&service, &endpoint).is_some_and(|node| nodes.contains(&node))
                    || (!pods.is_empty()
                        && pod_key(&service, &endpoint).is_some_and(|pod| pods.contains(&pod)))
            };
            let mut endpoints = entry.slices().iter().flat_map(|slice| slice.endpoints());
            if endpoints.any(is_affected) {
                affected.insert(service);
            }
        }
        affected
    }

    /// The entries of all names, with or without a Service.
    fn entries(&self) -> impl Iterator<Item = (ObjectKey, &ServiceEntry)> {
        let namespaces = self.clusters.iter().flat_map(|(cluster, objects)| {
            let all = objects.namespaces.iter();
            all.map(move |(name, namespace)| (cluster, name, namespace))
        });
        namespaces.flat_map(|(cluster, namespace, Namespace { services, .. })| {
            services.iter().map(|(name, entry)| {
                let key = ObjectKey {
                    cluster: Arc::clone(cluster),
                    namespace: Arc::clone(namespace),
                    name: Arc::clone(name),
                };
                (key, &**entry)
            })
        })
    }
}

/// The endpoints of the slices that have a port.
fn of_port<'c>(
    slices: impl Iterator<Item = &'c PackedSlice>,
    name: &str,
    protocol: Protocol,
) -> Endpoints<'c> {
    let mut all = Vec::new();
    for slice in slices {
        for number in slice.numbers(name, protocol) {
            let endpoints = slice.endpoints();
            all.reserve(slice.len());
            all.extend(endpoints.map(|one| (SocketAddr::new(one.address, number), one)));
        }
    }
    merged(all)
}

/// Endpoints by place, each once: of copies the preferred one.
fn merged<K: Ord>(mut endpoints: Endpoints<'_, K>) -> Endpoints<'_, K> {
    // Mostly they are sorted already.
    if !endpoints.is_sorted_by(|(one, _), (next, _)| one < next) {
        endpoints.sort_by(|(one, kept), (other, copy)| {
            let by_preference = || preference(copy).cmp(&preference(kept));
            one.cmp(other).then_with(by_preference)
        });
        endpoints.dedup_by(|(copy, _), (kept, _)| copy == kept);
    }
    endpoints
}

/// The Node of an endpoint of a Service.
fn host_key(of: &ObjectKey, endpoint: &EndpointRef<'_>) -> Option<NodeKey> {
    Some(NodeKey {
        cluster: Arc::clone(&of.cluster),
        name: Arc::clone(endpoint.node?),
    })
}

/// The Pod of an endpoint of a Service.
fn pod_key(of: &ObjectKey, endpoint: &EndpointRef<'_>) -> Option<ObjectKey> {
    Some(ObjectKey {
        name: endpoint.pod?.into(),
        ..of.clone()
    })
}

/// The order of copies of an endpoint; the greatest one counts.
fn preference<'a>(endpoint: &EndpointRef<'a>) -> impl Ord + use<'a> {
    let EndpointRef {
        address: _,
        ready,
        serving,
        terminating,
        node,
        pod,
        hostname,
        zone_hints,
        node_hints,
    } = *endpoint;
    // The node, before the rest, as upstream prefers the copy that is local; the hints, the
    // pod and its name last, only so that no tie is left to the order of the slices.
    (
        node.is_some(),
        ready,
        serving,
        !terminating,
        node,
        zone_hints,
        node_hints,
        pod,
        hostname,
    )
}
