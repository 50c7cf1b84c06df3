// SPDX-License-Identifier: Apache-2.0

//! Exports and namespaces, and the claims of imports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::cluster::{Cluster, SharedObjects};
use super::{Catalog, affected};
use crate::{ClusterProperty, DirtySet, ObjectKey, Service, ServiceExport, ServiceImport};

/// The most properties that are kept of a cluster.
const MAX_PROPERTIES: usize = 1_000;

/// The most ServiceImports that are kept of a cluster: it bounds the memory that a cluster can take with them.
const MAX_OBSERVED: usize = 100_000;

impl Catalog {
    /// The exports of a cluster, in no order.
    pub fn exports(&self, cluster: &str) -> impl Iterator<Item = &ServiceExport> {
        let shared = self.shared_of(cluster);
        shared
            .into_iter()
            .flat_map(|shared| shared.exports.values())
            .map(|export| &**export)
    }

    /// Those of Services with such a name.
    pub fn exports_named(
        &self,
        cluster: &str,
        is_it: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = &ServiceExport> {
        let all = self.shared_of(cluster).map(|shared| &shared.exports);
        let named = all.into_iter().flatten();
        // The keys are at hand, the exports are not.
        let named = named.filter(move |((_, name), _)| is_it(name));
        named.map(|(_, export)| &**export)
    }

    /// The export of a Service.
    #[must_use]
    pub fn export(&self, key: &ObjectKey) -> Option<&ServiceExport> {
        let exports = &self.shared_of(&key.cluster)?.exports;
        let export = exports.get(&(Arc::clone(&key.namespace), Arc::clone(&key.name)))?;
        Some(export)
    }

    /// The namespaces of a cluster that are known to exist.
    #[must_use]
    pub fn namespaces(&self, cluster: &str) -> Option<&BTreeSet<Arc<str>>> {
        Some(&self.shared_of(cluster)?.namespaces)
    }

    /// Returns the properties of a cluster: values by name.
    #[must_use]
    pub fn properties(&self, cluster: &str) -> Option<&BTreeMap<Arc<str>, Arc<str>>> {
        Some(&self.shared_of(cluster)?.properties)
    }

    /// The zones of a cluster's Nodes.
    #[must_use]
    pub fn zones(&self, cluster: &str) -> BTreeSet<Arc<str>> {
        let nodes = self
            .clusters
            .get(cluster)
            .map(|cluster| cluster.nodes.values());
        let nodes = nodes.into_iter().flatten();
        nodes.filter_map(|node| node.zone().cloned()).collect()
    }

    /// Takes the addresses and ports of an import, in place of those that it had: a Service with the
    /// import's name, its virtual addresses as cluster IPs. Services that claim the same are dirty.
    pub fn claim_import(&mut self, import: Service, dirty: &mut DirtySet) {
        let key = import.key.clone();
        if self.import(&key) == Some(&import) {
            return;
        }
        self.release_import(&key, dirty);
        let cluster = self.cluster(&key.cluster);
        let others = affected(&key, &mut dirty.services);
        cluster.claims.insert(&import, others);
        let name = (Arc::clone(&key.namespace), Arc::clone(&key.name));
        shared(cluster).imports.insert(name, Box::new(import));
        dirty.services.insert(key);
    }

    /// Gives the addresses and ports of an import back.
    pub fn release_import(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let Some(cluster) = self.clusters.get_mut(&key.cluster) else {
            return;
        };
        let name = (Arc::clone(&key.namespace), Arc::clone(&key.name));
        let shared = cluster.shared.as_deref_mut();
        if let Some(import) = shared.and_then(|shared| shared.imports.remove(&name)) {
            let others = affected(key, &mut dirty.services);
            cluster.claims.remove(&import, others);
            dirty.services.insert(key.clone());
        }
    }

    /// Returns the addresses and ports that an import claims, as a Service.
    #[must_use]
    pub fn import(&self, key: &ObjectKey) -> Option<&Service> {
        let imports = &self.shared_of(&key.cluster)?.imports;
        let import = imports.get(&(Arc::clone(&key.namespace), Arc::clone(&key.name)))?;
        Some(import)
    }

    fn shared_of(&self, cluster: &str) -> Option<&SharedObjects> {
        self.clusters.get(cluster)?.shared()
    }

    pub(super) fn put_namespace(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let namespaces = &mut shared(self.cluster(&key.cluster)).namespaces;
        dirty.imports |= namespaces.insert(Arc::clone(&key.name));
    }

    pub(super) fn remove_namespace(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let shared = self.cluster(&key.cluster).shared.as_deref_mut();
        dirty.imports |= shared.is_some_and(|shared| shared.namespaces.remove(&key.name));
    }

    pub(super) fn put_property(&mut self, property: ClusterProperty, dirty: &mut DirtySet) {
        let ClusterProperty { key, value } = property;
        let properties = &mut shared(self.cluster(&key.cluster)).properties;
        if properties.len() >= MAX_PROPERTIES && !properties.contains_key(&key.name) {
            return;
        }
        let before = properties.insert(Arc::clone(&key.name), Arc::clone(&value));
        dirty.imports |= before != Some(value);
    }

    pub(super) fn remove_property(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let shared = self.cluster(&key.cluster).shared.as_deref_mut();
        let gone = shared.and_then(|shared| shared.properties.remove(&key.name));
        dirty.imports |= gone.is_some();
    }

    pub(super) fn put_export(&mut self, mut export: ServiceExport, dirty: &mut DirtySet) {
        export.key = self.kept(export.key);
        let name = (
            Arc::clone(&export.key.namespace),
            Arc::clone(&export.key.name),
        );
        let exports = &mut shared(self.cluster(&export.key.cluster)).exports;
        let (key, status) = (export.key.clone(), export.status.clone());
        let Some(mut before) = exports.insert(name.clone(), Box::new(export)) else {
            dirty.exports.insert(key);
            // One that was deleted and is there again makes the same imports, and may lack its conditions.
            dirty.observed = true;
            return;
        };
        dirty.observed |= before.status != status;
        // A status is no reason to look at imports.
        before.status = status;
        if exports.get(&name) != Some(&before) {
            dirty.exports.insert(key);
        }
    }

    pub(super) fn remove_export(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let name = (Arc::clone(&key.namespace), Arc::clone(&key.name));
        let shared = self.cluster(&key.cluster).shared.as_deref_mut();
        let gone = shared.and_then(|shared| shared.exports.remove(&name));
        if gone.is_some() {
            dirty.exports.insert(key.clone());
            dirty.observed = true;
        }
    }
}

impl Catalog {
    /// The ServiceImports that a cluster has, in order of their names.
    pub fn observed_imports(&self, cluster: &str) -> impl Iterator<Item = &ServiceImport> {
        let shared = self.shared_of(cluster);
        shared
            .into_iter()
            .flat_map(|shared| shared.observed.values())
    }

    /// A ServiceImport that a cluster has.
    #[must_use]
    pub fn observed_import(&self, key: &ObjectKey) -> Option<&ServiceImport> {
        let observed = &self.shared_of(&key.cluster)?.observed;
        observed.get(&(Arc::clone(&key.namespace), Arc::clone(&key.name)))
    }

    pub(super) fn put_observed(&mut self, import: ServiceImport, dirty: &mut DirtySet) {
        let name = (
            Arc::clone(&import.key.namespace),
            Arc::clone(&import.key.name),
        );
        let observed = &mut shared(self.cluster(&import.key.cluster)).observed;
        let is_there = observed.contains_key(&name);
        if (is_there || observed.len() < MAX_OBSERVED) && observed.get(&name) != Some(&import) {
            observed.insert(name, import);
            dirty.observed = true;
        }
    }

    pub(super) fn remove_observed(&mut self, key: &ObjectKey, dirty: &mut DirtySet) {
        let name = (Arc::clone(&key.namespace), Arc::clone(&key.name));
        let shared = self.cluster(&key.cluster).shared.as_deref_mut();
        let gone = shared.and_then(|shared| shared.observed.remove(&name));
        dirty.observed |= gone.is_some();
    }
}

fn shared(cluster: &mut Cluster) -> &mut SharedObjects {
    cluster.shared.get_or_insert_default()
}
