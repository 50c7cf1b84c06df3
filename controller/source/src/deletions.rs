//! Whether deletions are believed. Pure: time comes in, and what may be told comes out.
//!
//! A [`Guard`] stands between what a source says of one kind and those who act on it. Only losses
//! are withheld: deletions, and slices that come with fewer ready endpoints. What is new or changed
//! passes at once.
//!
//! What is absent from a listing is doubted. If more than a share of the kind is absent, the kind is
//! listed again, and what is still absent is held. What a watch says was deleted is believed, unless
//! nearly all of the kind goes within a minute; to see a burst as a whole, a deletion waits until no
//! other one has come for a second. What is held stays in force until the objects return, an operator
//! confirms the loss, or the time for that is over.

mod listing;
mod peak;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_catalog::ObjectKey;

use listing::Listing;
pub use listing::Verdict;
use peak::Peak;

/// Losses through a watch are summed up over this time.
pub const WINDOW: Duration = Duration::from_secs(60);
/// A burst of deletions is over when no deletion has come for this long.
pub const SETTLE: Duration = Duration::from_secs(1);
/// The same, once a burst would take away too much if it went on.
const SLOW_SETTLE: Duration = Duration::from_secs(5);
/// The longest that deletions wait that are no burst: deletions may never stop for [`SETTLE`].
const PATIENCE: Duration = Duration::from_secs(5);

/// Which losses are too large to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardConfig {
    /// A listing is doubted if more than this percentage of a kind, or of its ready endpoints, is
    /// absent. 0 to 100; 100 believes everything, also of a watch.
    pub listing_percent: u8,
    /// A watch is doubted if more than this percentage goes within [`WINDOW`]. 0 to 100.
    pub watch_percent: u8,
    /// Smaller losses are always believed.
    pub least: usize,
    /// How long a loss is held that nobody confirms; `None` for ever.
    pub hold: Option<Duration>,
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self {
            listing_percent: 20,
            watch_percent: 80,
            least: 50,
            hold: Some(Duration::from_secs(30 * 60)),
        }
    }
}

impl GuardConfig {
    /// Nothing is ever held.
    pub const OFF: Self = Self {
        listing_percent: 100,
        watch_percent: 100,
        least: usize::MAX,
        hold: None,
    };

    fn is_off(&self) -> bool {
        self.listing_percent >= 100
    }

    fn is_too_much(&self, percent: u8, lost: Size, of: Size) -> bool {
        let is = |lost: usize, of: usize| {
            lost >= self.least && lost.saturating_mul(100) > of.saturating_mul(percent.into())
        };
        !self.is_off() && (is(lost.objects, of.objects) || is(lost.ready, of.ready))
    }
}

/// How much there is of a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Objects.
    pub objects: usize,
    /// Ready endpoints of EndpointSlices.
    pub ready: usize,
}

impl Size {
    fn plus(self, other: Self) -> Self {
        Self {
            objects: self.objects + other.objects,
            ready: self.ready + other.ready,
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            objects: self.objects.saturating_sub(other.objects),
            ready: self.ready.saturating_sub(other.ready),
        }
    }
}

/// What the guard looks at in an object. An object of a kind other than EndpointSlice has nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// How many ready endpoints it has.
    pub ready: usize,
    /// The Service that its endpoints belong to: another slice of the same Service may replace it.
    pub service: Option<Arc<str>>,
    /// Hashes of the ready endpoints' addresses. An endpoint that moves is in two slices of its Service
    /// for a while, and no loss when it leaves one. Ready endpoints without a hash count for themselves.
    pub addresses: Arc<[u64]>,
}

/// A loss that is not told yet.
#[derive(Debug)]
struct Loss<P> {
    /// What is left of the object; `None` for a deletion.
    left: Option<Facts>,
    /// What to tell.
    news: P,
}

/// What is held at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// What would be lost.
    pub lost: Size,
    /// Of how much.
    pub of: Size,
    /// When it counts as confirmed; `None` for never.
    pub until: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is withheld.
    Calm,
    /// Losses wait for the rest of their burst.
    Waiting { since: Instant, last: Instant },
    /// Losses are held.
    Held {
        until: Option<Instant>,
        /// When to see whether other slices have replaced those that are held.
        replaced: Option<Instant>,
    },
}

/// Guards one kind of one cluster. `P` is what is told of an object.
#[derive(Debug)]
pub struct Guard<P> {
    config: GuardConfig,
    /// What has been told, without what is withheld.
    in_force: BTreeMap<ObjectKey, Facts>,
    ready: usize,
    withheld: BTreeMap<ObjectKey, Loss<P>>,
    /// What would be lost if all that is withheld were told.
    lost: Size,
    state: State,
    peak: Peak,
    listing: Option<Listing<P>>,
    /// How much there was before a listing that was doubted.
    doubted: Option<Size>,
}

impl<P> Guard<P> {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(config: GuardConfig) -> Self {
        Self {
            config,
            in_force: BTreeMap::new(),
            ready: 0,
            withheld: BTreeMap::new(),
            lost: Size::default(),
            state: State::Calm,
            peak: Peak::default(),
            listing: None,
            doubted: None,
        }
    }

    /// A watch says that an object is so now, with these facts; without facts it cannot be read, and
    /// counts as it was. Returns the news if they may be told now.
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

    /// A watch says that an object is gone. Returns the news if they may be told now.
    pub fn delete(&mut self, key: ObjectKey, news: P, now: Instant) -> Option<P> {
        let is_guarded = !self.config.is_off()
            && (self.size().objects >= self.config.least || self.size().ready >= self.config.least);
        if self.in_force.contains_key(&key) && (is_guarded || self.is_held()) {
            self.withhold(key, Loss { left: None, news }, now);
            return None;
        }
        self.lose(&key, None);
        self.peak.note(self.expected_size(), now);
        Some(news)
    }

    /// When [`Self::look`] has something to do; `None` for not by time.
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

    /// Judges a burst that is over, and lets go of what need not be held any longer. Returns what may
    /// be told now.
    pub fn look(&mut self, now: Instant) -> Vec<P> {
        if self.due(now).is_none_or(|due| due > now) {
            return Vec::new();
        }
        match self.state {
            State::Calm => Vec::new(),
            State::Waiting { .. } => {
                let lost = self.lost_with(0, now);
                if self.is_too_much(self.config.watch_percent, lost, now) {
                    self.hold(now);
                    return self.let_go_replaced(now);
                }
                self.let_go_all(now)
            }
            State::Held { until, .. } if until.is_some_and(|until| until <= now) => {
                self.confirm(now)
            }
            State::Held { .. } => self.let_go_replaced(now),
        }
    }

    /// The losses that are held are meant. Returns what may be told now.
    pub fn confirm(&mut self, now: Instant) -> Vec<P> {
        if !self.is_held() {
            return Vec::new();
        }
        let news = self.let_go_all(now);
        // What was confirmed is no part of a burst.
        self.peak.reset(self.size(), now);
        news
    }

    /// What is held, if anything is.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        let State::Held { until, .. } = self.state else {
            return None;
        };
        Some(Held {
            lost: self.lost,
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

    /// What a loss takes away.
    fn lost_by(&self, key: &ObjectKey, loss: &Loss<P>) -> Size {
        let had = self.in_force.get(key).map_or(0, |facts| facts.ready);
        let left = loss.left.as_ref().map_or(0, |facts| facts.ready);
        Size {
            objects: usize::from(loss.left.is_none()),
            ready: had.saturating_sub(left),
        }
    }

    /// Takes a loss back, to tell or to forget it.
    fn take_withheld(&mut self, key: &ObjectKey) -> Option<Loss<P>> {
        let loss = self.withheld.remove(key)?;
        self.lost = self.lost.minus(self.lost_by(key, &loss));
        if self.withheld.is_empty() {
            self.state = State::Calm;
        }
        Some(loss)
    }

    fn put_withheld(&mut self, key: ObjectKey, loss: Loss<P>) {
        if let Some(before) = self.withheld.get(&key) {
            self.lost = self.lost.minus(self.lost_by(&key, before));
        }
        self.lost = self.lost.plus(self.lost_by(&key, &loss));
        self.withheld.insert(key, loss);
    }

    /// What there is once the burst that waits is told. What is held will not be told soon, and does
    /// not add up with other losses.
    fn expected_size(&self) -> Size {
        match self.state {
            State::Waiting { .. } => self.size().minus(self.lost),
            State::Calm | State::Held { .. } => self.size(),
        }
    }

    /// What is lost within the window with so many more ready endpoints.
    fn lost_with(&self, ready: usize, now: Instant) -> Size {
        let more = Size { objects: 0, ready };
        let left = self.expected_size().minus(more);
        self.peak.highest(now).minus(left)
    }

    fn is_too_much(&self, percent: u8, lost: Size, now: Instant) -> bool {
        self.config
            .is_too_much(percent, lost, self.peak.highest(now))
    }

    /// Whether this many more ready endpoints make it a burst.
    fn is_steep(&self, ready: usize, now: Instant) -> bool {
        let lost = self.lost_with(ready, now);
        self.is_too_much(self.config.listing_percent, lost, now)
    }

    /// Whether the burst is too large if it goes on for the whole window as it has for this time.
    fn may_become_too_much(&self, time: Duration, now: Instant) -> bool {
        let times = |lost: usize| {
            let lost = u128::try_from(lost).unwrap_or(u128::MAX);
            let lost = lost.saturating_mul(WINDOW.as_millis()) / (time + SETTLE).as_millis();
            usize::try_from(lost).unwrap_or(usize::MAX)
        };
        // A tenth of what is always believed is no burst yet.
        let is_burst = self.lost.objects.max(self.lost.ready) > self.config.least / 10;
        let lost = Size {
            objects: times(self.lost.objects),
            ready: times(self.lost.ready),
        };
        is_burst && self.is_too_much(self.config.watch_percent, lost, now)
    }

    /// An object is so now, and that is told.
    fn accept(&mut self, key: ObjectKey, facts: Facts, now: Instant) {
        self.take_withheld(&key);
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

    /// Lets go of slices whose Services have as many ready endpoints without them.
    fn let_go_replaced(&mut self, now: Instant) -> Vec<P> {
        if let State::Held { replaced, .. } = &mut self.state {
            *replaced = None;
        }
        let keys = listing::replaced(&self.in_force, &self.withheld);
        self.let_go(keys, now)
    }

    fn let_go(&mut self, keys: Vec<ObjectKey>, now: Instant) -> Vec<P> {
        let mut told = Vec::new();
        for key in keys {
            if let Some(loss) = self.take_withheld(&key) {
                self.lose(&key, loss.left);
                told.push(loss.news);
            }
        }
        self.peak.note(self.expected_size(), now);
        told
    }

    /// Of an object in force this is left.
    fn lose(&mut self, key: &ObjectKey, left: Option<Facts>) {
        self.ready += left.as_ref().map_or(0, |left| left.ready);
        let old = match left {
            Some(left) => self.in_force.insert(key.clone(), left),
            None => self.in_force.remove(key),
        };
        self.ready -= old.map_or(0, |old| old.ready);
    }
}
