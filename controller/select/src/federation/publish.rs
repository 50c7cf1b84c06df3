// SPDX-License-Identifier: Apache-2.0

//! The parts of an import's records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use portolan_catalog::{Catalog, Endpoints, ObjectKey, Service, ServicePort, TrafficPolicy};
use portolan_federate::gateway::PortName;
use portolan_federate::imports::ImportHere;
use portolan_federate::merge::{Affinity, ImportKind};
use portolan_model::{Family, NodeKey};
use portolan_policy::Cluster;

use super::export::admitted;
use super::exporters::Seen;
use super::{Federation, exported_service, needs_address, service_key};
use crate::project::{Exporters, Imported, OfFamily, project_import};
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
    pub(crate) fn project<'c>(
        &self,
        catalog: &'c Catalog,
        config: SelectConfig,
        key: &ObjectKey,
        extent: Extent,
    ) -> Projected<'c> {
        let Some(here) = self.here(key) else {
            return Projected::default();
        };
        let mut seen = Seen::default();
        let how = (extent, &mut seen);
        match self.service_of(catalog, key, here) {
            Some(service) => self.project_as(catalog, config, (&service, here), how),
            None => self.unprojected(here),
        }
    }

    /// The same for an import that is this Service for clients.
    fn project_as<'c>(
        &self,
        catalog: &'c Catalog,
        config: SelectConfig,
        (service, here): (&Service, &ImportHere),
        (extent, seen): (Extent, &mut Seen<'c>),
    ) -> Projected<'c> {
        let cluster = &service.key.cluster;
        let Some(importing) = self.objects.clusters.get(&**cluster) else {
            return Projected::default();
        };
        let zones = match here.import.traffic_distribution {
            Some(_) => catalog.zones(cluster),
            None => BTreeSet::new(),
        };
        let claimed = catalog.import(&service.key);
        let import = Imported {
            service,
            is_claimed: claimed.is_some_and(|claimed| std::ptr::eq(claimed, service)),
            here,
            importing: &importing.id,
            zones,
        };
        let ports = here.import.ports.len();
        let mut projected = Projected {
            ports: Vec::with_capacity(ports),
            exporters: Vec::with_capacity(ports),
            used: Vec::new(),
        };
        for port in 0..ports {
            let exporters = self.exporters(catalog, &import, port, (extent, seen));
            let of_port = project_import(catalog, config, &import, port, &exporters);
            projected.ports.push(of_port);
            projected.exporters.push(exporters);
        }
        projected
    }

    /// Projects an import, or an export at gateways, for its table, and notes what that depends on. It has claimed what
    /// it is now.
    ///
    /// Imports of one name should follow one another. [`Self::note_seen`] comes after the last one.
    pub(crate) fn project_noted<'c>(
        &mut self,
        catalog: &'c Catalog,
        config: SelectConfig,
        key: &ObjectKey,
        seen: &mut Seen<'c>,
    ) -> Vec<Projection> {
        let is_claimed = self.claimed.remove(key);
        if exported_service(key).is_some() {
            return self.project_at_gateways(catalog, config, key);
        }
        seen.begin(key, &mut self.users);
        let Some(here) = self.here(key) else {
            return Vec::new();
        };
        let how = (Extent::Deciding, &mut *seen);
        let projected = match catalog.import(key) {
            Some(service) => self.project_as(catalog, config, (service, here), how),
            None => self.unprojected(here),
        };
        let import = [Arc::new(key.clone())];
        if is_claimed && catalog.import(key).is_some() {
            let winner = self.winner(here);
            self.heirs.note(&import, &winner);
        }
        for exporters in &projected.exporters {
            if !seen.takes(&import[0], exporters) {
                self.users.note(&import, exporters.services());
            }
        }
        self.users.note(&import, &projected.used);
        let ports = projected.ports.into_iter();
        ports.map(|(projection, _)| projection).collect()
    }

    /// Notes what imports depend on that were seen.
    pub(crate) fn note_seen(&mut self, mut seen: Seen<'_>) {
        seen.note(&mut self.users);
    }

    /// An import without a record. The names of a headless one depend on all clusters' endpoints.
    fn unprojected<'c>(&self, here: &ImportHere) -> Projected<'c> {
        let mut projected = Projected::default();
        if here.import.kind == ImportKind::Headless {
            let sources = here.sources.iter();
            projected.used = sources
                .map(|(cluster, name)| service_key(cluster, name))
                .collect();
        }
        projected
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

/// Clusters that are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Those that decide about the record.
    Deciding,
    /// All, for people.
    All,
}

/// The ports of an import, projected.
#[derive(Debug, Default)]
pub(crate) struct Projected<'c> {
    /// Each port with its shares by family.
    pub(crate) ports: Vec<(Projection, Vec<(Family, OfFamily)>)>,
    /// Of each port the exporters whose endpoints were looked at. Those of another one change nothing here.
    exporters: Vec<Rc<Exporters<'c>>>,
    /// Exported Services that count beside these.
    used: Vec<ObjectKey>,
}
