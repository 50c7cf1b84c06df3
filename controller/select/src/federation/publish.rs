// SPDX-License-Identifier: Apache-2.0

//! The parts of an import's records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_catalog::{Catalog, Endpoints, ObjectKey, Service, ServicePort, TrafficPolicy};
use portolan_federate::gateway::{Path, PortName, path};
use portolan_federate::imports::{ImportHere, ImportName};
use portolan_federate::merge::{Affinity, ImportKind, ImportPort};
use portolan_model::{Family, NodeKey};
use portolan_policy::Cluster;
use portolan_policy::spec::LastResort;

use super::export::{admitted, is_port};
use super::gateway::port_name;
use super::{Federation, exported_service, given, needs_address, service_key};
use crate::project::{
    Exported, Exporter, Exporters, Imported, OfFamily, is_settled, project_import,
};
use crate::{Projection, SelectConfig};

impl Federation {
    /// The Service that an import is for clients; none without an address.
    pub(super) fn service(&self, catalog: &Catalog, key: &ObjectKey) -> Option<Service> {
        self.service_of(catalog, key, self.here(key)?)
    }

    fn service_of(&self, catalog: &Catalog, key: &ObjectKey, here: &ImportHere) -> Option<Service> {
        if !needs_address(here) {
            return None;
        }
        let ips = &self.kept.get(key)?.ips;
        let is_ours = |family: &Family| here.families.contains(family);
        let ips = ips.iter().filter(|ip| is_ours(&Family::of(**ip)));
        let ips: Vec<_> = ips.copied().collect();
        if ips.is_empty() {
            return None;
        }
        let import = &here.import;
        let ports = import.ports.iter().map(|of| ServicePort {
            name: Arc::clone(&of.port.name),
            protocol: of.port.protocol,
            port: of.port.number,
            node_port: None,
        });
        // What only the importing side can apply comes from the winner, as its other fields do.
        let winner = self.annotated(catalog, key, here);
        Some(Service {
            cluster_ips: ips,
            ports: ports.collect(),
            internal_policy: if import.internal_local {
                TrafficPolicy::Local
            } else {
                TrafficPolicy::Cluster
            },
            affinity_seconds: match import.affinity {
                Affinity::None => None,
                Affinity::ClientIp { timeout_seconds } => Some(timeout_seconds),
            },
            ..Service::annotated_as(&winner, key.clone())
        })
    }

    /// A Service with the settings that annotations of the winning cluster's give an import.
    pub(super) fn annotated(
        &self,
        catalog: &Catalog,
        key: &ObjectKey,
        here: &ImportHere,
    ) -> Service {
        let winner = match &self.given {
            Some(given) => given.annotated(key),
            None => self.winner(here).and_then(|key| catalog.service(&key)),
        };
        winner.unwrap_or_else(|| Service::new(key.clone()))
    }

    /// The Service of the winning cluster.
    fn winner(&self, here: &ImportHere) -> Option<ObjectKey> {
        let name = self.names.get(&here.import.winner)?;
        let (cluster, source) = here.sources.get_key_value(name)?;
        Some(service_key(cluster, source))
    }

    /// Projects all ports of an import, in their order.
    pub(crate) fn project(
        &self,
        catalog: &Catalog,
        config: SelectConfig,
        key: &ObjectKey,
        extent: Extent,
    ) -> Projected {
        let Some(here) = self.here(key) else {
            return Projected::default();
        };
        match self.service_of(catalog, key, here) {
            Some(service) => self.project_as(catalog, config, (&service, here), extent),
            None => self.unprojected(here),
        }
    }

    /// The same for an import that is this Service for clients.
    fn project_as(
        &self,
        catalog: &Catalog,
        config: SelectConfig,
        (service, here): (&Service, &ImportHere),
        extent: Extent,
    ) -> Projected {
        let cluster = &service.key.cluster;
        let Some(importing) = self.objects.clusters.get(&**cluster) else {
            return Projected::default();
        };
        let zones = match here.import.traffic_distribution {
            Some(_) => catalog.zones(cluster),
            None => BTreeSet::new(),
        };
        let import = Imported {
            service,
            here,
            importing: &importing.id,
            zones,
        };
        let mut projected = Projected {
            winner: self.winner(here),
            ..Projected::default()
        };
        for (index, port) in here.import.ports.iter().enumerate() {
            let exporters = self.exporters(catalog, &import, port, extent);
            let of_port = project_import(catalog, config, &import, index, &exporters);
            projected.ports.push(of_port);
            let services = exporters.all.into_iter().map(|exporter| exporter.service);
            projected.used.extend(services);
        }
        projected
    }

    /// Projects an import, or an export at gateways, for its table, and notes what that depends on. It has claimed what
    /// it is now.
    pub(crate) fn project_noted(
        &mut self,
        catalog: &Catalog,
        config: SelectConfig,
        key: &ObjectKey,
    ) -> Vec<Projection> {
        if exported_service(key).is_some() {
            return self.project_at_gateways(catalog, config, key);
        }
        let Some(here) = self.here(key) else {
            return Vec::new();
        };
        let projected = match catalog.import(key) {
            Some(service) => self.project_as(catalog, config, (service, here), Extent::Deciding),
            None => self.unprojected(here),
        };
        self.users.note(key, projected.used);
        self.heirs.note(key, projected.winner);
        let ports = projected.ports.into_iter();
        ports.map(|(projection, _)| projection).collect()
    }

    /// An import without a record. The names of a headless one depend on all clusters' endpoints.
    fn unprojected(&self, here: &ImportHere) -> Projected {
        let mut projected = Projected::default();
        if here.import.kind == ImportKind::Headless {
            let sources = here.sources.iter();
            projected.used = sources
                .map(|(cluster, name)| service_key(cluster, name))
                .collect();
        }
        projected
    }

    /// The clusters that expose a port of an import, by name.
    fn exporters<'c>(
        &'c self,
        catalog: &'c Catalog,
        import: &Imported<'_>,
        port: &ImportPort,
        extent: Extent,
    ) -> Exporters<'c> {
        let here = import.here;
        let importing = &import.service.key.cluster;
        let keeps = self.keeps_last(here, port);
        // By name; none of those that do not expose the port.
        let mut found = BTreeMap::<&Arc<str>, Option<Exporter<'c>>>::new();
        let find = |found: &mut BTreeMap<_, _>, name: &Arc<str>| {
            let source = here.sources.get_key_value(name);
            if let Some((name, source)) = source.filter(|(name, _)| !found.contains_key(name)) {
                let exporter = self.exporter(catalog, (importing, here), port, (name, source));
                found.insert(name, exporter);
            }
        };
        // Local rules need the own endpoints.
        find(&mut found, importing);
        for (index, tier) in here.traffic.tiers.iter().enumerate() {
            for name in tier.ids().filter_map(|id| self.names.get(id)) {
                find(&mut found, name);
            }
            let are_all = found.len() == here.sources.len();
            // Lost clusters settle nothing, so if all are lost the states of all of them count.
            let all = || found.values().flatten();
            if !are_all && extent == Extent::Deciding && is_settled(import, all(), index + 1) {
                let all = found.into_values().flatten().collect();
                return Exporters { all, keeps };
            }
        }
        for name in here.sources.keys() {
            find(&mut found, name);
        }
        let all = found.into_values().flatten().collect();
        Exporters { all, keeps }
    }

    /// Whether the last known endpoints serve, since all clusters are lost that expose the port.
    fn keeps_last(&self, here: &ImportHere, port: &ImportPort) -> bool {
        let exposing = here.sources.keys().filter(|name| {
            let cluster = self.objects.clusters.get(&***name);
            cluster.is_some_and(|cluster| port.clusters.contains(cluster.id.as_str()))
        });
        let mut states = exposing.filter_map(|name| self.states.get(name));
        self.set.loss.last_resort == LastResort::Keep && states.all(|state| state.lost)
    }

    fn exporter<'c>(
        &'c self,
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

    /// The endpoints of a port of a Service that imports may use.
    pub(super) fn admitted<'c>(
        &self,
        catalog: &'c Catalog,
        cluster: &Cluster,
        service: &Service,
        port: &ServicePort,
    ) -> Endpoints<'c> {
        let most = self.set.quota.endpoints_per_export;
        admitted(&cluster.network, most, catalog.endpoints(service, port))
    }

    /// The gateways of [`Self::gateways_for`], with the zones of their Nodes.
    pub(super) fn zoned_gateways(
        &self,
        catalog: &Catalog,
        importing: &Cluster,
        port: &PortName,
        exporting: &Arc<str>,
    ) -> BTreeMap<SocketAddr, Option<Arc<str>>> {
        let gateways = self.gateways_for(importing, port, exporting).into_iter();
        let zoned = gateways.map(|(place, node)| (place, zone(catalog, exporting, &node)));
        zoned.collect()
    }
}

/// The zone of a node.
pub(super) fn zone(catalog: &Catalog, cluster: &Arc<str>, node: &Arc<str>) -> Option<Arc<str>> {
    let node = NodeKey {
        cluster: Arc::clone(cluster),
        name: Arc::clone(node),
    };
    catalog.zone(&node).cloned()
}

/// Which clusters are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Those that decide about the record.
    Deciding,
    /// All, for people.
    All,
}

/// The ports of an import, projected.
#[derive(Debug, Default)]
pub(crate) struct Projected {
    /// Each port with its shares by family.
    pub(crate) ports: Vec<(Projection, BTreeMap<Family, OfFamily>)>,
    /// The exported Services whose endpoints were looked at. Those of another one change nothing here.
    used: Vec<ObjectKey>,
    /// The exported Service whose settings it has. Those of another one change nothing here.
    winner: Option<ObjectKey>,
}
