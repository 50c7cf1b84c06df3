// SPDX-License-Identifier: Apache-2.0

//! The state that a guard leaves to the next one of the same kind and cluster, when its source starts again.

use std::collections::BTreeMap;
use std::time::Instant;

use portolan_catalog::ObjectKey;

use super::{DeletionGuard, Facts, GuardConfig, Size, State};

/// State of a guard that has ended. A burst is no part of it: the next listing shows its losses, and is judged.
#[derive(Debug, Default)]
pub struct Remains {
    in_force: BTreeMap<ObjectKey, Facts>,
    held: Option<Held>,
}

/// Losses that are held.
#[derive(Debug)]
struct Held {
    until: Option<Instant>,
    /// The rest of each object; `None` for a deletion.
    losses: BTreeMap<ObjectKey, Option<Facts>>,
}

impl Remains {
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
    pub fn seeded(config: GuardConfig, remains: Remains, now: Instant) -> Self {
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
    pub fn into_remains(self) -> Remains {
        let held = match self.state {
            State::Held { until, .. } => {
                let mut losses = self.inherited;
                let withheld = self.withheld.into_iter();
                losses.extend(withheld.map(|(key, loss)| (key, loss.left)));
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
        let sizes = losses.map(|(key, left)| self.size_of_loss(key, left.as_ref()));
        sizes.fold(Size::default(), Size::plus)
    }

    /// Believes those losses. Their events are not known: the next listing tells them.
    pub(super) fn lose_inherited(&mut self, now: Instant) {
        for (key, left) in std::mem::take(&mut self.inherited) {
            self.lose(&key, left, now);
        }
        self.end_empty_hold();
    }

    /// Nothing is held any more once no loss is.
    pub(super) fn end_empty_hold(&mut self) {
        if self.withheld.is_empty() {
            self.state = State::Calm;
        }
    }
}
