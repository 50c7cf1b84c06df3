// SPDX-License-Identifier: Apache-2.0

//! The catalog: objects, their indices, and the dirty set of a change.

mod cluster;
mod endpoints;
mod exports;
mod lookup;
mod queries;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::{ByRecord, NodeKey, Record};

use crate::packed::{Pack, PackedNode, PackedService, PackedSlice};
use crate::{
    DirtySet, EndpointSlice, FieldProblem, HostFacts, Kind, Node, Object, ObjectChange, ObjectKey,
    ObjectRef, Pod, QuickMap, Service,
};
use cluster::Cluster;
pub use endpoints::{Endpoints, Weights};

/// Services, EndpointSlices, Nodes and weighted Pods of all clusters, and load balancers. Owned by one task.
#[derive(Debug, Default)]
pub struct Catalog {
    clusters: QuickMap<Arc<str>, Cluster>,
    pack: Pack,
    problems: BTreeMap<ObjectRef, Vec<FieldProblem>>,
    /// Records of load balancers, final as their source has them: no endpoint is selected.
    load_balancers: ByRecord<Record>,
}

impl Catalog {
    /// Applies a change and adds what it affects to `dirty`. Costs O(affected), never O(catalog),
    /// except for [`ObjectChange::Retain`].
    pub fn apply(&mut self, change: ObjectChange, dirty: &mut DirtySet) {
        match change {
            ObjectChange::Put { object, problems } => {
                // Mostly no object has any.
                if !problems.is_empty() || !self.problems.is_empty() {
                    self.note(object.reference(), problems, dirty);
                }
                match object {
                    Object::Service(service) => self.put_service(service, dirty),
                    Object::EndpointSlice(slice) => self.put_slice(slice, dirty),
                    Object::Node(node) => self.put_node(node, dirty),
                    Object::Pod(pod) => self.put_pod(&pod, dirty),
                    Object::Namespace(key) => self.put_namespace(&key, dirty),
                    Object::ServiceExport(export) => self.put_export(export, dirty),
                    Object::ServiceImport(import) => self.put_observed(import, dirty),
                    Object::ClusterProperty(property) => self.put_property(property, dirty),
                }
            }
            ObjectChange::Refused { object, problems }
            | ObjectChange::Problems { object, problems } => self.note(object, problems, dirty),
            ObjectChange::Delete(object) => self.delete(object, dirty),
            ObjectChange::Retain {
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
            ObjectChange::LoadBalancers { cluster, records } => {
                self.replace_load_balancers(&cluster, records, dirty);
            }
            ObjectChange::Reached {
                kind,
                cluster,
                version,
            } => self.reach(kind, &cluster, version),
        }
    }

    fn replace_load_balancers(
        &mut self,
        cluster: &str,
        records: ByRecord<Record>,
        dirty: &mut DirtySet,
    ) {
        let others = self.load_balancers.iter();
        let others = others.filter(|(key, _)| *key.cluster != *cluster);
        let others: Vec<_> = others
            .map(|(key, record)| (key.clone(), Arc::clone(record)))
            .collect();
        let mut all = records;
        all.extend(others);
        dirty.load_balancers |= self.load_balancers != all;
        self.load_balancers = all;
    }

    fn note(&mut self, object: ObjectRef, problems: Vec<FieldProblem>, dirty: &mut DirtySet) {
        let before = if problems.is_empty() {
            self.problems.remove(&object).unwrap_or_default()
        } else {
            self.problems
                .insert(object, problems.clone())
                .unwrap_or_default()
        };
        dirty.problems |= before != problems;
    }

    fn cluster(&mut self, name: &Arc<str>) -> &mut Cluster {
        self.clusters.entry(Arc::clone(name)).or_default()
    }

    /// An equal key of the names that are kept already, which takes no room of its own.
    fn kept(&self, key: ObjectKey) -> ObjectKey {
        let Some((cluster, objects)) = self.clusters.get_key_value(&key.cluster) else {
            return key;
        };
        ObjectKey {
            cluster: Arc::clone(cluster),
            name: objects.kept_service(&key.namespace, &key.name),
            namespace: objects.kept_name(&key.namespace),
        }
    }

    fn put_service(&mut self, service: Service, dirty: &mut DirtySet) {
        let packed = PackedService::pack(&service, &mut self.pack);
        let key = &service.key;
        let entry = self.cluster(&key.cluster).entry(&key.namespace, &key.name);
        let before = entry.and_then(|entry| entry.service.as_ref());
        if before == Some(&packed) {
            return;
        }
        let given = before.into_iter().flat_map(PackedService::given);
        let has_others = !given.eq(packed.given());
        let (urgent, addresses) = (dirty.urgent, dirty.addresses || has_others);
        self.remove_service(key, dirty);
        // One that changes is there still.
        (dirty.urgent, dirty.addresses) = (urgent, addresses);
        let cluster = self.cluster(&service.key.cluster);
        let (_, entry) = cluster
            .namespace(&service.key.namespace)
            .entry(&service.key.name);
        entry.service = Some(packed);
        cluster.counts.services += 1;
        let key = self.kept(service.key);
        let named = Service {
            key: key.clone(),
            ..service
        };
        let others = affected(&key, &mut dirty.services);
        self.cluster(&key.cluster).claims.insert(&named, others);
        dirty.objects.insert(key.clone());
        dirty.services.insert(key);
    }

    fn remove_service(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let cluster = self.cluster(&key.cluster);
        let namespace = cluster.namespace(&key.namespace);
        if let Some(packed) = namespace.remove_service(&key.name) {
            cluster.counts.services -= 1;
            let service = packed.unpack(key.clone());
            let others = affected(key, &mut dirty.services);
            cluster.claims.remove(&service, others);
            dirty.addresses |= packed.given().next().is_some();
            dirty.objects.insert(key.clone());
            dirty.services.insert(key.clone());
            dirty.urgent = true;
        }
        cluster.tidy(&key.namespace);
    }

    fn put_slice(&mut self, slice: EndpointSlice, dirty: &mut DirtySet) {
        let (key, service) = (slice.key.clone(), slice.service_key());
        let triggered = slice.triggered_ms;
        let packed = self.pack.slice(slice);
        let cluster = self.cluster(&key.cluster);
        let entry = cluster.entry(&key.namespace, &service.name);
        if entry.and_then(|entry| entry.slice(&key.name)) == Some(&packed) {
            return;
        }
        let namespace = cluster.namespace(&key.namespace);
        // It may have been another Service's.
        if namespace
            .service_of(&key.name)
            .is_some_and(|of| *of != service.name)
        {
            self.remove_slice(&key, dirty);
        }
        let cluster = self.cluster(&key.cluster);
        let namespace = cluster.namespace(&key.namespace);
        let (name, entry) = namespace.entry(&service.name);
        let size = packed.len();
        let before = entry.put_slice(packed);
        let after = entry.slice(&key.name);
        dirty.urgent |= before.as_ref().is_some_and(|before| before.loses(after));
        if before.is_none() {
            namespace.note_slice(&key.name, name);
            cluster.counts.slices += 1;
        }
        cluster.counts.endpoints += size;
        cluster.counts.endpoints -= before.as_ref().map_or(0, PackedSlice::len);
        if let Some(triggered) = triggered {
            let triggers = dirty.triggers.entry(service.clone()).or_default();
            triggers.push(triggered);
        }
        dirty.services.insert(self.kept(service));
    }

    fn remove_slice(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let cluster = self.cluster(&key.cluster);
        let namespace = cluster.namespace(&key.namespace);
        if let Some((name, slice)) = namespace.remove_slice(&key.name) {
            cluster.counts.slices -= 1;
            cluster.counts.endpoints -= slice.len();
            let service = ObjectKey {
                name,
                ..key.clone()
            };
            dirty.urgent |= slice.loses(None);
            dirty.triggers.remove(&service);
            dirty.services.insert(service);
        }
        cluster.tidy(&key.namespace);
    }

    fn put_node(&mut self, node: Node, dirty: &mut DirtySet) {
        let (key, weight) = (node.key.clone(), node.weight);
        let after = PackedNode::pack(node, &mut self.pack);
        let name = self.pack.name(Arc::clone(&key.name));
        let cluster = self.cluster(&key.cluster);
        let before = cluster.nodes.get(&name);
        let hosted = before.and_then(|old| old.host());
        note_host(&key, hosted, after.host(), dirty);
        if before.map(|old| old.info()) != Some(after.info()) {
            dirty.nodes.insert(node_key(&key));
        }
        let had = before.map(|old| old.addresses()).unwrap_or_default();
        dirty.addresses |= had != after.addresses();
        let Cluster {
            addresses, claims, ..
        } = cluster;
        addresses.move_node(&name, had, after.addresses(), |address| {
            let services = claims.of_address(address);
            services.for_each(|(ns, name)| affected(&key, &mut dirty.services)(ns, name));
        });
        cluster.nodes.insert(name, Box::new(after));
        self.weigh_node(&key, weight, dirty);
    }

    fn remove_node(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let cluster = self.cluster(&key.cluster);
        let Some(node) = cluster.nodes.remove(&key.name) else {
            return;
        };
        dirty.nodes.insert(node_key(key));
        note_host(key, node.host(), None, dirty);
        dirty.addresses |= !node.addresses().is_empty();
        let Cluster {
            addresses, claims, ..
        } = cluster;
        addresses.move_node(&key.name, node.addresses(), &[], |address| {
            let services = claims.of_address(address);
            services.for_each(|(ns, name)| affected(key, &mut dirty.services)(ns, name));
        });
        self.weigh_node(key, None, dirty);
    }

    fn weigh_node(&mut self, key: &ObjectKey, weight: Option<u32>, dirty: &mut DirtySet) {
        let weights = &mut self.cluster(&key.cluster).node_weights;
        let before = match weight {
            Some(weight) => weights.insert(Arc::clone(&key.name), weight),
            None => weights.remove(&key.name),
        };
        if before != weight {
            dirty.node_weights.insert(node_key(key));
        }
    }

    fn put_pod(&mut self, pod: &Pod, dirty: &mut DirtySet) {
        let key = &pod.key;
        let cluster = self.cluster(&key.cluster);
        let pods = &mut cluster.namespace(&key.namespace).pods;
        let before = pods.insert(Arc::clone(&key.name), pod.weight);
        if before != Some(pod.weight) {
            dirty.pod_weights.insert(key.clone());
        }
        cluster.counts.pods += usize::from(before.is_none());
    }

    fn remove_pod(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let cluster = self.cluster(&key.cluster);
        let pods = &mut cluster.namespace(&key.namespace).pods;
        if pods.remove(&key.name).is_some() {
            cluster.counts.pods -= 1;
            dirty.pod_weights.insert(key.clone());
        }
        cluster.tidy(&key.namespace);
    }

    fn delete(&mut self, object: ObjectRef, dirty: &mut DirtySet) {
        match object.kind {
            Kind::Service => self.remove_service(&object.key, dirty),
            Kind::EndpointSlice => self.remove_slice(&object.key, dirty),
            Kind::Node => self.remove_node(&object.key, dirty),
            Kind::Pod => self.remove_pod(&object.key, dirty),
            Kind::Namespace => self.remove_namespace(&object.key, dirty),
            Kind::ServiceExport => self.remove_export(&object.key, dirty),
            Kind::ServiceImport => self.remove_observed(&object.key, dirty),
            Kind::ClusterProperty => self.remove_property(&object.key, dirty),
            Kind::LoadBalancer | Kind::Director | Kind::Policy => {}
        }
        self.note(object, Vec::new(), dirty);
    }

    fn reach(&mut self, kind: Kind, cluster: &Arc<str>, version: u64) {
        let index = match kind {
            Kind::Service => 0,
            Kind::EndpointSlice => 1,
            Kind::Node => 2,
            // Weights are no reason to turn an agent away.
            Kind::Pod
            | Kind::Namespace
            | Kind::ServiceExport
            | Kind::ServiceImport
            | Kind::ClusterProperty
            | Kind::LoadBalancer
            | Kind::Director
            | Kind::Policy => return,
        };
        let versions = self.cluster(cluster).versions.get_or_insert_default();
        versions[index] = versions[index].max(version);
    }

    /// Forgets how far the source of a cluster was: its next source may be another one, of lower versions.
    pub fn forget_versions(&mut self, cluster: &str) {
        if let Some(cluster) = self.clusters.get_mut(cluster) {
            cluster.versions = None;
        }
    }

    /// All keys of a kind and cluster, those of objects that only have problems included.
    fn keys(&self, kind: Kind, cluster: &Arc<str>) -> BTreeSet<ObjectKey> {
        let held = self.clusters.get(cluster).map(|held| held.names(kind));
        let held = held
            .into_iter()
            .flatten()
            .map(|(namespace, name)| ObjectKey {
                cluster: Arc::clone(cluster),
                namespace,
                name,
            });
        let refused = self
            .problems
            .keys()
            .map(|object| (object.kind, &object.key));
        let refused = refused.filter(|(of, key)| *of == kind && key.cluster == *cluster);
        held.chain(refused.map(|(_, key)| key.clone())).collect()
    }
}

/// Notes a Node whose facts about gateways are others.
fn note_host(
    key: &ObjectKey,
    before: Option<&HostFacts>,
    after: Option<&HostFacts>,
    dirty: &mut DirtySet,
) {
    if before != after {
        let is_ready = |facts: Option<&HostFacts>| facts.is_some_and(|facts| facts.ready);
        dirty.urgent |= is_ready(before) && !is_ready(after);
        dirty.hosts.insert(Arc::clone(&key.cluster));
    }
}

/// Notes Services of the cluster of `key`, by namespace and name.
fn affected<'a>(
    key: &'a ObjectKey,
    services: &'a mut BTreeSet<ObjectKey>,
) -> impl FnMut(&Arc<str>, &Arc<str>) + 'a {
    |namespace, name| {
        services.insert(ObjectKey {
            cluster: Arc::clone(&key.cluster),
            namespace: Arc::clone(namespace),
            name: Arc::clone(name),
        });
    }
}

fn node_key(key: &ObjectKey) -> NodeKey {
    NodeKey {
        cluster: Arc::clone(&key.cluster),
        name: Arc::clone(&key.name),
    }
}
