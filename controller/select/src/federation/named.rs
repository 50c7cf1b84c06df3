// SPDX-License-Identifier: Apache-2.0

//! Imports as DNS names them: their virtual addresses, or the endpoints of each exporting cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_catalog::{Catalog, EndpointRef, ObjectKey, ServiceFacts};
use portolan_federate::gateway::{Path, path};
use portolan_federate::imports::ImportHere;
use portolan_federate::merge::{ImportKind, Port};
use portolan_mcs::{WantedEndpoint, WantedEndpoints};
use portolan_model::{Family, NodeKey, Protocol};
use portolan_policy::Cluster;
use portolan_policy::spec::LastResort;

use super::export::{admitted, export_port_of, first_of_families};
use super::gateway::port_name;
use super::{Federation, import_key, service_key};

/// An import as DNS names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedImport {
    /// Headless: the name stands for the endpoints.
    pub kind: ImportKind,
    /// The virtual addresses, in the order of the families; none if it is headless.
    pub ips: Vec<IpAddr>,
    /// The ports of the virtual addresses.
    pub ports: Vec<Port>,
    /// The ready endpoints of each cluster, by its id; none if it is not headless.
    pub endpoints: BTreeMap<Arc<str>, Vec<NamedEndpoint>>,
}

/// A ready endpoint of a headless import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its label below the cluster's, if it has one.
    pub hostname: Option<Arc<str>>,
    /// The numbers of its ports, by name and protocol. None for a Service without ports.
    pub ports: BTreeMap<(Arc<str>, Protocol), u16>,
}

impl Federation {
    /// Begins to note the imports whose names may have changed: at first all.
    pub(crate) fn follow_names(&mut self) {
        self.renamed = Some(self.keys());
    }

    /// The imports whose names may have changed since the last call. None without
    /// [`follow_names`](Self::follow_names).
    pub(crate) fn take_renamed(&mut self) -> BTreeSet<ObjectKey> {
        self.renamed
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Returns `true` if namespaces may have changed since the last call.
    pub(crate) fn take_namespaces_changed(&mut self) -> bool {
        std::mem::take(&mut self.namespaces_changed)
    }

    /// Notes that facts of exports may have changed that the plan does not depend on: the families of a headless
    /// Service, which has no other object here.
    pub(super) fn note_facts(&mut self) {
        self.endpoints_changed = true;
        self.namespaces_changed = true;
        let Some(renamed) = &mut self.renamed else {
            return;
        };
        for (cluster, imports) in &self.plan.imports {
            let is_headless = |here: &ImportHere| here.import.kind == ImportKind::Headless;
            let headless = imports.iter().filter(|(_, here)| is_headless(here));
            renamed.extend(headless.map(|(name, _)| import_key(cluster, name)));
        }
    }

    /// An import as DNS names it; `None` if there is none.
    pub(crate) fn import_names(&self, catalog: &Catalog, key: &ObjectKey) -> Option<NamedImport> {
        let here = self.here(key)?;
        let kind = here.import.kind;
        let kept = self.kept.get(key).into_iter();
        let kept: Vec<IpAddr> = kept.flat_map(|kept| kept.ips.iter().copied()).collect();
        let of = |family: &Family| kept.iter().find(|ip| Family::of(**ip) == *family);
        let ports = here.import.ports.iter().map(|of| of.port.clone());
        let endpoints = match kind {
            ImportKind::ClusterSetIp => BTreeMap::new(),
            ImportKind::Headless => {
                let all = self.exported_endpoints(catalog, &key.cluster, here);
                all.map(|(id, endpoints)| (id, ready(endpoints))).collect()
            }
        };
        Some(NamedImport {
            kind,
            ips: here.families.iter().filter_map(of).copied().collect(),
            ports: ports.collect(),
            endpoints,
        })
    }

    /// The endpoints that each exporting cluster gives an import, by its id. Those of lost clusters are
    /// left out, unless all are lost and the last known ones stay.
    pub(super) fn exported_endpoints(
        &self,
        catalog: &Catalog,
        importing: &str,
        here: &ImportHere,
    ) -> impl Iterator<Item = (Arc<str>, WantedEndpoints)> {
        let importing = self.objects.clusters.get(importing);
        let is_lost = |name: &Arc<str>| self.states.get(name).is_some_and(|state| state.lost);
        let keeps_last = self.set.loss.last_resort == LastResort::Keep;
        let keeps = keeps_last && here.sources.keys().all(is_lost);
        let sources = here.sources.iter();
        let serving = sources.filter(move |(exporting, _)| keeps || !is_lost(exporting));
        serving.filter_map(move |(exporting, source)| {
            let exporter = self.objects.clusters.get(&**exporting)?;
            let key = service_key(exporting, source);
            let facts = catalog.export(&key)?.service.as_deref()?;
            let endpoints = self.of_exporter(catalog, here, exporter, &key, facts);
            let endpoints = match path(importing?, exporter).ok()? {
                Path::Pods => endpoints,
                Path::Gateways => self.at_gateways_of(catalog, importing?, &key, endpoints),
            };
            Some((Arc::from(exporter.id.as_str()), endpoints))
        })
    }

    /// The gateways in place of the endpoints that they lead to, each with the ports of the export there.
    fn at_gateways_of(
        &self,
        catalog: &Catalog,
        importing: &Cluster,
        service: &ObjectKey,
        endpoints: WantedEndpoints,
    ) -> WantedEndpoints {
        let mut all = BTreeMap::<IpAddr, (Arc<str>, BTreeMap<(Arc<str>, Protocol), u16>)>::new();
        let mut ready = BTreeMap::<Family, bool>::new();
        let mut names = BTreeSet::new();
        for (endpoint, ports) in &endpoints {
            *ready.entry(Family::of(endpoint.address)).or_default() |= endpoint.ready;
            names.extend(ports.keys().cloned());
        }
        for (name, protocol) in names {
            let port = port_name(service, &name, protocol);
            for (place, node) in self.gateways_for(importing, &port, &service.cluster) {
                let (_, ports) = all.entry(place.ip()).or_insert((node, BTreeMap::new()));
                ports.insert((Arc::clone(&name), protocol), place.port());
            }
        }
        let gateways = all.into_iter().filter_map(|(address, (name, ports))| {
            let ready = *ready.get(&Family::of(address))?;
            let node = NodeKey {
                cluster: Arc::clone(&service.cluster),
                name,
            };
            let zone = catalog.zone(&node).cloned();
            let gateway = WantedEndpoint {
                address,
                ready,
                serving: ready,
                terminating: false,
                zone,
                hostname: None,
            };
            Some((gateway, ports))
        });
        gateways.collect()
    }

    fn of_exporter(
        &self,
        catalog: &Catalog,
        here: &ImportHere,
        exporter: &Cluster,
        service: &ObjectKey,
        facts: &ServiceFacts,
    ) -> WantedEndpoints {
        let most = self.set.quota.endpoints_per_export;
        let zone = |endpoint: &EndpointRef<'_>| {
            let node = NodeKey {
                cluster: Arc::clone(&service.cluster),
                name: Arc::clone(endpoint.node?),
            };
            catalog.zone(&node).cloned()
        };
        let wanted = |address: IpAddr, endpoint: &EndpointRef<'_>| WantedEndpoint {
            address,
            ready: endpoint.ready,
            serving: endpoint.serving,
            terminating: endpoint.terminating,
            zone: zone(endpoint),
            hostname: endpoint.hostname.map(Arc::from),
        };
        let mut all = WantedEndpoints::new();
        if facts.ports.is_empty() {
            let mut hosts = catalog.exported_hosts(service, &facts.families);
            hosts.retain(|(address, _)| exporter.network.admits(*address).is_ok());
            first_of_families(&mut hosts, most, |address| *address);
            let hosts = hosts.into_iter();
            all.extend(hosts.map(|(ip, endpoint)| (wanted(ip, &endpoint), BTreeMap::new())));
        }
        let ports = here.import.ports.iter();
        for port in ports.filter(|port| port.clusters.contains(exporter.id.as_str())) {
            if export_port_of(facts, port).is_none() {
                continue;
            }
            let name = (&*port.port.name, port.port.protocol);
            let endpoints = catalog.exported_endpoints(service, &facts.families, name);
            for (address, endpoint) in admitted(&exporter.network, most, endpoints) {
                let of_endpoint = all.entry(wanted(address.ip(), &endpoint)).or_default();
                let name = (Arc::clone(&port.port.name), port.port.protocol);
                of_endpoint.insert(name, SocketAddr::port(&address));
            }
        }
        all
    }
}

fn ready(endpoints: WantedEndpoints) -> Vec<NamedEndpoint> {
    let ready = endpoints.into_iter().filter(|(endpoint, _)| endpoint.ready);
    let named = ready.map(|(endpoint, ports)| NamedEndpoint {
        address: endpoint.address,
        hostname: endpoint.hostname,
        ports,
    });
    named.collect()
}
