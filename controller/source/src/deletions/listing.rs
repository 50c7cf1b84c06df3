// SPDX-License-Identifier: Apache-2.0

//! Listings: an absent object was deleted, or the listing is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use portolan_catalog::ObjectKey;

use super::size::Loss;
use super::{DeletionGuard, Facts, Size, State};

/// A listing in progress.
#[derive(Debug)]
pub(super) struct Listing<P> {
    /// The size of the kind when the listing began.
    before: Size,
    seen: BTreeSet<ObjectKey>,
    /// Objects with fewer ready endpoints than before.
    fewer: BTreeMap<ObjectKey, Loss<P>>,
}

impl<P> Listing<P> {
    /// Returns `true` if there was nothing before.
    pub(super) fn is_first(&self) -> bool {
        self.before == Size::default()
    }

    /// Returns `true` if it has brought objects already.
    pub(super) fn has_objects(&self) -> bool {
        !self.seen.is_empty()
    }
}

/// The judgement on a complete listing.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<P> {
    /// Too much is missing to be believed at once: the kind is listed again, and nothing may be
    /// deleted meanwhile.
    Doubted {
        /// The size of the missing objects.
        lost: Size,
        /// The size of the kind with them.
        of: Size,
    },
    /// The listing counts.
    Settled {
        /// Events to pass on now. Objects that are neither listed nor kept are deleted besides.
        told: Vec<P>,
        /// Absent objects that stay in force.
        kept: Vec<ObjectKey>,
    },
}

impl<P> DeletionGuard<P> {
    /// Begins a listing; one that was in progress is forgotten.
    pub fn begin(&mut self, now: Instant) {
        self.sweep_baselines(now);
        self.listing = Some(Listing {
            before: self.doubted.unwrap_or_else(|| self.size()),
            seen: BTreeSet::new(),
            fewer: BTreeMap::new(),
        });
    }

    /// Takes in an object of a listing. An object without facts cannot be read, and counts as
    /// unchanged. Returns the event if it may be passed on now.
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

    /// Takes in the deletion of an object that a listing in progress had.
    pub fn unlisted(&mut self, key: &ObjectKey) {
        if let Some(listing) = &mut self.listing {
            listing.seen.remove(key);
            listing.fewer.remove(key);
        }
    }

    /// Completes the listing in progress. A listing is sure if it is a second one that no cache can
    /// have answered; `gone` makes the event of a deleted object.
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
        // The listing shows them again, with their events.
        self.inherited.clear();
        let absent = |key: &&ObjectKey| !listing.seen.contains(*key);
        let absent: Vec<_> = self.in_force.keys().filter(absent).cloned().collect();
        for key in absent {
            let news = gone(&key);
            self.put_withheld(key, Loss { left: None, news });
        }
        for (key, loss) in listing.fewer {
            self.put_withheld(key, loss);
        }
        let lost = self.lost.minus(self.size_lost_by(&self.replaced()));
        let percent = self.config.listing_percent;
        if was_held {
            // New losses join those that are held already.
            let told = self.let_go_of_replaced(|guard, keys| guard.let_go_listed(keys, now));
            self.end_empty_hold();
            return self.settled(told);
        }
        if !self.config.is_too_much(percent, lost, listing.before) {
            let all = self.withheld.keys().cloned().collect();
            let told = self.let_go_listed(all, now);
            self.peak.reset(self.size(), now);
            self.baselines.clear();
            return self.settled(told);
        }
        if is_sure {
            let told = self.let_go_of_replaced(|guard, keys| guard.let_go_listed(keys, now));
            self.hold(now);
            return self.settled(told);
        }
        // The next listing shows the losses again.
        self.withheld.clear();
        self.lost = Size::default();
        self.state = State::Calm;
        let of = listing.before;
        self.doubted = Some(of);
        Verdict::Doubted { lost, of }
    }

    /// Believes losses. Events of absent objects are dropped: the end of a listing deletes those.
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
