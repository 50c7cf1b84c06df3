// SPDX-License-Identifier: Apache-2.0

//! The parts of an import's records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{Catalog, ObjectKey, Service, ServicePort, TrafficPolicy};
use portolan_federate::imports::ImportHere;
use portolan_federate::merge::{Affinity, ImportPort};
use portolan_model::Family;
use portolan_policy::Cluster;
use portolan_policy::spec::LastResort;

use super::export::{admitted, port_of};
use super::{Federation, needs_address, service_key};
use crate::project::{Exporter, Imported, OfFamily, project_import};
use crate::{Projection, SelectConfig};

impl Federation {
    /// The Service that an import is for clients; none without an address.
    pub(super) fn service(&self, catalog: &Catalog, key: &ObjectKey) -> Option<Service> {
        let here = self.here(key).filter(|here| needs_address(here))?;
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
        let winner = self.winner(here).and_then(|key| catalog.service(&key));
        let winner = winner.unwrap_or_else(|| Service::new(key.clone()));
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
            scheduling: winner.scheduling,
            drain_seconds: winner.drain_seconds,
            ..Service::new(key.clone())
        })
    }

    /// The Service of the winning cluster.
    fn winner(&self, here: &ImportHere) -> Option<ObjectKey> {
        let sources = here.sources.iter();
        let mut keys = sources.map(|(cluster, source)| service_key(cluster, source));
        keys.find(|key| {
            let cluster = self.objects.clusters.get(&*key.cluster);
            cluster.is_some_and(|cluster| *cluster.id == *here.import.winner)
        })
    }

    /// Projects all ports of an import, in their order.
    pub(crate) fn project(
        &self,
        catalog: &Catalog,
        config: SelectConfig,
        key: &ObjectKey,
    ) -> Vec<(Projection, BTreeMap<Family, OfFamily>)> {
        let parts = self.here(key).zip(self.service(catalog, key));
        let cluster = self.objects.clusters.get(&*key.cluster);
        let (Some((here, service)), Some(cluster)) = (parts, cluster) else {
            return Vec::new();
        };
        let zones = match here.import.traffic_distribution {
            Some(_) => catalog.zones(&key.cluster),
            None => BTreeSet::new(),
        };
        let import = Imported {
            service: &service,
            here,
            importing: &cluster.id,
            keeps_last: self.set.loss.last_resort == LastResort::Keep,
            zones,
        };
        let ports = here.import.ports.iter().enumerate();
        let projected = ports.map(|(index, port)| {
            let exporters = self.exporters(catalog, here, port);
            project_import(catalog, config, &import, index, &exporters)
        });
        projected.collect()
    }

    /// The clusters that expose a port of an import.
    fn exporters<'c>(
        &self,
        catalog: &'c Catalog,
        here: &ImportHere,
        port: &ImportPort,
    ) -> Vec<Exporter<'c>> {
        let exporters = here.sources.iter().filter_map(|(name, source)| {
            let cluster = self.objects.clusters.get(&**name)?;
            let id = port.clusters.get(cluster.id.as_str())?;
            let service = service_key(name, source);
            let state = self.states.get(name).copied()?;
            Some(Exporter {
                id: Arc::clone(id),
                endpoints: self.endpoints(catalog, cluster, &service, port),
                service,
                state,
            })
        });
        exporters.collect()
    }

    fn endpoints<'c>(
        &self,
        catalog: &'c Catalog,
        cluster: &Cluster,
        key: &ObjectKey,
        port: &ImportPort,
    ) -> BTreeMap<std::net::SocketAddr, portolan_catalog::EndpointRef<'c>> {
        let Some(service) = catalog.service(key) else {
            return BTreeMap::new();
        };
        let most = self.set.quota.endpoints_per_export;
        let port = port_of(&service, port);
        let endpoints = port.map(|port| catalog.endpoints(&service, port));
        admitted(&cluster.network, most, endpoints.unwrap_or_default())
    }
}
