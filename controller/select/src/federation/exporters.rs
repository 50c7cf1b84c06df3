// SPDX-License-Identifier: Apache-2.0

//! The clusters that expose a port of an import, with their endpoints.
//!
//! Imports of one name are mostly made of the same exports in all clusters: these are looked up once.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use portolan_catalog::{Catalog, ObjectKey};
use portolan_federate::gateway::{Path, path};
use portolan_federate::imports::{ImportHere, ImportName, Traffic};
use portolan_federate::merge::{Import, ImportPort};
use portolan_policy::spec::{LastResort, NetworkMode};

use super::export::{admitted, is_port};
use super::gateway::port_name;
use super::publish::{Extent, zone};
use super::users::Users;
use super::{Federation, given, service_key};
use crate::project::{Exported, Exporter, Exporters, Imported, is_settled};

/// Exporters of the imports of one name, for the import of the next cluster.
#[derive(Debug, Default)]
pub(crate) struct Seen<'c> {
    namespace: Arc<str>,
    name: Arc<str>,
    groups: Vec<Group<'c>>,
}

/// Imports that are made of the same exports, the pods of which they reach, with a first tier that has all of them. In one
/// port they have the same exporters.
#[derive(Debug)]
struct Group<'c> {
    import: Arc<Import>,
    sources: Arc<BTreeMap<Arc<str>, ImportName>>,
    traffic: Arc<Traffic>,
    port: usize,
    exporters: Rc<Exporters<'c>>,
    imports: Vec<Arc<ObjectKey>>,
}

impl Group<'_> {
    fn has(&self, here: &ImportHere, port: usize) -> bool {
        self.port == port
            && Arc::ptr_eq(&self.import, &here.import)
            && Arc::ptr_eq(&self.sources, &here.sources)
            && self.traffic.tiers == here.traffic.tiers
    }
}

impl<'c> Seen<'c> {
    /// Begins an import. Notes what those of another name used.
    pub(super) fn begin(&mut self, key: &ObjectKey, users: &mut Users) {
        if (&self.namespace, &self.name) != (&key.namespace, &key.name) {
            self.note(users);
            self.namespace = Arc::clone(&key.namespace);
            self.name = Arc::clone(&key.name);
        }
    }

    /// Notes what the imports used.
    pub(super) fn note(&mut self, users: &mut Users) {
        for group in self.groups.drain(..) {
            users.note(&group.imports, group.exporters.services());
        }
    }

    /// Takes over to note what an import used. Returns `false` if the exporters are not among the seen ones.
    pub(super) fn takes(&mut self, import: &Arc<ObjectKey>, used: &Rc<Exporters<'c>>) -> bool {
        let mut groups = self.groups.iter_mut();
        let group = groups.find(|group| Rc::ptr_eq(&group.exporters, used));
        let taken = group.map(|group| group.imports.push(Arc::clone(import)));
        taken.is_some()
    }
}

/// Exporters as they are looked up, each once.
#[derive(Debug, Default)]
struct Lookup<'h, 'c> {
    names: BTreeSet<&'h Arc<str>>,
    /// None of those that do not expose the port.
    found: Exporters<'c>,
}

impl Federation {
    /// The clusters that expose a port of an import, by name.
    pub(super) fn exporters<'c>(
        &self,
        catalog: &'c Catalog,
        import: &Imported<'_>,
        port: usize,
        (extent, seen): (Extent, &mut Seen<'c>),
    ) -> Rc<Exporters<'c>> {
        let here = import.here;
        // One that follows a centre has imports of one cluster.
        let may_share = extent == Extent::Deciding && self.given.is_none();
        let may_share = may_share && self.is_flat(&import.service.key.cluster);
        let mut groups = seen.groups.iter().filter(|_| may_share);
        if let Some(group) = groups.find(|group| group.has(here, port)) {
            return Rc::clone(&group.exporters);
        }
        let mut lookup = Lookup::default();
        if extent == Extent::Deciding && self.look_up_deciding(catalog, import, port, &mut lookup) {
            return Rc::new(lookup.found);
        }
        for name in here.sources.keys() {
            self.look_up(catalog, import, port, name, &mut lookup);
        }
        let keeps = self.keeps_last(here, &here.import.ports[port]);
        let exporters = Rc::new(lookup.found.keeping(keeps));
        let first = here.traffic.tiers.first();
        let is_first = first.is_some_and(|tier| tier.ids().count() == here.sources.len());
        let mut sources = here.sources.keys();
        if may_share && is_first && sources.all(|name| self.is_flat(name)) {
            seen.groups.push(Group {
                import: Arc::clone(&here.import),
                sources: Arc::clone(&here.sources),
                traffic: Arc::clone(&here.traffic),
                port,
                exporters: Rc::clone(&exporters),
                imports: Vec::new(),
            });
        }
        exporters
    }

    /// Looks up the clusters that decide. Returns whether these are not all.
    fn look_up_deciding<'h, 'c>(
        &self,
        catalog: &'c Catalog,
        import: &Imported<'h>,
        port: usize,
        lookup: &mut Lookup<'h, 'c>,
    ) -> bool {
        let here = import.here;
        // Local rules need the own endpoints.
        let own = &import.service.key.cluster;
        self.look_up(catalog, import, port, own, lookup);
        for (tier, tiers) in here.traffic.tiers.iter().zip(1..) {
            let names = tier.ids().filter_map(|id| self.names.get(id));
            let names = names.filter_map(|name| Some(here.sources.get_key_value(name)?.0));
            let names: BTreeSet<_> = names.filter(|name| !lookup.names.contains(name)).collect();
            if lookup.names.len() + names.len() == here.sources.len() {
                return false;
            }
            for name in names {
                self.look_up(catalog, import, port, name, lookup);
            }
            // Lost clusters settle nothing, so if all are lost the states of all of them count.
            if is_settled(import, &lookup.found, tiers) {
                return true;
            }
        }
        false
    }

    /// Looks up a cluster, unless it exports nothing here.
    fn look_up<'h, 'c>(
        &self,
        catalog: &'c Catalog,
        import: &Imported<'h>,
        port: usize,
        name: &Arc<str>,
        lookup: &mut Lookup<'h, 'c>,
    ) {
        let here = import.here;
        let Some((name, source)) = here.sources.get_key_value(name) else {
            return;
        };
        if lookup.names.insert(name) {
            let importing = &import.service.key.cluster;
            let port = &here.import.ports[port];
            let found = self.exporter(catalog, (importing, here), port, (name, source));
            if let Some(exporter) = found {
                lookup.found.add(exporter);
            }
        }
    }

    fn is_flat(&self, cluster: &Arc<str>) -> bool {
        let cluster = self.objects.clusters.get(&**cluster);
        cluster.is_some_and(|cluster| cluster.network.mode == NetworkMode::Flat)
    }

    /// Returns `true` if the last known endpoints serve, since all clusters are lost that expose the port.
    fn keeps_last(&self, here: &ImportHere, port: &ImportPort) -> bool {
        let exposing = here.sources.keys().filter(|name| {
            let cluster = self.objects.clusters.get(&***name);
            cluster.is_some_and(|cluster| port.clusters.contains(cluster.id.as_str()))
        });
        let mut states = exposing.filter_map(|name| self.states.get(name));
        self.set.loss.last_resort == LastResort::Keep && states.all(|state| state.lost)
    }

    fn exporter<'c>(
        &self,
        catalog: &'c Catalog,
        (importing, here): (&Arc<str>, &ImportHere),
        port: &ImportPort,
        (name, source): (&Arc<str>, &ImportName),
    ) -> Option<Exporter<'c>> {
        let cluster = self.objects.clusters.get(&**name)?;
        let id = Arc::clone(port.clusters.get(cluster.id.as_str())?);
        let service = service_key(name, source);
        let state = self.states.get(name).copied()?;
        if let Some(given) = &self.given
            && importing != name
        {
            let plan = given.service(&service)?;
            return Some(given::exporter(plan, id, service, state, port));
        }
        let importing = self.objects.clusters.get(&**importing)?;
        let gateways = match path(importing, cluster).ok()? {
            Path::Pods => None,
            Path::Gateways => {
                let port = port_name(&service, &port.port.name, port.port.protocol);
                Some(self.zoned_gateways(catalog, importing, &port, name))
            }
        };
        let are_zoned = here.import.traffic_distribution.is_some();
        let endpoints = catalog.endpoints_of(&service, |one| is_port(one, port));
        let most = self.set.quota.endpoints_per_export;
        let endpoints = admitted(&cluster.network, most, endpoints);
        let weights = catalog.weights(&service);
        let endpoints = endpoints.into_iter().map(|(address, endpoint)| {
            let zone = || zone(catalog, &service.cluster, endpoint.node?);
            let one = Exported {
                endpoint,
                weight: weights.of(&endpoint),
                zone: are_zoned.then(zone).flatten(),
            };
            (address, one)
        });
        Some(Exporter {
            id,
            gateways,
            endpoints: endpoints.collect(),
            service,
            state,
        })
    }
}
