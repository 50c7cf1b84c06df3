// SPDX-License-Identifier: Apache-2.0

//! The plan after a change of some exports, without those of other names.
//!
//! An import has the name of the Services that it is made of, in whatever namespace. So the imports of
//! one name depend on no Service of another name, but for a cluster's quota.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    ByName, ExportStatus, Federation, ImportName, Statuses, World, imports_of, shared,
    statuses::statuses,
};

/// Effect of a change of exports on the plan. Pairs of a cluster and a name there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Renewal {
    /// The imports that are new, gone or different.
    pub imports: BTreeSet<(Arc<str>, ImportName)>,
    /// The exports that were computed anew, and those that are gone.
    pub exports: BTreeSet<(Arc<str>, ImportName)>,
    /// Whether the status of one is new, gone or different.
    pub has_news: bool,
}

impl Federation {
    /// The names of Services that another state has than in this plan, of all that these clusters
    /// export: those that changed, and those that a quota admits or refuses now. `world` needs the
    /// exports of these clusters.
    #[must_use]
    pub fn restated(&self, world: &World<'_>, clusters: &BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        let mut names = BTreeSet::new();
        for (cluster, member) in &world.members {
            if !clusters.contains(cluster) {
                continue;
            }
            let (before, after) = (self.exports.get(cluster), statuses(world, cluster, member));
            let state = |status: &ExportStatus| (status.valid, status.ready);
            let services = before.into_iter().flat_map(ByName::keys);
            for service in services.chain(after.keys()) {
                let was = before.and_then(|before| before.get(service));
                if was.map(state) != after.get(service).map(state) {
                    names.insert(Arc::clone(&service.name));
                }
            }
        }
        names
    }

    /// Computes the imports of Services with these names anew, and the statuses of their exports,
    /// after exports of these clusters changed. The names must be those of the changed exports and of
    /// [`Self::restated`]. `world` needs the exports of these clusters, and those of these names in
    /// all clusters. Nothing else of it may differ from when the plan was computed.
    pub fn renew(
        &mut self,
        world: &World<'_>,
        clusters: &BTreeSet<Arc<str>>,
        names: &BTreeSet<Arc<str>>,
    ) -> Renewal {
        let mut exports = self.statuses_of(world, clusters, names);
        let imports = imports_of(world, &mut exports);
        let mut renewal = Renewal::default();
        for (cluster, news) in exports {
            let all = self.exports.entry(Arc::clone(&cluster)).or_default();
            let (touched, changed) = replace(all, news, names, |all, name, status| {
                all.insert(name, status);
            });
            renewal.has_news |= !changed.is_empty();
            let touched = touched.into_iter();
            renewal
                .exports
                .extend(touched.map(|name| (Arc::clone(&cluster), name)));
        }
        for (cluster, news) in imports {
            let all = self.imports.entry(Arc::clone(&cluster)).or_default();
            let (_, changed) = replace(all, news, names, shared::insert);
            let changed = changed.into_iter();
            renewal
                .imports
                .extend(changed.map(|name| (Arc::clone(&cluster), name)));
        }
        renewal
    }

    /// The statuses of exports with these names, before anybody imports them. Those of other clusters
    /// have the state that they had.
    fn statuses_of(
        &self,
        world: &World<'_>,
        clusters: &BTreeSet<Arc<str>>,
        names: &BTreeSet<Arc<str>>,
    ) -> Statuses {
        let of_cluster = world.members.iter().map(|(cluster, member)| {
            let all = if clusters.contains(cluster) {
                let mut all = statuses(world, cluster, member);
                all.retain(|service, _| names.contains(&service.name));
                all
            } else {
                let before = self.exports.get(cluster).into_iter().flatten();
                let before = before.filter(|(service, _)| names.contains(&service.name));
                let unused = before.map(|(service, status)| (service.clone(), status.unused()));
                unused.collect()
            };
            (Arc::clone(cluster), all)
        });
        of_cluster.collect()
    }
}

impl ExportStatus {
    /// The status before anybody imports it.
    fn unused(&self) -> Self {
        Self {
            valid: self.valid,
            ready: self.ready,
            conflicts: Vec::new(),
            importers: Arc::default(),
        }
    }
}

/// Puts new entries in place of all with these names. Returns the keys of all old and new ones, and of
/// those that differ.
fn replace<T: PartialEq>(
    all: &mut ByName<T>,
    news: BTreeMap<ImportName, T>,
    names: &BTreeSet<Arc<str>>,
    insert: impl Fn(&mut ByName<T>, ImportName, T),
) -> (BTreeSet<ImportName>, BTreeSet<ImportName>) {
    let before = all.keys().filter(|service| names.contains(&service.name));
    let mut touched: BTreeSet<ImportName> = before.cloned().collect();
    let mut changed = touched.clone();
    changed.retain(|service| !news.contains_key(service));
    for service in &changed {
        all.remove(service);
    }
    for (service, value) in news {
        touched.insert(service.clone());
        if all.get(&service) != Some(&value) {
            changed.insert(service.clone());
            insert(all, service, value);
        }
    }
    (touched, changed)
}
