// SPDX-License-Identifier: Apache-2.0

//! The ready endpoints of exports, which the quotas of their clusters count.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_catalog::{Catalog, EndpointRef, ObjectKey, QuickMap};
use portolan_model::Family;
use portolan_policy::Network;

use super::Federation;
use super::gateway::facts;

/// Numbers of ready endpoints, of each export and of all exports of a cluster together.
#[derive(Debug, Default)]
pub(super) struct ReadyEndpoints {
    by_export: QuickMap<ObjectKey, u32>,
    by_cluster: QuickMap<Arc<str>, u64>,
}

impl ReadyEndpoints {
    pub(super) fn of(&self, export: &ObjectKey) -> u32 {
        self.by_export.get(export).copied().unwrap_or(0)
    }

    fn of_cluster(&self, cluster: &str) -> u64 {
        self.by_cluster.get(cluster).copied().unwrap_or(0)
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
        let cluster = Arc::clone(&export.cluster);
        let sum = self.by_cluster.entry(cluster).or_default();
        *sum = *sum + u64::from(count) - u64::from(before);
        true
    }
}

impl Federation {
    /// Counts the ready endpoints of all exports anew.
    pub(super) fn count_all(&mut self, catalog: &Catalog) {
        self.ready = ReadyEndpoints::default();
        self.recount_but(catalog, &BTreeSet::new());
    }

    /// The same, but for Services that wait to be looked at.
    pub(super) fn recount_but(&mut self, catalog: &Catalog, awaited: &BTreeSet<ObjectKey>) {
        let clusters = self.objects.clusters.keys();
        let exports = clusters.flat_map(|cluster| catalog.exports(cluster));
        let exports = exports.map(|export| export.key.clone());
        let mut all: BTreeSet<_> = exports.collect();
        all.extend(self.ready.by_export.keys().cloned());
        self.recount(catalog, all.difference(awaited));
    }

    /// Counts the ready endpoints of these Services anew, of those that are exported. Returns the exports with another
    /// number in clusters where it may decide about a quota. Where all exports are within it, none does.
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
            let (count, before) = (
                self.count(catalog, key),
                self.ready.of_cluster(&key.cluster),
            );
            let is_other = self.ready.set(key, count);
            if is_other && before.max(self.ready.of_cluster(&key.cluster)) > most {
                affected.insert(key.clone());
            }
        }
        affected
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
