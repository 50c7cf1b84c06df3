// SPDX-License-Identifier: Apache-2.0

//! The ready endpoints of exports, which the quotas of their clusters count.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_catalog::{Catalog, EndpointRef, ObjectKey, QuickMap};
use portolan_model::Family;
use portolan_policy::Network;

use super::Federation;
use super::gateway::facts;

/// Numbers of ready endpoints, in clusters that have more endpoints than their quota. Others cannot exceed it, whatever
/// they export, and nothing is counted there.
#[derive(Debug, Default)]
pub(super) struct ReadyEndpoints(QuickMap<Arc<str>, OfCluster>);

/// Numbers of ready endpoints of each export of a cluster, and of all of them together.
#[derive(Debug, Default)]
struct OfCluster {
    by_export: QuickMap<ObjectKey, u32>,
    sum: u64,
}

impl ReadyEndpoints {
    /// The number of an export; 0 where nothing is counted.
    pub(super) fn of(&self, export: &ObjectKey) -> u32 {
        let of_cluster = self.0.get(&export.cluster);
        of_cluster.map_or(0, |of_cluster| of_cluster.of(export))
    }
}

impl OfCluster {
    fn of(&self, export: &ObjectKey) -> u32 {
        self.by_export.get(export).copied().unwrap_or(0)
    }

    /// Returns whether the number differs.
    fn set(&mut self, export: &ObjectKey, count: u32) -> bool {
        let before = self.of(export);
        if before == count {
            return false;
        }
        match count {
            0 => self.by_export.remove(export),
            count => self.by_export.insert(export.clone(), count),
        };
        self.sum = self.sum + u64::from(count) - u64::from(before);
        true
    }
}

impl Federation {
    /// Counts the ready endpoints of all exports anew.
    pub(super) fn count_all(&mut self, catalog: &Catalog) {
        self.ready = ReadyEndpoints::default();
        self.recount_but(catalog, &BTreeSet::new());
    }

    /// The same, but for the clusters of Services that wait to be looked at.
    pub(super) fn recount_but(&mut self, catalog: &Catalog, awaited: &BTreeSet<ObjectKey>) {
        let clusters = self.objects.clusters.keys();
        let exports = clusters.flat_map(|cluster| catalog.exports(cluster));
        let exports = exports.map(|export| export.key.clone());
        let mut all: BTreeSet<_> = exports.collect();
        let counted = self.ready.0.values();
        all.extend(counted.flat_map(|of_cluster| of_cluster.by_export.keys().cloned()));
        let awaited: BTreeSet<_> = awaited.iter().map(|key| &key.cluster).collect();
        all.retain(|key| !awaited.contains(&key.cluster));
        self.recount(catalog, &all);
    }

    /// Counts the ready endpoints of these Services anew, of those that are exported. Returns one of each cluster whose
    /// quota may decide otherwise now. Where all exports are within it, none does.
    pub(super) fn recount<'k>(
        &mut self,
        catalog: &Catalog,
        services: impl IntoIterator<Item = &'k ObjectKey>,
    ) -> BTreeSet<ObjectKey> {
        let mut affected = BTreeSet::new();
        for key in services {
            let Some(cluster) = self.objects.clusters.get(&*key.cluster) else {
                continue;
            };
            let most = u64::from(cluster.quota.endpoints);
            let before = self.ready.0.get(&key.cluster);
            let sum_before = before.map_or(0, |of_cluster| of_cluster.sum);
            let is_other = if count(catalog.count_endpoints(&key.cluster)) <= most {
                self.ready.0.remove(&key.cluster).is_some()
            } else if before.is_none() {
                let counted = self.count_cluster(catalog, &key.cluster);
                self.ready.0.insert(Arc::clone(&key.cluster), counted);
                true
            } else {
                let count = self.count(catalog, key);
                let of_cluster = self.ready.0.get_mut(&key.cluster);
                of_cluster.is_some_and(|of_cluster| of_cluster.set(key, count))
            };
            let sum = self.ready.0.get(&key.cluster).map_or(0, |now| now.sum);
            if is_other && sum_before.max(sum) > most {
                affected.insert(key.clone());
            }
        }
        affected
    }

    /// Counts the ready endpoints of all exports of a cluster.
    fn count_cluster(&self, catalog: &Catalog, cluster: &str) -> OfCluster {
        let mut counted = OfCluster::default();
        for export in catalog.exports(cluster) {
            counted.set(&export.key, self.count(catalog, &export.key));
        }
        counted
    }

    /// The addresses of ready endpoints in the networks of their cluster: of each family at most so many as imports
    /// use of an export.
    fn count(&self, catalog: &Catalog, key: &ObjectKey) -> u32 {
        let cluster = self.objects.clusters.get(&*key.cluster);
        let (Some(cluster), Some(facts)) = (cluster, facts(catalog, key)) else {
            return 0;
        };
        let most = self.set.quota.endpoints_per_export;
        let copies = || catalog.exported_copies(key, &facts.families);
        // Mostly each is there once, in order.
        if copies().is_sorted_by(|one, next| one.address < next.address) {
            return count_ready(&cluster.network, most, copies());
        }
        let hosts = catalog.exported_hosts(key, &facts.families).into_iter();
        count_ready(&cluster.network, most, hosts.map(|(_, endpoint)| endpoint))
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// The number of ready endpoints in the networks of a cluster, of each family at most so many.
fn count_ready<'c>(
    network: &Network,
    most: u32,
    endpoints: impl Iterator<Item = EndpointRef<'c>>,
) -> u32 {
    let counted = endpoints.filter(|one| one.ready && network.admits(one.address).is_ok());
    let [mut v4, mut v6] = [0_u32; 2];
    for endpoint in counted {
        match Family::of(endpoint.address) {
            Family::V4 => v4 += 1,
            Family::V6 => v6 += 1,
        }
    }
    v4.min(most) + v6.min(most)
}
