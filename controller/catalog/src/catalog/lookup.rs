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
