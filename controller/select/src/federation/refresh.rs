// SPDX-License-Identifier: Apache-2.0

//! Flushes: the plan after changes, and the imports that must be projected again.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_catalog::{Catalog, DirtySet, ObjectKey};
use portolan_federate::imports::{Federation as Plan, imports};

use super::{
    Federation, exported_service, import_key, imported, is_import, is_imported, owned, unchecked,
};

/// As many keys are put into a set one by one; for more it is made anew.
const FEW: usize = 8;

impl Federation {
    /// Computes the plan anew if anything that it depends on has changed; if that is some exports, or endpoints of
    /// `services` that a quota counts, the part of it that they affect.
    pub(crate) fn replan(
        &mut self,
        catalog: &Catalog,
        is_news: bool,
        exports: &BTreeSet<ObjectKey>,
        services: &BTreeSet<ObjectKey>,
    ) {
        if self.given.is_some() {
            self.is_stale = false;
            self.groups_stale |= is_news;
            return;
        }
        if std::mem::take(&mut self.ready_stale) {
            self.count_all(catalog);
        }
        let mut counted = self.recount(catalog, exports.union(services));
        let exports = if counted.is_empty() {
            exports
        } else {
            counted.extend(exports.iter().cloned());
            &counted
        };
        self.groups_stale |= is_news;
        if std::mem::take(&mut self.is_stale) || is_news {
            self.plan_anew(catalog);
            self.check_properties(catalog);
        } else if !exports.is_empty() {
            self.renew(catalog, exports);
        }
        if is_news || !exports.is_empty() {
            self.note_facts();
            self.ports_wanted = true;
            let at_gateways = exports.iter().filter_map(|key| self.at_gateways(key));
            let at_gateways: Vec<_> = at_gateways.collect();
            self.dirty.extend(at_gateways);
        }
    }

    /// Computes the plan anew. Returns whether it differs from the one in force, which it replaces.
    pub(crate) fn plan_anew(&mut self, catalog: &Catalog) -> bool {
        if self.objects.clusters.is_empty() && self.plan == Plan::default() {
            return false;
        }
        let plan = imports(&self.world(catalog));
        if plan == self.plan {
            return false;
        }
        let at_gateways = self.gateway_keys();
        let before = std::mem::replace(&mut self.plan, plan);
        self.counts_changed = true;
        let changed: Vec<ObjectKey> = changed(&before, &self.plan).collect();
        self.dirty.extend(at_gateways);
        self.dirty.extend(self.gateway_keys());
        self.ports_wanted = true;
        self.wanted_changed |= !changed.is_empty();
        self.objects_changed = true;
        self.dirty.extend(changed);
        self.note_winners();
        let plan = &self.plan;
        for users in [&mut self.users, &mut self.heirs] {
            users.retain(|service| is_imported(plan, service));
        }
        self.check_statuses();
        self.unchecked.extend(unchecked(imported(&self.plan)));
        true
    }

    /// Computes the plan from scratch, with what Services say that do not wait to be looked at.
    pub(crate) fn audit_plan(&mut self, catalog: &Catalog, awaited: &BTreeSet<ObjectKey>) -> bool {
        if self.given.is_some() {
            return false;
        }
        self.recount_but(catalog, awaited);
        self.plan_anew(catalog)
    }

    /// Finds the imports that changes of objects affect, and has their addresses claimed.
    pub(crate) fn refresh(&mut self, catalog: &mut Catalog, dirty: &mut DirtySet) {
        self.replan(catalog, dirty.imports, &dirty.exports, &dirty.services);
        self.admit_addresses(catalog, dirty.addresses);
        self.renew_gateways(catalog, &dirty.hosts);
        let mut imports = self.plan.imports.values();
        if imports.any(|imports| !imports.is_empty()) {
            self.take_users(catalog, dirty);
        }
        let anew = &self.dirty;
        self.redirected.retain(|import| !anew.contains(import));
        self.renew_groups(catalog, dirty);
        self.endpoints_changed |= !self.unchecked.is_empty();
        let nodes = dirty.nodes.iter().map(|node| Arc::clone(&node.cluster));
        self.note_plans(&nodes.collect());
        for (service, is_used) in std::mem::take(&mut self.unchecked) {
            self.check_endpoints(catalog, &service, is_used);
        }
        self.objects_changed |= self.problems_changed;
        if let Some(renamed) = &mut self.renamed {
            let imports = self.dirty.iter().filter(|key| is_import(key));
            renamed.extend(imports.chain(&self.redirected).cloned());
        }
        for import in std::mem::take(&mut self.dirty) {
            self.claim(catalog, &import, dirty);
            self.claimed.insert(import.clone());
            dirty.services.insert(import);
        }
        let mut redirected = std::mem::take(&mut self.redirected);
        if redirected.len() <= FEW {
            dirty.services.extend(redirected);
        } else {
            dirty.services.append(&mut redirected);
        }
    }

    /// Finds the imports that depend on objects which changed.
    fn take_users(&mut self, catalog: &Catalog, dirty: &DirtySet) {
        for service in &dirty.objects {
            let heirs = self.heirs.take(service);
            self.dirty.extend(heirs.into_iter().map(owned));
        }
        let weighed = catalog.weighed_by(dirty);
        for service in dirty.services.union(&weighed) {
            let users = self.users.take(service);
            // One that follows a centre has no plan of exports, but of those at gateways.
            let is_used = !users.is_empty() && self.given.is_none();
            self.redirected.extend(users.into_iter().map(owned));
            if is_used || is_imported(&self.plan, service) {
                self.unchecked.insert(service.clone(), true);
                self.dirty.extend(self.at_gateways(service));
            }
        }
        if !dirty.nodes.is_empty() {
            // The zone of a node may be another, which EndpointSlices of all imports have.
            self.endpoints_changed = true;
            let zoned = self.keys().into_iter().filter(|key| self.is_zoned(key));
            let zoned: Vec<_> = zoned.collect();
            self.redirected.extend(zoned);
        }
    }

    /// Claims what an import has now.
    pub(crate) fn claim(&self, catalog: &mut Catalog, key: &ObjectKey, dirty: &mut DirtySet) {
        let service = match exported_service(key) {
            Some(_) => self.gateway_service(catalog, key),
            None => self.service(catalog, key),
        };
        match service {
            Some(service) => catalog.claim_import(service, dirty),
            None => catalog.release_import(key, dirty),
        }
    }
}

/// The imports that differ.
fn changed<'p>(before: &'p Plan, after: &'p Plan) -> impl Iterator<Item = ObjectKey> + 'p {
    let gone = before.imports.iter().flat_map(|(cluster, imports)| {
        let now = after.imports.get(cluster);
        let gone = imports
            .keys()
            .filter(move |name| now.is_none_or(|now| !now.contains_key(*name)));
        gone.map(move |name| import_key(cluster, name))
    });
    let news = after.imports.iter().flat_map(|(cluster, imports)| {
        let was = before.imports.get(cluster);
        let news = imports
            .iter()
            .filter(move |(name, here)| was.and_then(|was| was.get(*name)) != Some(*here));
        news.map(move |(name, _)| import_key(cluster, name))
    });
    gone.chain(news)
}
