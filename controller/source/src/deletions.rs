// SPDX-License-Identifier: Apache-2.0

//! The deletion guard: doubts about mass deletions. Pure: time comes in, events to pass on come out.
//!
//! A [`DeletionGuard`] stands between a source's events of one kind and their consumers. Only losses
//! are withheld: deletions, and slices with fewer ready endpoints than before. New and changed
//! objects pass at once.
//!
//! Objects that are absent from a listing are doubted: if they are more than a share of the kind, the
//! kind is listed again, and those that are still absent are held. Deletions that a watch reports are
//! believed, unless nearly all of the kind goes within a minute; to judge a burst as a whole, a
//! deletion waits until no other one has come for a second. A held loss stays withheld until the
//! objects return, an operator confirms it, or its time is over.

mod config;
mod listing;
mod peak;
mod remains;
mod replacement;
mod size;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portolan_catalog::ObjectKey;

pub use config::GuardConfig;
use listing::Listing;
pub use listing::Verdict;
use peak::Peak;
pub use remains::Remains;
use replacement::Baselines;
use size::Loss;
pub use size::{Facts, HeldLoss, Size};

/// Losses through a watch are summed up over this time.
pub const WINDOW: Duration = Duration::from_secs(60);
/// A burst of deletions is over when no deletion has come for this long.
pub const SETTLE: Duration = Duration::from_secs(1);
/// The same for a burst that would take away too much if it went on.
const SLOW_SETTLE: Duration = Duration::from_secs(5);
/// The longest wait of deletions that are no burst: they may never pause for [`SETTLE`].
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is withheld.
    Calm,
    /// Losses wait for the rest of their burst.
    Waiting { since: Instant, last: Instant },
    /// Losses are held.
    Held {
        until: Option<Instant>,
        /// When to look for slices that have replaced held ones.
        replaced: Option<Instant>,
    },
}

/// The guard of one kind of one cluster. `P` is an event about an object.
#[derive(Debug)]
pub struct DeletionGuard<P> {
    config: GuardConfig,
    /// The objects as the consumers know them.
    in_force: BTreeMap<ObjectKey, Facts>,
    ready: usize,
    withheld: BTreeMap<ObjectKey, Loss<P>>,
    /// The size of all withheld losses.
    lost: Size,
    /// Losses that the guard before held, until a listing shows them again.
    inherited: BTreeMap<ObjectKey, Loss<P>>,
    state: State,
    peak: Peak,
    baselines: Baselines,
    listing: Option<Listing<P>>,
    /// The size before a listing that was doubted.
    doubted: Option<Size>,
}

impl<P> DeletionGuard<P> {
    /// A guard without objects.
    #[must_use]
    pub fn new(config: GuardConfig) -> Self {
        Self {
            config,
            in_force: BTreeMap::new(),
            ready: 0,
            withheld: BTreeMap::new(),
            lost: Size::default(),
            inherited: BTreeMap::new(),
            state: State::Calm,
            peak: Peak::default(),
            baselines: Baselines::default(),
            listing: None,
            doubted: None,
        }
    }

    /// Takes in an object of a watch. An object without facts cannot be read, and counts as
    /// unchanged. Returns the event if it may be passed on now.
    pub fn put(
        &mut self,
        key: ObjectKey,
        facts: Option<Facts>,
        news: P,
        now: Instant,
    ) -> Option<P> {
        let old = self.in_force.get(&key);
        let facts = facts.or_else(|| old.cloned()).unwrap_or_default();
        let lost = old.map_or(0, |old| old.ready.saturating_sub(facts.ready));
        if lost > 0 && (self.withheld.contains_key(&key) || self.is_steep(lost, now)) {
            let left = Some(facts);
            self.withhold(key, Loss { left, news }, now);
            return None;
        }
        self.accept(key, facts, now);
        Some(news)
    }

    /// Takes in a deletion of a watch. Returns the event if it may be passed on now.
    pub fn delete(&mut self, key: ObjectKey, news: P, now: Instant) -> Option<P> {
        let is_guarded = !self.config.is_off()
            && (self.config.doubts_emptiness
                || self.size().objects >= self.config.least
                || self.size().ready >= self.config.least);
        if self.in_force.contains_key(&key) && (is_guarded || self.is_held()) {
            self.withhold(key, Loss { left: None, news }, now);
            return None;
        }
        self.lose(&key, None, now);
        self.peak.note(self.expected_size(), now);
        Some(news)
    }

    /// When [`Self::look`] is due; `None` for not before the next event.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::Calm => None,
            State::Waiting { since, last } => {
                let (settle, patience) = match self.may_become_too_much(last - since, now) {
                    true => (SLOW_SETTLE, WINDOW),
                    false => (SETTLE, PATIENCE),
                };
                Some((last + settle).min(since + patience))
            }
            State::Held { until, replaced } => until.into_iter().chain(replaced).min(),
        }
    }

    /// Judges a burst that is over, and ends holds. Returns the events to pass on now.
    pub fn look(&mut self, now: Instant) -> Vec<P> {
        if self.due(now).is_none_or(|due| due > now) {
            return Vec::new();
        }
        match self.state {
            State::Calm => Vec::new(),
            State::Waiting { .. } => self.judge(now),
            State::Held { until, .. } if until.is_some_and(|until| until <= now) => {
                self.confirm(now)
            }
            State::Held { .. } => self.let_go_replaced(now),
        }
    }

    /// Judges a burst now, as if it was over. Before a listing, so that what a watch has told does not count as absent
    /// from it. Returns the events to pass on now.
    pub fn settle(&mut self, now: Instant) -> Vec<P> {
        match self.state {
            State::Waiting { .. } => self.judge(now),
            State::Calm | State::Held { .. } => Vec::new(),
        }
    }

    /// Judges a burst.
    fn judge(&mut self, now: Instant) -> Vec<P> {
        let lost = self.lost_with(0, now);
        if self.is_too_much(self.config.watch_percent, lost, now) {
            self.hold(now);
            return self.let_go_replaced(now);
        }
        self.let_go_all(now)
    }

    /// Believes the held losses. Returns the events to pass on now.
    pub fn confirm(&mut self, now: Instant) -> Vec<P> {
        if !self.is_held() {
            return Vec::new();
        }
        let mut news = self.lose_inherited(now);
        news.extend(self.let_go_all(now));
        // Confirmed losses are no part of a burst.
        self.peak.reset(self.size(), now);
        self.baselines.clear();
        news
    }

    /// The held losses, if there are any.
    #[must_use]
    pub fn held(&self) -> Option<HeldLoss> {
        let State::Held { until, .. } = self.state else {
            return None;
        };
        Some(HeldLoss {
            lost: self.lost.plus(self.inherited_size()),
            of: self.size(),
            until,
        })
    }

    fn is_held(&self) -> bool {
        matches!(self.state, State::Held { .. })
    }

    fn size(&self) -> Size {
        Size {
            objects: self.in_force.len(),
            ready: self.ready,
        }
    }

    /// Returns `true` if consumers have objects.
    #[must_use]
    pub fn has_objects(&self) -> bool {
        !self.in_force.is_empty()
    }

    /// The size of a loss.
    fn lost_by(&self, key: &ObjectKey, loss: &Loss<P>) -> Size {
        let left = loss.left.as_ref();
        let had = self.in_force.get(key).map_or(0, |facts| facts.ready);
        Size {
            objects: usize::from(left.is_none()),
            ready: had.saturating_sub(left.map_or(0, |facts| facts.ready)),
        }
    }

    /// Removes a withheld loss, which is believed or was undone.
    fn remove_withheld(&mut self, key: &ObjectKey) -> Option<Loss<P>> {
        let loss = self.withheld.remove(key)?;
        self.lost = self.lost.minus(self.lost_by(key, &loss));
        if self.withheld.is_empty() {
            self.state = State::Calm;
        }
        Some(loss)
    }

    fn put_withheld(&mut self, key: ObjectKey, loss: Loss<P>) {
        self.inherited.remove(&key);
        if let Some(before) = self.withheld.get(&key) {
            self.lost = self.lost.minus(self.lost_by(&key, before));
        }
        self.lost = self.lost.plus(self.lost_by(&key, &loss));
        self.withheld.insert(key, loss);
    }

    /// The size after the waiting burst. Held losses stay in force for long and do not add up with
    /// others.
    fn expected_size(&self) -> Size {
        match self.state {
            State::Waiting { .. } => self.size().minus(self.lost),
            State::Calm | State::Held { .. } => self.size(),
        }
    }

    /// The loss within the window if so many more ready endpoints go.
    fn lost_with(&self, ready: usize, now: Instant) -> Size {
        let more = Size { objects: 0, ready };
        let left = self.expected_size().minus(more);
        self.peak.highest(now).minus(left)
    }

    fn is_too_much(&self, percent: u8, lost: Size, now: Instant) -> bool {
        self.config
            .is_too_much(percent, lost, self.peak.highest(now))
    }

    /// Returns `true` if the loss of so many more ready endpoints makes a burst.
    fn is_steep(&self, ready: usize, now: Instant) -> bool {
        let lost = self.lost_with(ready, now);
        self.is_too_much(self.config.listing_percent, lost, now)
    }

    /// Returns `true` if the burst would be too large if it went on for the whole window as it has
    /// for `time`.
    fn may_become_too_much(&self, time: Duration, now: Instant) -> bool {
        let times = |lost: usize| {
            let lost = u128::try_from(lost).unwrap_or(u128::MAX);
            let lost = lost.saturating_mul(WINDOW.as_millis()) / (time + SETTLE).as_millis();
            usize::try_from(lost).unwrap_or(usize::MAX)
        };
        // A tenth of the size that is always believed is no burst yet.
        let is_burst = self.lost.objects.max(self.lost.ready) > self.config.least / 10;
        let lost = Size {
            objects: times(self.lost.objects),
            ready: times(self.lost.ready),
        };
        is_burst && self.is_too_much(self.config.watch_percent, lost, now)
    }

    /// Puts an object in force, and undoes a withheld loss of it.
    fn accept(&mut self, key: ObjectKey, facts: Facts, now: Instant) {
        self.record_change(&key, Some(&facts), now);
        self.remove_withheld(&key);
        self.inherited.remove(&key);
        if let State::Held { replaced, .. } = &mut self.state
            && facts.ready > 0
        {
            replaced.get_or_insert(now + SETTLE);
        }
        self.ready += facts.ready;
        let old = self.in_force.insert(key, facts);
        self.ready -= old.map_or(0, |old| old.ready);
        self.peak.note(self.expected_size(), now);
    }

    fn withhold(&mut self, key: ObjectKey, loss: Loss<P>, now: Instant) {
        self.sweep_baselines(now);
        self.put_withheld(key, loss);
        self.state = match self.state {
            State::Calm => State::Waiting {
                since: now,
                last: now,
            },
            State::Waiting { since, .. } => State::Waiting { since, last: now },
            held @ State::Held { .. } => held,
        };
        self.peak.note(self.expected_size(), now);
    }

    fn hold(&mut self, now: Instant) {
        if !self.is_held() {
            let until = self.config.hold.map(|hold| now + hold);
            self.state = State::Held {
                until,
                replaced: None,
            };
        }
    }

    fn let_go_all(&mut self, now: Instant) -> Vec<P> {
        let keys: Vec<_> = self.withheld.keys().cloned().collect();
        self.let_go(keys, now)
    }

    fn let_go_replaced(&mut self, now: Instant) -> Vec<P> {
        if let State::Held { replaced, .. } = &mut self.state {
            *replaced = None;
        }
        self.let_go_of_replaced(|guard, keys| guard.let_go(keys, now))
    }

    fn let_go(&mut self, keys: Vec<ObjectKey>, now: Instant) -> Vec<P> {
        let mut told = Vec::new();
        for key in keys {
            if let Some(loss) = self.remove_withheld(&key) {
                self.lose(&key, loss.left, now);
                told.push(loss.news);
            }
        }
        self.peak.note(self.expected_size(), now);
        told
    }

    /// Reduces an object in force to what is left of it.
    fn lose(&mut self, key: &ObjectKey, left: Option<Facts>, now: Instant) {
        self.record_change(key, left.as_ref(), now);
        self.ready += left.as_ref().map_or(0, |left| left.ready);
        let old = match left {
            Some(left) => self.in_force.insert(key.clone(), left),
            None => self.in_force.remove(key),
        };
        self.ready -= old.map_or(0, |old| old.ready);
    }
}
