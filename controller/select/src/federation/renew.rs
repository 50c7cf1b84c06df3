// SPDX-License-Identifier: Apache-2.0

//! The plan after a change of some exports, and what is kept of imports.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_catalog::{Catalog, ObjectKey};
use portolan_model::{Families, Family};
use portolan_policy::Cluster;

use super::export::{object, of_status};
use super::world::Only;
use super::{
    Federation, ImportHere, ImportName, Kept, import_key, is_imported, needs_address, service_key,
    unchecked,
};

/// State of the members' sources.
struct Known {
    /// The ids of the members that have not, and of clusters that are no members yet, which are waited for.
    awaited: BTreeSet<Arc<str>>,
    /// `true` if one of them may still export what it is not known to export.
    expects: bool,
}

impl Federation {
    /// Computes the part of the plan that some exports affect.
    pub(super) fn renew(&mut self, catalog: &Catalog, exports: &BTreeSet<ObjectKey>) {
        if self.objects.clusters.is_empty() {
            return;
        }
        let mut plan = std::mem::take(&mut self.plan);
        let clusters = exports.iter().map(|key| Arc::clone(&key.cluster));
        let clusters: BTreeSet<_> = clusters.collect();
        let mut names: BTreeSet<_> = exports.iter().map(|key| Arc::clone(&key.name)).collect();
        let mut world = self.world_of(catalog, Some(Only(&clusters, &names)));
        let restated = plan.restated(&world, &clusters);
        if !restated.is_subset(&names) {
            names.extend(restated);
            world = self.world_of(catalog, Some(Only(&clusters, &names)));
        }
        let renewal = plan.renew(&world, &clusters, &names);
        self.plan = plan;
        let imports = renewal.imports.iter();
        let imports = imports.map(|(cluster, name)| import_key(cluster, name));
        let imports: BTreeSet<ObjectKey> = imports.collect();
        if imports.is_empty() && !renewal.has_news {
            return;
        }
        self.counts_changed = true;
        self.objects_changed = true;
        let known = self.known();
        for key in &imports {
            self.keep(key, &known);
            self.wanted_changed |= self.has_other_addresses(key);
        }
        self.dirty.extend(imports);
        self.ports_wanted = true;
        let touched = renewal.exports.iter();
        let touched = touched.map(|(cluster, name)| service_key(cluster, name));
        let touched: BTreeSet<ObjectKey> = touched.collect();
        let plan = &self.plan;
        for key in touched.iter().filter(|key| !is_imported(plan, key)) {
            self.users.forget(key);
            self.heirs.forget(key);
        }
        for key in &touched {
            self.check_status(key);
            self.dirty.extend(self.at_gateways(key));
        }
        self.unchecked.extend(unchecked(touched));
    }

    /// Notes what the plan says about an export. Its endpoints are checked later.
    fn check_status(&mut self, key: &ObjectKey) {
        let name = ImportName {
            namespace: Arc::clone(&key.namespace),
            name: Arc::clone(&key.name),
        };
        let status = self.plan.exports.get(&key.cluster);
        let status = status.and_then(|exports| exports.get(&name));
        let found = status.map(of_status).unwrap_or_default();
        let before = self.problems.remove(&object(key)).unwrap_or_default();
        self.problems_changed |= before != found;
        if !found.is_empty() {
            self.problems.insert(object(key), found);
        }
    }

    fn known(&self) -> Known {
        let mut known = Known {
            awaited: self.absent.clone(),
            expects: !self.absent.is_empty(),
        };
        for (name, member) in self.objects.members() {
            if !self.is_member_awaited(name) {
                continue;
            }
            known.awaited.insert(member.id.as_str().into());
            known.expects |= !self.overdue.contains(name);
        }
        known
    }

    /// A member that has just sent its objects is waited for until the plan has them.
    fn is_member_awaited(&self, name: &str) -> bool {
        !self.given_up.contains(name) && !self.plan.imports.contains_key(name)
    }

    /// Returns `true` if a cluster with this id is waited for.
    pub(super) fn is_awaited(&self, id: &Arc<str>) -> bool {
        let mut members = self.objects.members().into_iter();
        let is_it =
            |(name, member): (&str, &Cluster)| *member.id == **id && self.is_member_awaited(name);
        self.absent.contains(id) || members.any(is_it)
    }

    /// The members that are not waited for any more though they have not sent their objects, in place of those before,
    /// by name: what was kept for them is given to others.
    pub(crate) fn give_up(&mut self, members: BTreeSet<Arc<str>>) {
        if self.given_up == members {
            return;
        }
        self.given_up = members;
        self.note_awaited();
    }

    /// The members, by name, that only imports wait for which they are known to export, in place of those before: what
    /// is new goes to others.
    pub(crate) fn expect_no_more(&mut self, members: BTreeSet<Arc<str>>) {
        if self.overdue == members {
            return;
        }
        self.overdue = members;
        self.note_winners();
    }

    /// The clusters that are no members and are waited for, in place of those before, by id: what is kept for them is
    /// given to no others.
    pub(crate) fn await_absent(&mut self, ids: BTreeSet<Arc<str>>) {
        if self.absent == ids {
            return;
        }
        self.absent = ids;
        self.note_awaited();
    }

    /// Gives what was kept for clusters that are not waited for any more to others.
    fn note_awaited(&mut self) {
        self.note_winners();
        self.is_stale = true;
        self.wanted_changed = true;
        self.ports_wanted = true;
    }

    /// Notes the winner of each import. A member that is waited for stays the winner: it may still export the Service.
    pub(super) fn note_winners(&mut self) {
        let known = self.known();
        let mut keys = self.keys();
        keys.extend(self.kept.keys().cloned());
        for key in keys {
            self.keep(&key, &known);
        }
    }

    /// Returns `true` if an import lacks an address that it needs, or has one that it does not need.
    fn has_other_addresses(&self, key: &ObjectKey) -> bool {
        let here = self.here(key).filter(|here| needs_address(here));
        let needed = here
            .into_iter()
            .flat_map(|here| here.families.iter().copied());
        let kept = self.kept.get(key).into_iter().flat_map(|kept| &kept.ips);
        let kept = kept.map(|ip| Family::of(*ip));
        needed.collect::<Families>() != kept.collect::<Families>()
    }

    /// Keeps what an import has now, or what is left of one that is gone.
    fn keep(&mut self, key: &ObjectKey, known: &Known) {
        let before = self.kept.get(key);
        let kept = match self.here(key) {
            Some(here) => Some(of_import(before, here, known)),
            None => before.and_then(|before| of_gone_import(before, known)),
        };
        if before == kept.as_ref() {
            return;
        }
        self.kept_changed = true;
        match kept {
            Some(kept) => self.kept.insert(key.clone(), kept),
            None => self.kept.remove(key),
        };
    }
}

fn of_import(before: Option<&Kept>, here: &ImportHere, known: &Known) -> Kept {
    let mut kept = before.cloned().unwrap_or_default();
    // As long as a member is unknown, its export may be the oldest. Where another one has won already, the member is
    // among the exporting clusters if it has one.
    let winner = kept.winner.as_ref();
    let is_kept = winner.is_some_and(|id| known.awaited.contains(id));
    let is_recorded = winner.is_some() && !kept.clusters.is_empty();
    let may_be_older = known.expects && !is_recorded;
    if !is_kept && !may_be_older && kept.clusters.is_disjoint(&known.awaited) {
        kept.winner = Some(Arc::clone(&here.import.winner));
    }
    let awaited = kept
        .clusters
        .iter()
        .filter(|id| known.awaited.contains(*id));
    let awaited: BTreeSet<_> = awaited.cloned().collect();
    kept.clusters = if awaited.is_empty() {
        Arc::clone(&here.import.clusters)
    } else {
        Arc::new(&awaited | &*here.import.clusters)
    };
    kept
}

/// The addresses of imports that are gone, or not there yet, are the allocator's to forget.
fn of_gone_import(before: &Kept, known: &Known) -> Option<Kept> {
    let winner = before.winner.clone();
    let winner = winner.filter(|id| known.awaited.contains(id));
    if winner.is_none() && before.ips.is_empty() {
        return None;
    }
    let mut kept = before.clone();
    kept.winner = winner;
    let awaited = |id: &Arc<str>| known.awaited.contains(id);
    Arc::make_mut(&mut kept.clusters).retain(awaited);
    Some(kept)
}
