// SPDX-License-Identifier: Apache-2.0

//! Queries by address and port, for those who do not know the names of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use portolan_model::Protocol;

use super::Catalog;
use crate::{ObjectKey, Service};

impl Catalog {
    /// A Service of the cluster that was given an address, by the API server or by a load balancer; the first by
    /// namespace and name. External IPs, which any author of a Service may write, do not count, nor do imports.
    #[must_use]
    pub fn service_given_address(&self, cluster: &Arc<str>, address: IpAddr) -> Option<ObjectKey> {
        let objects = self.clusters.get(cluster)?;
        let claimants = objects.claims.of_address(address);
        let keys = claimants.map(|(namespace, name)| ObjectKey {
            cluster: Arc::clone(cluster),
            namespace: Arc::clone(namespace),
            name: Arc::clone(name),
        });
        let given = keys.filter(|key| {
            let service = self.service(key);
            service.is_some_and(|service| {
                let mut given = service.cluster_ips.iter().chain(&service.load_balancer_ips);
                given.any(|ip| *ip == address)
            })
        });
        given.min()
    }

    /// The ports of a virtual address that Services claim, with or without success.
    #[must_use]
    pub fn claims_on(&self, cluster: &Arc<str>, address: IpAddr) -> BTreeSet<(u16, Protocol)> {
        let Some(objects) = self.clusters.get(cluster) else {
            return BTreeSet::new();
        };
        let services = objects.claims.of_address(address);
        let services = services.filter_map(|(namespace, name)| {
            let key = ObjectKey {
                cluster: Arc::clone(cluster),
                namespace: Arc::clone(namespace),
                name: Arc::clone(name),
            };
            self.service(&key).or_else(|| self.import(&key).cloned())
        });
        let ports = |service: Service| -> Vec<_> {
            let claims = service.claims().map(|(_, _, claim)| claim);
            let here = claims.filter(|claim| claim.address == Some(address));
            here.map(|claim| (claim.port, claim.protocol)).collect()
        };
        services.flat_map(ports).collect()
    }

    /// The node ports within a range that Services of a cluster claim, each with the first one by name.
    #[must_use]
    pub fn node_ports(
        &self,
        cluster: &Arc<str>,
        range: RangeInclusive<u16>,
    ) -> BTreeMap<(u16, Protocol), ObjectKey> {
        let Some(objects) = self.clusters.get(cluster) else {
            return BTreeMap::new();
        };
        let mut found = BTreeMap::new();
        for (port, protocol, [namespace, name]) in objects.claims.of_nodes(range) {
            let key = ObjectKey {
                cluster: Arc::clone(cluster),
                namespace: Arc::clone(namespace),
                name: Arc::clone(name),
            };
            found.entry((port, protocol)).or_insert(key);
        }
        found
    }
}
