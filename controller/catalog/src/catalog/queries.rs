//! Questions about single objects, and who has what.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::{NodeInfo, NodeKey};

use super::{Catalog, node_key};
use crate::{Claim, Claimant, Kind, ObjectKey, ObjectRef, Problem, Service};

impl Catalog {
    /// A Service, if it is ours to serve.
    #[must_use]
    pub fn service(&self, key: &ObjectKey) -> Option<&Service> {
        self.services.get(key)
    }

    /// All Services, in no order.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    /// What a node's agent needs to know of it; `None` of an unknown node.
    #[must_use]
    pub fn node_info(&self, node: &NodeKey) -> Option<&NodeInfo> {
        let key = ObjectKey {
            cluster: Arc::clone(&node.cluster),
            namespace: "".into(),
            name: Arc::clone(&node.name),
        };
        Some(&self.nodes.get(&key)?.info)
    }

    /// All nodes, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.nodes.keys().map(node_key)
    }

    /// Who has what is claimed.
    #[must_use]
    pub fn holder(&self, claim: &Claim) -> Option<&Claimant> {
        self.claims.holder(claim)
    }

    /// The Node that has an address, if one of the cluster does; the first by name of several.
    #[must_use]
    pub fn node_with_address(&self, cluster: &str, address: IpAddr) -> Option<&Arc<str>> {
        self.addresses.node(cluster, address)
    }

    /// What is wrong with which object.
    #[must_use]
    pub fn problems(&self) -> &BTreeMap<ObjectRef, Vec<Problem>> {
        &self.problems
    }

    /// How many objects of each kind there are.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Service => self.services.len(),
            Kind::EndpointSlice => self.slices.len(),
            Kind::Node => self.nodes.len(),
            Kind::Pod => self.pods.len(),
        }
    }
}
