// SPDX-License-Identifier: Apache-2.0

//! The objects of one cluster, by namespace and name: no name is kept twice for a key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::Family;

use crate::addresses::Addresses;
use crate::claims::Claims;
use crate::packed::{Few, PackedNode, PackedService, PackedSlice, cut};
use crate::{Kind, QuickMap, Service, ServiceExport, ServiceImport};

/// One cluster.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pub(super) namespaces: QuickMap<Arc<str>, Namespace>,
    pub(super) nodes: QuickMap<Arc<str>, Box<PackedNode>>,
    /// The weights of those nodes that have one: few, mostly none.
    pub(super) node_weights: QuickMap<Arc<str>, u32>,
    pub(super) claims: Claims,
    pub(super) addresses: Addresses,
    /// Of Services, EndpointSlices and Nodes; `None` before the source reports any.
    pub(super) versions: Option<[u64; 3]>,
    pub(super) counts: Counts,
    /// Objects that imports are made of; `None` without any.
    pub(super) shared: Option<Box<SharedObjects>>,
}

/// The objects of a cluster that other clusters see, and its own imports.
#[derive(Debug, Default)]
pub(super) struct SharedObjects {
    pub(super) namespaces: BTreeSet<Arc<str>>,
    /// By namespace and name.
    pub(super) exports: QuickMap<(Arc<str>, Arc<str>), Box<ServiceExport>>,
    /// The Services that imports are for claims, by namespace and name.
    pub(super) imports: QuickMap<(Arc<str>, Arc<str>), Box<Service>>,
    /// ServiceImports that are there, by namespace and name.
    pub(super) observed: BTreeMap<(Arc<str>, Arc<str>), ServiceImport>,
    /// Properties of the cluster: values by name.
    pub(super) properties: BTreeMap<Arc<str>, Arc<str>>,
}

/// The number of objects of each kind, and of endpoints in all slices.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) services: usize,
    pub(super) slices: usize,
    pub(super) endpoints: usize,
    pub(super) pods: usize,
}

/// One namespace of one cluster.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    pub(super) services: QuickMap<Arc<str>, Box<ServiceEntry>>,
    /// The Services of those slices whose name does not say it: controllers name a slice by its
    /// Service, a dash and a random end, but if that is too long.
    elsewhere: QuickMap<Arc<str>, Arc<str>>,
    /// The weights of those Pods that have one.
    pub(super) pods: QuickMap<Arc<str>, u32>,
}

/// A Service and its slices, which may come before it.
#[derive(Debug, Default)]
pub(super) struct ServiceEntry {
    pub(super) service: Option<PackedService>,
    /// Sorted by name.
    slices: Few<PackedSlice>,
}

impl Cluster {
    /// The number of objects of a kind.
    pub(super) fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Service => self.counts.services,
            Kind::EndpointSlice => self.counts.slices,
            Kind::Node => self.nodes.len(),
            Kind::Pod => self.counts.pods,
            Kind::Namespace => self.shared().map_or(0, |shared| shared.namespaces.len()),
            Kind::ServiceExport => self.shared().map_or(0, |shared| shared.exports.len()),
            Kind::ServiceImport => self.shared().map_or(0, |shared| shared.observed.len()),
            Kind::ClusterProperty => self.shared().map_or(0, |shared| shared.properties.len()),
            Kind::LoadBalancer | Kind::Director | Kind::Policy => 0,
        }
    }

    /// The names of all objects of a kind, by namespace; those of Nodes and Namespaces in none.
    pub(super) fn names(&self, kind: Kind) -> BTreeSet<(Arc<str>, Arc<str>)> {
        let in_none = |name| (Arc::default(), Arc::clone(name));
        if kind == Kind::Node {
            return self.nodes.keys().map(in_none).collect();
        }
        match (kind, self.shared()) {
            (Kind::Namespace, Some(shared)) => {
                return shared.namespaces.iter().map(in_none).collect();
            }
            (Kind::ClusterProperty, Some(shared)) => {
                return shared.properties.keys().map(in_none).collect();
            }
            (Kind::ServiceExport, Some(shared)) => {
                return shared.exports.keys().cloned().collect();
            }
            (Kind::ServiceImport, Some(shared)) => {
                return shared.observed.keys().cloned().collect();
            }
            _ => {}
        }
        let of_namespace = |(namespace, all): (&Arc<str>, &Namespace)| {
            let names: Vec<_> = all.names(kind).collect();
            let namespace = Arc::clone(namespace);
            names
                .into_iter()
                .map(move |name| (Arc::clone(&namespace), name))
        };
        self.namespaces.iter().flat_map(of_namespace).collect()
    }

    pub(super) fn shared(&self) -> Option<&SharedObjects> {
        self.shared.as_deref()
    }

    /// The Service and slices of a name.
    pub(super) fn entry(&self, namespace: &str, name: &str) -> Option<&ServiceEntry> {
        Some(self.namespaces.get(namespace)?.services.get(name)?)
    }

    pub(super) fn created(&self, namespace: &str, name: &str) -> Option<i64> {
        self.entry(namespace, name)?.service.as_ref()?.created()
    }

    pub(super) fn namespace(&mut self, name: &Arc<str>) -> &mut Namespace {
        self.namespaces.entry(Arc::clone(name)).or_default()
    }

    /// A namespace's name as it is kept.
    pub(super) fn kept_name(&self, namespace: &Arc<str>) -> Arc<str> {
        let known = self.namespaces.get_key_value(namespace);
        Arc::clone(known.map_or(namespace, |(name, _)| name))
    }

    /// A Service's name as it is kept.
    pub(super) fn kept_service(&self, namespace: &str, name: &Arc<str>) -> Arc<str> {
        let all = self.namespaces.get(namespace);
        let known = all.and_then(|all| all.services.get_key_value(name));
        Arc::clone(known.map_or(name, |(name, _)| name))
    }

    /// Removes a namespace if it is empty.
    pub(super) fn tidy(&mut self, name: &str) {
        let is_empty = |all: &Namespace| all.services.is_empty() && all.pods.is_empty();
        if self.namespaces.get(name).is_some_and(is_empty) {
            self.namespaces.remove(name);
        }
    }
}

impl Namespace {
    fn names(&self, kind: Kind) -> Box<dyn Iterator<Item = Arc<str>> + '_> {
        let services = self.services.iter();
        match kind {
            Kind::Service => {
                let ours = services.filter(|(_, entry)| entry.service.is_some());
                Box::new(ours.map(|(name, _)| Arc::clone(name)))
            }
            Kind::EndpointSlice => {
                let slices = services.flat_map(|(_, entry)| entry.slices());
                Box::new(slices.map(|slice| slice.name().into()))
            }
            Kind::Pod => Box::new(self.pods.keys().cloned()),
            Kind::Node
            | Kind::Namespace
            | Kind::ServiceExport
            | Kind::ServiceImport
            | Kind::ClusterProperty
            | Kind::LoadBalancer
            | Kind::Director
            | Kind::Policy => Box::new(std::iter::empty()),
        }
    }

    /// The Service of a slice that is here.
    pub(super) fn service_of(&self, slice: &str) -> Option<&Arc<str>> {
        if let Some(service) = self.elsewhere.get(slice) {
            return Some(service);
        }
        let has_it = |(dash, _): (usize, _)| {
            let (service, entry) = self.services.get_key_value(&slice[..dash])?;
            entry.slice(slice).map(|_| service)
        };
        slice.rmatch_indices('-').find_map(has_it)
    }

    /// Records the Service of a slice, if the slice's name does not begin with it.
    pub(super) fn note_slice(&mut self, slice: &str, service: Arc<str>) {
        let end = slice.strip_prefix(&*service);
        if !end.is_some_and(|end| end.starts_with('-')) {
            self.elsewhere.insert(slice.into(), service);
        }
    }

    /// Takes a slice out, with the name of its Service.
    pub(super) fn remove_slice(&mut self, name: &str) -> Option<(Arc<str>, PackedSlice)> {
        let service = Arc::clone(self.service_of(name)?);
        self.elsewhere.remove(name);
        let slice = self.services.get_mut(&service)?.remove_slice(name)?;
        self.tidy(&service);
        Some((service, slice))
    }

    /// The Service's name as stored, and its entry.
    pub(super) fn entry(&mut self, service: &Arc<str>) -> (Arc<str>, &mut ServiceEntry) {
        let known = self.services.get_key_value(service);
        let name = Arc::clone(known.map_or(service, |(name, _)| name));
        let entry = self.services.entry(Arc::clone(&name)).or_default();
        (name, entry)
    }

    /// Takes the Service itself.
    pub(super) fn remove_service(&mut self, name: &str) -> Option<PackedService> {
        let taken = self.services.get_mut(name)?.service.take();
        self.tidy(name);
        taken
    }

    /// Removes an entry if it is empty.
    pub(super) fn tidy(&mut self, service: &str) {
        if let Some(entry) = self.services.get(service)
            && entry.service.is_none()
            && entry.slices().is_empty()
        {
            self.services.remove(service);
        }
    }
}

impl ServiceEntry {
    pub(super) fn slices(&self) -> &[PackedSlice] {
        self.slices.as_slice()
    }

    /// The slices whose family is wanted.
    pub(super) fn slices_in(
        &self,
        is_wanted: impl Fn(Family) -> bool,
    ) -> impl Iterator<Item = &PackedSlice> {
        let slices = self.slices().iter();
        slices.filter(move |slice| slice.family().is_some_and(&is_wanted))
    }

    /// Puts a slice, and returns its last version.
    pub(super) fn put_slice(&mut self, slice: PackedSlice) -> Option<PackedSlice> {
        match self.find(slice.name()) {
            Ok(index) => {
                let place = &mut self.slices.as_mut_slice()[index];
                Some(std::mem::replace(place, slice))
            }
            Err(index) => {
                self.slices.edit(|slices| slices.insert(index, slice));
                None
            }
        }
    }

    fn remove_slice(&mut self, name: &str) -> Option<PackedSlice> {
        let index = self.find(name).ok()?;
        Some(self.slices.edit(|slices| slices.remove(index)))
    }

    pub(super) fn slice(&self, name: &str) -> Option<&PackedSlice> {
        Some(&self.slices()[self.find(name).ok()?])
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.slices()
            .binary_search_by(|slice| slice.name().cmp(cut(name)))
    }
}
