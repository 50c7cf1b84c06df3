// SPDX-License-Identifier: Apache-2.0

//! Replacement of EndpointSlices: endpoints that vanish while others of their Service come.
//!
//! A loss is replaced if its Service has as many ready endpoints after it as it had before: as many
//! must have come, in new or changed slices, as vanish. Untouched slices replace nothing.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use portolan_catalog::ObjectKey;

use super::size::{Facts, Loss};
use super::{DeletionGuard, State, WINDOW};

/// Namespace and name of a Service.
type Owner = (Arc<str>, Arc<str>);

/// The slices of recently changed Services as they were before.
///
/// A Service's baseline is as old as [`WINDOW`] at most, or as the listing, burst or hold in
/// progress.
#[derive(Debug, Default)]
pub(super) struct Baselines {
    services: BTreeMap<Owner, Baseline>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Baseline {
    since: Instant,
    /// The changed slices as they were; `None` for those that did not exist.
    slices: BTreeMap<ObjectKey, Option<Facts>>,
}

impl Baselines {
    /// Records a slice before its first change.
    fn record(&mut self, key: &ObjectKey, old: Option<&Facts>, owner: Owner, now: Instant) {
        let baseline = self.services.entry(owner).or_insert_with(|| Baseline {
            since: now,
            slices: BTreeMap::new(),
        });
        let slice = baseline.slices.entry(key.clone());
        slice.or_insert_with(|| old.cloned());
    }

    /// Forgets baselines that are older than the window.
    fn sweep(&mut self, now: Instant) {
        let is_young = |since: Instant| now.saturating_duration_since(since) <= WINDOW;
        self.services.retain(|_, baseline| is_young(baseline.since));
        self.swept = Some(now);
    }

    pub(super) fn clear(&mut self) {
        self.services.clear();
    }
}

/// Distinct ready endpoints of one Service.
#[derive(Debug, Default)]
struct Endpoints<'a> {
    addresses: HashSet<&'a u64>,
    without_address: usize,
}

impl<'a> Endpoints<'a> {
    fn add(&mut self, facts: &'a Facts) {
        self.addresses.extend(facts.addresses.iter());
        self.without_address += facts.ready.saturating_sub(facts.addresses.len());
    }

    fn count(&self) -> usize {
        self.addresses.len() + self.without_address
    }
}

/// The endpoints of a Service before and after the withheld losses.
#[derive(Debug, Default)]
struct Balance<'a> {
    before: Endpoints<'a>,
    after: Endpoints<'a>,
}

fn owner(key: &ObjectKey, facts: &Facts) -> Option<Owner> {
    let service = facts.service.as_ref()?;
    Some((Arc::clone(&key.namespace), Arc::clone(service)))
}

impl<P> DeletionGuard<P> {
    /// Returns `true` if baselines must not age: something is doubted.
    fn is_comparing(&self) -> bool {
        self.state != State::Calm || self.listing.is_some() || self.doubted.is_some()
    }

    /// Forgets old baselines, unless they are in use. Called before a comparison begins.
    pub(super) fn sweep_baselines(&mut self, now: Instant) {
        if !self.is_comparing() {
            self.baselines.sweep(now);
        }
    }

    /// Records the state of an object in force that is about to become `new`.
    pub(super) fn record_change(&mut self, key: &ObjectKey, new: Option<&Facts>, now: Instant) {
        let old = self.in_force.get(key);
        // Nothing can be replaced before the first listing is complete.
        let is_first_listing = self.listing.as_ref().is_some_and(|it| it.is_first());
        if is_first_listing || self.config.is_off() || old == new {
            return;
        }
        let owners = [old, new].map(|facts| owner(key, facts?));
        let old = old.cloned();
        let swept = self.baselines.swept.get_or_insert(now);
        if now.saturating_duration_since(*swept) > WINDOW {
            self.sweep_baselines(now);
        }
        for owner in owners.into_iter().flatten() {
            self.baselines.record(key, old.as_ref(), owner, now);
        }
    }

    /// The withheld slices whose Services have as many ready endpoints after the losses as before.
    pub(super) fn replaced(&self) -> Vec<ObjectKey> {
        let mut balances: BTreeMap<Owner, Balance<'_>> = BTreeMap::new();
        for key in self.withheld.keys() {
            let owner = self.in_force.get(key).and_then(|facts| owner(key, facts));
            balances.extend(owner.map(|owner| (owner, Balance::default())));
        }
        if balances.is_empty() {
            return Vec::new();
        }
        for (key, facts) in &self.in_force {
            let Some(owner) = owner(key, facts) else {
                continue;
            };
            let Some(balance) = balances.get_mut(&owner) else {
                continue;
            };
            let baseline = self.baselines.services.get(&owner);
            let is_changed = baseline.is_some_and(|it| it.slices.contains_key(key));
            let loss = self.withheld.get(key);
            // New endpoints that vanish again are lost too.
            if loss.is_some() || !is_changed {
                balance.before.add(facts);
            }
            match loss {
                Some(Loss { left, .. }) => left.iter().for_each(|left| balance.after.add(left)),
                None => balance.after.add(facts),
            }
        }
        for (owner, balance) in &mut balances {
            let slices = self.baselines.services.get(owner);
            let slices = slices.into_iter().flat_map(|it| it.slices.values());
            let before = slices
                .flatten()
                .filter(|facts| facts.service.as_ref() == Some(&owner.1));
            before.for_each(|facts| balance.before.add(facts));
        }
        let is_replaced = |key: &&ObjectKey| {
            let owner = self.in_force.get(*key).and_then(|facts| owner(key, facts));
            let balance = owner.and_then(|owner| balances.get(&owner));
            balance.is_some_and(|it| it.after.count() >= it.before.count())
        };
        self.withheld.keys().filter(is_replaced).cloned().collect()
    }

    /// Passes on replaced losses, and ends the comparison for their Services.
    pub(super) fn let_go_of_replaced(
        &mut self,
        let_go: impl FnOnce(&mut Self, Vec<ObjectKey>) -> Vec<P>,
    ) -> Vec<P> {
        let keys = self.replaced();
        let owners = keys.iter().filter_map(|key| {
            let facts = self.in_force.get(key)?;
            owner(key, facts)
        });
        let owners: Vec<_> = owners.collect();
        let news = let_go(self, keys);
        for owner in &owners {
            self.baselines.services.remove(owner);
        }
        news
    }
}
