//! The catalog itself: objects, the indices over them, and what a change makes dirty.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::{NodeInfo, NodeKey};

use crate::claims::Claims;
use crate::{
    Change, Claim, Claimant, Endpoint, EndpointSlice, Kind, Node, Object, ObjectKey, ObjectRef,
    Problem, Service, ServicePort,
};

/// What has to be projected again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirtySet {
    /// Services whose records or node lists may differ now.
    pub services: BTreeSet<ObjectKey>,
    /// Nodes of which something else may be known now.
    pub nodes: BTreeSet<NodeKey>,
    /// Whether the catalog's problems changed.
    pub problems: bool,
}

impl DirtySet {
    /// Whether nothing has to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.nodes.is_empty() && !self.problems
    }
}

/// Services, EndpointSlices and Nodes of all clusters. One task owns it; nobody else sees it.
#[derive(Debug, Default)]
pub struct Catalog {
    services: HashMap<ObjectKey, Service>,
    slices: HashMap<ObjectKey, EndpointSlice>,
    nodes: HashMap<ObjectKey, Node>,
    slices_of: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
    claims: Claims,
    problems: BTreeMap<ObjectRef, Vec<Problem>>,
}

impl Catalog {
    /// Applies a change and adds what it affects to `dirty`. Costs O(affected), never O(catalog),
    /// except for [`Change::Retain`].
    pub fn apply(&mut self, change: Change, dirty: &mut DirtySet) {
        match change {
            Change::Put { object, problems } => {
                self.note(object.reference(), problems, dirty);
                match object {
                    Object::Service(service) => self.put_service(service, dirty),
                    Object::EndpointSlice(slice) => self.put_slice(slice, dirty),
                    Object::Node(node) => self.put_node(node, dirty),
                }
            }
            Change::Refused { object, problems } => self.note(object, problems, dirty),
            Change::Delete(object) => self.delete(object, dirty),
            Change::Retain {
                kind,
                cluster,
                keep,
            } => {
                for key in self.keys(kind, &cluster) {
                    if !keep.contains(&key) {
                        self.delete(ObjectRef { kind, key }, dirty);
                    }
                }
            }
        }
    }

    fn note(&mut self, object: ObjectRef, problems: Vec<Problem>, dirty: &mut DirtySet) {
        let before = if problems.is_empty() {
            self.problems.remove(&object).unwrap_or_default()
        } else {
            self.problems
                .insert(object, problems.clone())
                .unwrap_or_default()
        };
        dirty.problems |= before != problems;
    }

    fn put_service(&mut self, service: Service, dirty: &mut DirtySet) {
        if self.services.get(&service.key) == Some(&service) {
            return;
        }
        self.remove_service(&service.key, dirty);
        dirty.services.insert(service.key.clone());
        self.claims.insert(&service, |other| {
            dirty.services.insert(other.clone());
        });
        self.services.insert(service.key.clone(), service);
    }

    fn remove_service(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        if let Some(service) = self.services.remove(key) {
            dirty.services.insert(key.clone());
            self.claims.remove(&service, |other| {
                dirty.services.insert(other.clone());
            });
        }
    }

    fn put_slice(&mut self, slice: EndpointSlice, dirty: &mut DirtySet) {
        if self.slices.get(&slice.key) == Some(&slice) {
            return;
        }
        self.remove_slice(&slice.key, dirty);
        let service = slice.service_key();
        self.slices_of
            .entry(service.clone())
            .or_default()
            .insert(slice.key.clone());
        dirty.services.insert(service);
        self.slices.insert(slice.key.clone(), slice);
    }

    fn remove_slice(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let Some(slice) = self.slices.remove(key) else {
            return;
        };
        let service = slice.service_key();
        if let Some(slices) = self.slices_of.get_mut(&service) {
            slices.remove(key);
            if slices.is_empty() {
                self.slices_of.remove(&service);
            }
        }
        dirty.services.insert(service);
    }

    fn put_node(&mut self, node: Node, dirty: &mut DirtySet) {
        let before = self.nodes.get(&node.key).map(|old| &old.info);
        if before != Some(&node.info) {
            dirty.nodes.insert(node_key(&node.key));
        }
        self.nodes.insert(node.key.clone(), node);
    }

    fn delete(&mut self, object: ObjectRef, dirty: &mut DirtySet) {
        match object.kind {
            Kind::Service => self.remove_service(&object.key, dirty),
            Kind::EndpointSlice => self.remove_slice(&object.key, dirty),
            Kind::Node => {
                if self.nodes.remove(&object.key).is_some() {
                    dirty.nodes.insert(node_key(&object.key));
                }
            }
        }
        self.note(object, Vec::new(), dirty);
    }

    /// All keys of a kind and cluster, those of objects that only have problems included.
    fn keys(&self, kind: Kind, cluster: &str) -> BTreeSet<ObjectKey> {
        let held: Box<dyn Iterator<Item = &ObjectKey>> = match kind {
            Kind::Service => Box::new(self.services.keys()),
            Kind::EndpointSlice => Box::new(self.slices.keys()),
            Kind::Node => Box::new(self.nodes.keys()),
        };
        let refused = self
            .problems
            .keys()
            .filter(|object| object.kind == kind)
            .map(|o| &o.key);
        held.chain(refused)
            .filter(|key| &*key.cluster == cluster)
            .cloned()
            .collect()
    }

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
        }
    }

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
}

/// Which of two copies of an endpoint counts; the greater one does.
fn preference(endpoint: &Endpoint) -> impl Ord + use<'_> {
    let Endpoint {
        address: _,
        ready,
        serving,
        terminating,
        node,
        zone_hints,
        node_hints,
    } = endpoint;
    // The node, before the rest, as upstream prefers the copy that is local; the hints last, only
    // so that no tie is left to the order of the slices.
    (
        node.is_some(),
        *ready,
        *serving,
        !*terminating,
        node,
        zone_hints,
        node_hints,
    )
}

fn node_key(key: &ObjectKey) -> NodeKey {
    NodeKey {
        cluster: Arc::clone(&key.cluster),
        name: Arc::clone(&key.name),
    }
}
