// SPDX-License-Identifier: Apache-2.0

//! Queries about single objects and claims.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::{ByRecord, NodeInfo, NodeKey, Record};

use super::Catalog;
use crate::packed::PackedNode;
use crate::{Claim, Claimant, FieldProblem, HostFacts, Kind, ObjectKey, ObjectRef, Service};

impl Catalog {
    /// A Service, if the controller serves it.
    #[must_use]
    pub fn service(&self, key: &ObjectKey) -> Option<Service> {
        let cluster = self.clusters.get(&key.cluster)?;
        let entry = cluster.entry(&key.namespace, &key.name)?;
        Some(entry.service.as_ref()?.unpack(key.clone()))
    }

    /// The keys of all Services, in no order.
    pub fn services(&self) -> impl Iterator<Item = ObjectKey> + '_ {
        self.clusters.iter().flat_map(|(cluster, objects)| {
            objects.namespaces.iter().flat_map(move |(namespace, all)| {
                let ours = all.services.iter().filter(|(_, e)| e.service.is_some());
                ours.map(move |(name, _)| ObjectKey {
                    cluster: Arc::clone(cluster),
                    namespace: Arc::clone(namespace),
                    name: Arc::clone(name),
                })
            })
        })
    }

    /// The information for a node's agent; `None` for an unknown node.
    #[must_use]
    pub fn node_info(&self, node: &NodeKey) -> Option<NodeInfo> {
        Some(self.node(node)?.info())
    }

    /// The zone of a node; `None` for an unknown node, and for one without a zone.
    #[must_use]
    pub fn zone(&self, node: &NodeKey) -> Option<&Arc<str>> {
        self.node(node)?.zone()
    }

    fn node(&self, node: &NodeKey) -> Option<&PackedNode> {
        let cluster = self.clusters.get(&node.cluster)?;
        Some(cluster.nodes.get(&node.name)?)
    }

    /// Returns the facts that decide about the gateways of a cluster: its Nodes by name, in no order.
    pub fn hosts(&self, cluster: &str) -> impl Iterator<Item = (&Arc<str>, &HostFacts)> {
        let nodes = self.clusters.get(cluster).map(|cluster| &cluster.nodes);
        let nodes = nodes.into_iter().flatten();
        nodes.filter_map(|(name, node)| Some((name, node.host()?)))
    }

    /// Facts about the host of a node; `None` for an unknown node.
    #[must_use]
    pub fn host(&self, node: &NodeKey) -> Option<&HostFacts> {
        self.node(node)?.host()
    }

    /// The nodes of a cluster, in no order.
    pub fn nodes_of(&self, cluster: &Arc<str>) -> impl Iterator<Item = NodeKey> {
        let nodes = self.clusters.get(cluster).map(|cluster| &cluster.nodes);
        nodes.into_iter().flat_map(|nodes| {
            nodes.keys().map(|name| NodeKey {
                cluster: Arc::clone(cluster),
                name: Arc::clone(name),
            })
        })
    }

    /// All nodes, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.clusters.iter().flat_map(|(cluster, objects)| {
            objects.nodes.keys().map(|name| NodeKey {
                cluster: Arc::clone(cluster),
                name: Arc::clone(name),
            })
        })
    }

    /// The holder of a claimed address and port.
    #[must_use]
    pub fn holder(&self, claim: &Claim) -> Option<Claimant> {
        let cluster = self.clusters.get(&claim.cluster)?;
        let created = |namespace: &str, name: &str| cluster.created(namespace, name);
        cluster.claims.holder(claim, created)
    }

    /// Returns true if an address and port are claimed more than once. A single claimant holds them.
    #[must_use]
    pub fn is_contested(&self, claim: &Claim) -> bool {
        let cluster = self.clusters.get(&claim.cluster);
        cluster.is_some_and(|cluster| cluster.claims.is_contested(claim))
    }

    /// The cluster's Node with this address; the first by name of several.
    #[must_use]
    pub fn node_with_address(&self, cluster: &str, address: IpAddr) -> Option<&Arc<str>> {
        self.clusters.get(cluster)?.addresses.node(address)
    }

    /// Returns the versions that the sources have reached: of each cluster those of Services,
    /// EndpointSlices and Nodes, in this order, each a number that only grows. A cluster whose source
    /// has none is absent.
    #[must_use]
    pub fn source_versions(&self) -> BTreeMap<Arc<str>, [u64; 3]> {
        let clusters = self.clusters.iter();
        clusters
            .filter_map(|(name, cluster)| Some((Arc::clone(name), cluster.versions?)))
            .collect()
    }

    /// The records of the load balancers.
    #[must_use]
    pub fn load_balancers(&self) -> &ByRecord<Record> {
        &self.load_balancers
    }

    /// The problems of each object.
    #[must_use]
    pub fn problems(&self) -> &BTreeMap<ObjectRef, Vec<FieldProblem>> {
        &self.problems
    }

    /// The number of objects of a kind.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        if kind == Kind::LoadBalancer {
            return self.count_load_balancers();
        }
        let clusters = self.clusters.values();
        clusters.map(|cluster| cluster.count(kind)).sum()
    }

    /// The number of Services, EndpointSlices, Nodes or Pods of a cluster; 0 for other kinds.
    #[must_use]
    pub fn count_in(&self, cluster: &str, kind: Kind) -> usize {
        let cluster = self.clusters.get(cluster);
        cluster.map_or(0, |cluster| cluster.count(kind))
    }

    /// The number of endpoints of a cluster in all EndpointSlices, ready or not.
    #[must_use]
    pub fn count_endpoints(&self, cluster: &str) -> usize {
        let cluster = self.clusters.get(cluster);
        cluster.map_or(0, |cluster| cluster.counts.endpoints)
    }

    /// The objects that the records are of; those of one object are neighbours.
    fn count_load_balancers(&self) -> usize {
        let objects = self.load_balancers.keys();
        let mut objects: Vec<_> = objects
            .map(|key| (&key.cluster, &key.namespace, &key.service))
            .collect();
        objects.dedup();
        objects.len()
    }
}
