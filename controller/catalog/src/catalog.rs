//! The catalog itself: objects, the indices over them, and what a change makes dirty.

mod endpoints;
mod queries;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use portolan_model::NodeKey;

use crate::addresses::Addresses;
use crate::claims::Claims;
use crate::{
    Change, DirtySet, EndpointSlice, Kind, Node, Object, ObjectKey, ObjectRef, Pod, Problem,
    Service,
};

/// Services, EndpointSlices, Nodes and weighted Pods of all clusters. One task owns it; nobody else
/// sees it.
#[derive(Debug, Default)]
pub struct Catalog {
    services: HashMap<ObjectKey, Service>,
    slices: HashMap<ObjectKey, EndpointSlice>,
    nodes: HashMap<ObjectKey, Node>,
    pods: HashMap<ObjectKey, Pod>,
    /// The weights of those nodes that have one: few, mostly none.
    node_weights: HashMap<NodeKey, u32>,
    slices_of: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
    claims: Claims,
    addresses: Addresses,
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
                    Object::Pod(pod) => self.put_pod(pod, dirty),
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
        self.addresses.insert_service(&service);
        self.services.insert(service.key.clone(), service);
    }

    fn remove_service(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        if let Some(service) = self.services.remove(key) {
            dirty.services.insert(key.clone());
            self.claims.remove(&service, |other| {
                dirty.services.insert(other.clone());
            });
            self.addresses.remove_service(&service);
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
        let before = self.nodes.get(&node.key);
        if before.map(|old| &old.info) != Some(&node.info) {
            dirty.nodes.insert(node_key(&node.key));
        }
        let none = BTreeSet::new();
        let addresses = before.map_or(&none, |old| &old.addresses);
        self.addresses
            .move_node(&node.key, addresses, &node.addresses, |service| {
                dirty.services.insert(service.clone());
            });
        self.weigh_node(&node.key, node.weight, dirty);
        self.nodes.insert(node.key.clone(), node);
    }

    fn remove_node(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let Some(node) = self.nodes.remove(key) else {
            return;
        };
        dirty.nodes.insert(node_key(key));
        self.addresses.remove_node(&node, |service| {
            dirty.services.insert(service.clone());
        });
        self.weigh_node(key, None, dirty);
    }

    fn weigh_node(&mut self, key: &ObjectKey, weight: Option<u32>, dirty: &mut DirtySet) {
        let key = node_key(key);
        let before = match weight {
            Some(weight) => self.node_weights.insert(key.clone(), weight),
            None => self.node_weights.remove(&key),
        };
        if before != weight {
            dirty.node_weights.insert(key);
        }
    }

    fn put_pod(&mut self, pod: Pod, dirty: &mut DirtySet) {
        if self.pods.get(&pod.key) != Some(&pod) {
            dirty.pod_weights.insert(pod.key.clone());
            self.pods.insert(pod.key.clone(), pod);
        }
    }

    fn remove_pod(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        if self.pods.remove(key).is_some() {
            dirty.pod_weights.insert(key.clone());
        }
    }

    fn delete(&mut self, object: ObjectRef, dirty: &mut DirtySet) {
        match object.kind {
            Kind::Service => self.remove_service(&object.key, dirty),
            Kind::EndpointSlice => self.remove_slice(&object.key, dirty),
            Kind::Node => self.remove_node(&object.key, dirty),
            Kind::Pod => self.remove_pod(&object.key, dirty),
        }
        self.note(object, Vec::new(), dirty);
    }

    /// All keys of a kind and cluster, those of objects that only have problems included.
    fn keys(&self, kind: Kind, cluster: &str) -> BTreeSet<ObjectKey> {
        let held: Box<dyn Iterator<Item = &ObjectKey>> = match kind {
            Kind::Service => Box::new(self.services.keys()),
            Kind::EndpointSlice => Box::new(self.slices.keys()),
            Kind::Node => Box::new(self.nodes.keys()),
            Kind::Pod => Box::new(self.pods.keys()),
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
}

fn node_key(key: &ObjectKey) -> NodeKey {
    NodeKey {
        cluster: Arc::clone(&key.cluster),
        name: Arc::clone(&key.name),
    }
}
