// SPDX-License-Identifier: Apache-2.0

//! Exports that other clusters reach by gateways.
//!
//! Such an export has a record of its own in the exporting cluster, under the name `NAME@gateway`, which no Service
//! has: at the addresses of the gateways and one port for each port of the export. It leads to the endpoints of that
//! cluster alone, and admits the nodes of the clusters that import the export by gateways.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_catalog::{
    Catalog, FieldProblem, ObjectKey, Reason, Service, ServiceFacts, ServicePort,
};
use portolan_federate::Moment;
use portolan_federate::gateway::{Gateways, Host, Path, PortClaim, PortName, Ports, path};
use portolan_federate::imports::{ImportHere, ImportName};
use portolan_federate::merge::Affinity;
use portolan_model::{Families, Family, Protocol, Scope};
use portolan_policy::{Cluster, PortRange};

use super::export::{ENDPOINTS, admitted};
use super::{Federation, imported, is_imported, service_key, unchecked};
use crate::project::{GatewayExport, project_gateway};
use crate::{Projection, SelectConfig};

/// Ends the names of exports at gateways.
const GATEWAY: &str = Scope::GATEWAY;

/// The ports that the exports of a cluster have at its gateways.
pub type GatewayPorts = BTreeMap<PortName, u16>;

/// The key of an exported Service at the gateways of its cluster.
pub(crate) fn gateway_key(service: &ObjectKey) -> ObjectKey {
    ObjectKey {
        name: format!("{}{GATEWAY}", service.name).into(),
        ..service.clone()
    }
}

/// The exported Service of a key at gateways; none if it is none of these.
pub(crate) fn exported_service(key: &ObjectKey) -> Option<ObjectKey> {
    Some(ObjectKey {
        name: key.name.strip_suffix(GATEWAY)?.into(),
        ..key.clone()
    })
}

/// The name of a port of an exported Service.
pub(super) fn port_name(service: &ObjectKey, port: &Arc<str>, protocol: Protocol) -> PortName {
    PortName {
        service: ImportName {
            namespace: Arc::clone(&service.namespace),
            name: Arc::clone(&service.name),
        },
        port: Arc::clone(port),
        protocol,
    }
}

impl Federation {
    fn has_gateways(&self, cluster: &str) -> bool {
        self.gateway_range(cluster).is_some()
    }

    /// The range of ports of the gateways of a cluster.
    pub(crate) fn gateway_range(&self, cluster: &str) -> Option<PortRange> {
        let gateway = &self.objects.clusters.get(cluster)?.network.gateway;
        gateway.as_ref().map(|gateway| gateway.ports)
    }

    /// The node ports of Services of a cluster that lie among the ports of its gateways, each with its Service.
    pub(crate) fn node_ports_at_gateways(
        &self,
        catalog: &Catalog,
        cluster: &Arc<str>,
    ) -> BTreeMap<(u16, Protocol), ObjectKey> {
        let range = self.gateway_range(cluster);
        range.map_or_else(BTreeMap::new, |range| {
            catalog.node_ports(cluster, range.first..=range.last)
        })
    }

    /// The key of an exported Service at gateways, if its cluster has any.
    pub(super) fn at_gateways(&self, service: &ObjectKey) -> Option<ObjectKey> {
        self.has_gateways(&service.cluster)
            .then(|| gateway_key(service))
    }

    /// The clusters that import an export by gateways.
    pub(super) fn gateway_importers<'s>(&'s self, service: &ObjectKey) -> Vec<&'s Cluster> {
        let clusters = &self.objects.clusters;
        let exporting = clusters.get(&*service.cluster);
        let Some(exporting) = exporting.filter(|cluster| cluster.network.gateway.is_some()) else {
            return Vec::new();
        };
        let name = port_name(service, &Arc::default(), Protocol::Tcp).service;
        let status = self.plan.exports.get(&service.cluster);
        let status = status.and_then(|exports| exports.get(&name));
        let importers = status.into_iter().flat_map(|status| &*status.importers);
        let importers = importers.filter_map(|importer| clusters.get(&**importer));
        importers
            .filter(|importing| path(importing, exporting) == Ok(Path::Gateways))
            .collect()
    }

    /// The clusters at whose gateways the affinity of an import ends: those that it reaches by gateways and may send
    /// connections to. None without affinity.
    pub(super) fn affinity_ends(&self, importing: &str, here: &ImportHere) -> Vec<Arc<str>> {
        let clusters = &self.objects.clusters;
        let importing = clusters.get(importing);
        let importing = importing.filter(|_| here.import.affinity != Affinity::None);
        let of_importing = importing.into_iter().flat_map(|importing| {
            let exporting = here.sources.keys();
            exporting.filter(|name| {
                let exporting = clusters.get(&***name);
                exporting.is_some_and(|exporting| {
                    path(importing, exporting) == Ok(Path::Gateways)
                        && here.traffic.may_use(&exporting.id)
                })
            })
        });
        of_importing.cloned().collect()
    }

    /// The exports of all clusters that others import by gateways.
    pub(super) fn exported_by_gateways(&self) -> Vec<ObjectKey> {
        let clusters = self.objects.clusters.values();
        if !clusters
            .into_iter()
            .any(|cluster| cluster.network.gateway.is_some())
        {
            return Vec::new();
        }
        let all = imported(&self.plan);
        all.filter(|service| !self.gateway_importers(service).is_empty())
            .collect()
    }

    /// The keys of all exports at gateways.
    pub(crate) fn gateway_keys(&self) -> BTreeSet<ObjectKey> {
        let services = self.exported_by_gateways();
        services.iter().map(gateway_key).collect()
    }

    /// Finds the gateways of these clusters anew, of all if the policy may be another.
    pub(super) fn renew_gateways(&mut self, catalog: &Catalog, hosts: &BTreeSet<Arc<str>>) {
        let are_all = std::mem::take(&mut self.gateways_stale);
        if !are_all && hosts.is_empty() {
            return;
        }
        let clusters = self.objects.clusters.iter();
        let clusters = clusters.filter(|(name, cluster)| {
            let may_differ = are_all || hosts.contains(name.as_str());
            may_differ && cluster.network.gateway.is_some()
        });
        let found = clusters.map(|(name, cluster)| {
            let hosts = catalog.hosts(name).map(|(name, facts)| Host {
                name,
                ready: facts.ready,
                labels: &facts.labels,
                internal: &facts.internal,
                external: &facts.external,
            });
            (Arc::from(name.as_str()), Gateways::choose(cluster, hosts))
        });
        let mut found: BTreeMap<Arc<str>, Gateways> = found.collect();
        if are_all {
            let gone = self
                .gateways
                .keys()
                .filter(|name| !found.contains_key(*name));
            let gone: Vec<_> = gone.cloned().collect();
            found.extend(gone.into_iter().map(|name| (name, Gateways::default())));
        }
        for (cluster, gateways) in found {
            self.replace_gateways(&cluster, gateways);
        }
    }

    fn replace_gateways(&mut self, cluster: &Arc<str>, gateways: Gateways) {
        let before = self.gateways.get(cluster);
        if before.unwrap_or(&Gateways::default()) == &gateways {
            return;
        }
        self.check_hosts(cluster, &gateways);
        if gateways == Gateways::default() {
            self.gateways.remove(cluster);
        } else {
            self.gateways.insert(Arc::clone(cluster), gateways);
        }
        self.endpoints_changed = true;
        let users = self.users.take_of_cluster(cluster);
        self.dirty
            .extend(users.into_iter().map(Arc::unwrap_or_clone));
        let services = imported(&self.plan).filter(|service| service.cluster == *cluster);
        let services: Vec<_> = services.collect();
        self.dirty.extend(services.iter().map(gateway_key));
        self.unchecked.extend(unchecked(services));
    }

    /// Finds all gateways anew. Returns whether any were others, which the new ones replace.
    pub(crate) fn gateways_anew(&mut self, catalog: &Catalog) -> bool {
        let before = self.gateways.clone();
        self.gateways_stale = true;
        self.renew_gateways(catalog, &BTreeSet::new());
        before != self.gateways
    }

    /// The ports of exports that need one at the gateways of their clusters, by cluster, if that may have changed since
    /// the last call.
    pub(crate) fn take_wanted_ports(
        &mut self,
        catalog: &Catalog,
    ) -> Option<BTreeMap<Arc<str>, BTreeSet<PortName>>> {
        // A centre that is followed gives them.
        if !std::mem::take(&mut self.ports_wanted) || self.given.is_some() {
            return None;
        }
        Some(self.wanted_ports(catalog))
    }

    pub(super) fn wanted_ports(&self, catalog: &Catalog) -> BTreeMap<Arc<str>, BTreeSet<PortName>> {
        let mut wanted = BTreeMap::<_, BTreeSet<_>>::new();
        for service in self.exported_by_gateways() {
            let facts = facts(catalog, &service);
            let ports = facts.into_iter().flat_map(|facts| &facts.ports);
            let names = ports.map(|port| port_name(&service, &port.name, port.protocol));
            let of_cluster = wanted.entry(Arc::clone(&service.cluster)).or_default();
            of_cluster.extend(names);
        }
        wanted
    }

    /// Gives the exports of a cluster ports at its gateways, in place of those that they had.
    pub(crate) fn set_gateway_ports(&mut self, cluster: &Arc<str>, ports: GatewayPorts) {
        let before = self.ports.remove(cluster).unwrap_or_default();
        if before != ports {
            self.note_clusters();
            self.ports_changed = true;
            self.objects_changed = true;
            self.endpoints_changed = true;
        }
        let names = before.keys().chain(ports.keys());
        let changed = names.filter(|name| before.get(*name) != ports.get(*name));
        let services: BTreeSet<_> = changed
            .map(|name| service_key(cluster, &name.service))
            .collect();
        for service in services {
            let users = self.users.take(&service);
            self.dirty
                .extend(users.into_iter().map(Arc::unwrap_or_clone));
            self.dirty.insert(gateway_key(&service));
            if is_imported(&self.plan, &service) {
                self.unchecked.insert(service, false);
            }
        }
        if !ports.is_empty() {
            self.ports.insert(Arc::clone(cluster), ports);
        }
    }

    /// Gives exports ports as an allocator would that begins with those that they have.
    pub(super) fn try_ports(&mut self, catalog: &Catalog) {
        for (cluster, wanted) in self.wanted_ports(catalog) {
            let before = self.ports.get(&cluster);
            let claims = wanted.into_iter().map(|name| PortClaim {
                present: before.and_then(|ports| ports.get(&name)).copied(),
                name,
            });
            let claims: Vec<_> = claims.collect();
            let mut allocator = Ports::default();
            allocator.set_range(self.gateway_range(&cluster));
            let of_nodes = self.node_ports_at_gateways(catalog, &cluster).into_keys();
            allocator.set_node_ports(of_nodes.map(|(port, protocol)| (protocol, port)).collect());
            let given = allocator.allocate(&claims, Moment::default()).into_iter();
            let given = given.filter_map(|(name, port)| Some((name, port.ok()?)));
            self.set_gateway_ports(&cluster, given.collect());
        }
    }

    /// The ports of all clusters' exports, if they have changed since the last call.
    pub(crate) fn changed_gateway_ports(&mut self) -> Option<&BTreeMap<Arc<str>, GatewayPorts>> {
        std::mem::take(&mut self.ports_changed).then_some(&self.ports)
    }

    pub(crate) fn gateway_ports(&self) -> &BTreeMap<Arc<str>, GatewayPorts> {
        &self.ports
    }

    pub(crate) fn gateways(&self) -> &BTreeMap<Arc<str>, Gateways> {
        &self.gateways
    }

    /// The addresses at which a cluster reaches a port of an export by gateways, each with its Node; none of a family
    /// in which the gateways would not admit its nodes.
    pub(super) fn gateways_for(
        &self,
        importing: &Cluster,
        port: &PortName,
        exporting: &Arc<str>,
    ) -> BTreeMap<SocketAddr, Arc<str>> {
        let number = self.ports.get(exporting).and_then(|ports| ports.get(port));
        let gateways = self.gateways.get(exporting);
        let (Some(number), Some(gateways)) = (number, gateways) else {
            return BTreeMap::new();
        };
        let families = families(&[importing]);
        let chosen = gateways.chosen.iter();
        let chosen = chosen.filter(|(ip, _)| families.contains(Family::of(**ip)));
        let places = chosen.map(|(ip, node)| (SocketAddr::new(*ip, *number), Arc::clone(node)));
        places.collect()
    }

    /// The Service that an export is for the nodes of other clusters; none without an address or a port.
    pub(super) fn gateway_service(&self, catalog: &Catalog, key: &ObjectKey) -> Option<Service> {
        let exported = exported_service(key)?;
        let importers = self.gateway_importers(&exported);
        let gateways = self.gateways.get(&key.cluster)?;
        let given = self.ports.get(&key.cluster)?;
        let facts = facts(catalog, &exported)?;
        // Without a range of sources a frontend would admit anybody.
        let families = families(&importers);
        let is_ours = |family| families.contains(family) && facts.families.contains(&family);
        let addresses = gateways.open.keys().copied();
        let addresses: Vec<_> = addresses.filter(|ip| is_ours(Family::of(*ip))).collect();
        let ports = facts.ports.iter().filter_map(|port| {
            let number = given.get(&port_name(&exported, &port.name, port.protocol))?;
            Some(ServicePort {
                name: Arc::clone(&port.name),
                protocol: port.protocol,
                port: *number,
                node_port: None,
            })
        });
        let ports: Vec<_> = ports.collect();
        if addresses.is_empty() || ports.is_empty() {
            return None;
        }
        let own = catalog.service(&exported);
        let own = own.unwrap_or_else(|| Service::new(exported));
        Some(Service {
            cluster_ips: addresses,
            ports,
            ..Service::annotated_as(&own, key.clone())
        })
    }

    /// Projects all ports of an export at gateways.
    pub(crate) fn project_at_gateways(
        &self,
        catalog: &Catalog,
        config: SelectConfig,
        key: &ObjectKey,
    ) -> Vec<Projection> {
        let service = self.gateway_service(catalog, key);
        let cluster = self.objects.clusters.get(&*key.cluster);
        let exported = exported_service(key);
        let (Some(service), Some(cluster), Some(exported)) = (service, cluster, exported) else {
            return Vec::new();
        };
        let Some(facts) = facts(catalog, &exported) else {
            return Vec::new();
        };
        let ranges = ranges(&self.gateway_importers(&exported));
        let most = self.set.quota.endpoints_per_export;
        let ports = service.ports.iter().enumerate().map(|(index, port)| {
            let name = (&*port.name, port.protocol);
            let endpoints = catalog.exported_endpoints(&exported, &facts.families, name);
            let export = GatewayExport {
                service: &service,
                exported: &exported,
                endpoints: admitted(&cluster.network, most, endpoints),
                ranges: &ranges,
            };
            project_gateway(catalog, config, &export, index)
        });
        ports.collect()
    }

    /// Returns the problems of an export at gateways.
    pub(super) fn of_gateways(
        &self,
        service: &ObjectKey,
        facts: &ServiceFacts,
    ) -> Vec<FieldProblem> {
        let importers = self.gateway_importers(service);
        let range = self.gateway_range(&service.cluster);
        let (Some(range), false) = (range, importers.is_empty()) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let mut problem =
            |reason, message| found.push(FieldProblem::new(ENDPOINTS, reason, message));
        let names: Vec<&str> = importers.iter().map(|one| one.meta.name.as_str()).collect();
        let gateways = self.gateways.get(&service.cluster);
        if gateways.is_none_or(|gateways| gateways.chosen.is_empty()) {
            let message = format!(
                "NoGateway: no Ready Node of the cluster is a gateway: not reached from {}",
                names.join(", ")
            );
            problem(Reason::InvalidValue, message);
        }
        let given = self.ports.get(&service.cluster);
        for port in &facts.ports {
            let name = port_name(service, &port.name, port.protocol);
            if given.is_none_or(|given| !given.contains_key(&name)) {
                let message = format!(
                    "NoGatewayPort: port {} {}: no port is left in spec.network.gateway.ports {} of the Cluster: \
                     not reached from {}",
                    port.name,
                    port.protocol,
                    range,
                    names.join(", ")
                );
                problem(Reason::TooMany, message);
            }
        }
        found
    }
}

pub(super) fn facts<'c>(catalog: &'c Catalog, service: &ObjectKey) -> Option<&'c ServiceFacts> {
    catalog.export(service)?.service.as_deref()
}

/// The families in which gateways admit nodes of these clusters.
fn families(importers: &[&Cluster]) -> Families {
    let networks = importers.iter().flat_map(|cluster| &cluster.network.nodes);
    networks.map(|network| Family::of(network.addr())).collect()
}

/// The networks of the nodes of these clusters, without those within others, sorted.
fn ranges(importers: &[&Cluster]) -> Vec<IpNet> {
    let networks = importers.iter().flat_map(|cluster| &cluster.network.nodes);
    let networks: Vec<IpNet> = networks.copied().collect();
    let mut ranges = IpNet::aggregate(&networks);
    ranges.sort();
    ranges
}
