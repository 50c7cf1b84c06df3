// SPDX-License-Identifier: Apache-2.0

//! The state that a guard leaves to the next one of the same kind and cluster, when its source starts again.

use std::collections::BTreeMap;
use std::time::Instant;

use portolan_catalog::ObjectKey;

use super::listing::Listing;
use super::size::Loss;
use super::{DeletionGuard, Facts, GuardConfig, Size, State};

/// State of a guard that has ended. A burst is no part of it: the next listing shows its losses, and is judged.
#[derive(Debug)]
pub struct Remains<P> {
    in_force: BTreeMap<ObjectKey, Facts>,
    held: Option<Held<P>>,
}

/// Losses that are held, with their events.
#[derive(Debug)]
struct Held<P> {
    until: Option<Instant>,
    losses: BTreeMap<ObjectKey, Loss<P>>,
}

impl<P> Remains<P> {
    /// Returns `true` if losses are held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }
}

impl<P> DeletionGuard<P> {
    /// A guard whose consumers have the objects of one that has ended. Losses that were held stay held, until the same
    /// time.
    #[must_use]
    pub fn seeded(config: GuardConfig, remains: Remains<P>, now: Instant) -> Self {
        let Remains { in_force, held } = remains;
        let mut guard = Self::new(config);
        guard.ready = in_force.values().map(|facts| facts.ready).sum();
        guard.in_force = in_force;
        if let Some(Held { until, losses }) = held {
            let replaced = None;
            guard.state = State::Held { until, replaced };
            guard.inherited = losses;
        }
        guard.peak.reset(guard.size(), now);
        guard
    }

    /// The state for the next guard.
    #[must_use]
    pub fn into_remains(self) -> Remains<P> {
        let held = match self.state {
            State::Held { until, .. } => {
                let mut losses = self.inherited;
                losses.extend(self.withheld);
                Some(Held { until, losses })
            }
            State::Calm | State::Waiting { .. } => None,
        };
        Remains {
            in_force: self.in_force,
            held,
        }
    }

    /// The size of the losses of the guard before that are held, and that no listing has shown again yet.
    pub(super) fn inherited_size(&self) -> Size {
        let losses = self.inherited.iter();
        let sizes = losses.map(|(key, loss)| self.lost_by(key, loss));
        sizes.fold(Size::default(), Size::plus)
    }

    /// Believes those losses. Returns their events.
    ///
    /// There are none while a listing brings objects: it may have some of them again, and its end tells the others.
    pub(super) fn lose_inherited(&mut self, now: Instant) -> Vec<P> {
        let is_answered = self.listing.as_ref().is_some_and(Listing::has_objects);
        let mut told = Vec::new();
        for (key, loss) in std::mem::take(&mut self.inherited) {
            self.lose(&key, loss.left, now);
            told.extend((!is_answered).then_some(loss.news));
        }
        self.end_empty_hold();
        told
    }

    /// Nothing is held any more once no loss is.
    pub(super) fn end_empty_hold(&mut self) {
        if self.withheld.is_empty() {
            self.state = State::Calm;
        }
    }
}
