//! Listings: what is absent from one was lost, or the listing is wrong.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use portolan_catalog::ObjectKey;

use super::{Facts, Guard, Loss, Size, State};

/// A listing in progress.
#[derive(Debug)]
pub(super) struct Listing<P> {
    /// How much was in force when it began.
    before: Size,
    seen: BTreeSet<ObjectKey>,
    /// What has fewer ready endpoints than before.
    fewer: BTreeMap<ObjectKey, Loss<P>>,
}

/// What is made of a complete listing.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<P> {
    /// Too much is missing to be believed at once: list again, and nothing may be deleted.
    Doubted {
        /// What is missing.
        lost: Size,
        /// Of how much.
        of: Size,
    },
    /// The listing counts.
    Settled {
        /// What is told now, beside the deletion of what is neither listed nor kept.
        told: Vec<P>,
        /// What the listing does not have and what stays in force all the same.
        kept: Vec<ObjectKey>,
    },
}

impl<P> Guard<P> {
    /// A listing begins, and one that was in progress is forgotten.
    pub fn begin(&mut self) {
        self.listing = Some(Listing {
            before: self.doubted.unwrap_or_else(|| self.size()),
            seen: BTreeSet::new(),
            fewer: BTreeMap::new(),
        });
    }

    /// A listing has an object, with these facts; without facts it cannot be read, and counts as it
    /// was. Returns the news if they may be told now.
    pub fn listed(
        &mut self,
        key: ObjectKey,
        facts: Option<Facts>,
        news: P,
        now: Instant,
    ) -> Option<P> {
        let old = self.in_force.get(&key);
        let facts = facts.or_else(|| old.cloned()).unwrap_or_default();
        let is_fewer = old.is_some_and(|old| facts.ready < old.ready);
        if let Some(listing) = &mut self.listing {
            listing.seen.insert(key.clone());
            listing.fewer.remove(&key);
            if is_fewer {
                let left = Some(facts);
                listing.fewer.insert(key, Loss { left, news });
                return None;
            }
        }
        self.accept(key, facts, now);
        Some(news)
    }

    /// An object that a listing in progress had is gone again.
    pub fn unlisted(&mut self, key: &ObjectKey) {
        if let Some(listing) = &mut self.listing {
            listing.seen.remove(key);
            listing.fewer.remove(key);
        }
    }

    /// The listing in progress is complete. A listing is sure if it is a second one that no cache can
    /// have answered; `gone` says what is told of an object that is gone.
    pub fn complete(
        &mut self,
        is_sure: bool,
        gone: impl Fn(&ObjectKey) -> P,
        now: Instant,
    ) -> Verdict<P> {
        let Some(listing) = self.listing.take() else {
            return self.settled(Vec::new());
        };
        let was_held = self.is_held();
        self.doubted = None;
        let absent = |key: &&ObjectKey| !listing.seen.contains(*key);
        let absent: Vec<_> = self.in_force.keys().filter(absent).cloned().collect();
        for key in absent {
            let news = gone(&key);
            self.put_withheld(key, Loss { left: None, news });
        }
        for (key, loss) in listing.fewer {
            self.put_withheld(key, loss);
        }
        let replaced = replaced(&self.in_force, &self.withheld);
        let lost = self.lost.minus(self.size_lost_by(&replaced));
        let percent = self.config.listing_percent;
        if was_held {
            // What is missing now joins what is held already.
            let told = self.let_go_listed(replaced, now);
            return self.settled(told);
        }
        if !self.config.is_too_much(percent, lost, listing.before) {
            let all = self.withheld.keys().cloned().collect();
            let told = self.let_go_listed(all, now);
            self.peak.reset(self.size(), now);
            return self.settled(told);
        }
        if is_sure {
            let told = self.let_go_listed(replaced, now);
            self.hold(now);
            return self.settled(told);
        }
        // The next listing shows it again.
        self.withheld.clear();
        self.lost = Size::default();
        self.state = State::Calm;
        let of = listing.before;
        self.doubted = Some(of);
        Verdict::Doubted { lost, of }
    }

    /// Lets go of losses, without telling of what the listing does not have.
    fn let_go_listed(&mut self, keys: Vec<ObjectKey>, now: Instant) -> Vec<P> {
        let is_gone =
            |key: &ObjectKey| matches!(self.withheld.get(key), Some(Loss { left: None, .. }));
        let (gone, fewer) = keys.into_iter().partition(is_gone);
        self.let_go(gone, now);
        self.let_go(fewer, now)
    }

    fn settled(&self, told: Vec<P>) -> Verdict<P> {
        let gone = self.withheld.iter().filter(|(_, loss)| loss.left.is_none());
        let kept = gone.map(|(key, _)| key.clone()).collect();
        Verdict::Settled { told, kept }
    }

    fn size_lost_by(&self, keys: &[ObjectKey]) -> Size {
        let losses = keys.iter().filter_map(|key| {
            let loss = self.withheld.get(key)?;
            Some(self.lost_by(key, loss))
        });
        losses.fold(Size::default(), Size::plus)
    }
}

/// Ready endpoints of some slices of one Service, each counted once.
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

/// The withheld slices whose Services have at least as many ready endpoints without them: slices are
/// replaced by others with other names, and endpoints move from slice to slice.
pub(super) fn replaced<P>(
    in_force: &BTreeMap<ObjectKey, Facts>,
    withheld: &BTreeMap<ObjectKey, Loss<P>>,
) -> Vec<ObjectKey> {
    type Owner<'a> = (&'a Arc<str>, &'a Arc<str>);
    // What the withheld slices had, and what the Service has without what they lose.
    let mut owners: BTreeMap<Owner<'_>, [Endpoints<'_>; 2]> = BTreeMap::new();
    for (key, facts) in in_force {
        let Some(service) = &facts.service else {
            continue;
        };
        let [had, has] = owners.entry((&key.namespace, service)).or_default();
        match withheld.get(key) {
            Some(loss) => {
                had.add(facts);
                if let Some(left) = &loss.left {
                    has.add(left);
                }
            }
            None => has.add(facts),
        }
    }
    let is_replaced = |key: &&ObjectKey| {
        let service = in_force.get(*key).and_then(|facts| facts.service.as_ref());
        let owner = service.and_then(|service| owners.get(&(&key.namespace, service)));
        owner.is_some_and(|[had, has]| has.count() >= had.count())
    };
    withheld.keys().filter(is_replaced).cloned().collect()
}
