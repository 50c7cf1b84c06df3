// SPDX-License-Identifier: Apache-2.0

//! The state machine of one backend.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use portolan_model::check::{Check, HealthPolicy, InitialState};
use serde::{Deserialize, Serialize};

use crate::judgement::Judgement;
use crate::saved::{CheckHash, SavedBackend};
use crate::weight;
use crate::{Administrative, Assigned, Backend, DynamicWeight, Outcome, Reason, Word, ramp};

/// A fall within this time of a rise is a flap.
const FLAP: Duration = Duration::from_secs(60);
/// This time without a rise or a fall halves the flap factor.
const QUIET: Duration = Duration::from_secs(300);
/// The largest flap factor.
const MAX_FACTOR: u8 = 8;
/// First probes are spread over the interval, but over no longer time than this.
const SPREAD: Duration = Duration::from_secs(5);

/// The state that its checks give a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum State {
    /// New: at least one check has no result yet, and none fails.
    Probing,
    /// All checks pass.
    Up,
    /// All checks pass since a short time, so it has a share of its weight.
    Ramping,
    /// At least one check fails.
    Down,
}

impl State {
    /// `true` if it takes connections; `None` while that is unknown.
    #[must_use]
    pub fn is_known_up(self) -> Option<bool> {
        (self != Self::Probing).then(|| self.is_up())
    }

    /// Returns `true` if it takes connections.
    #[must_use]
    pub fn is_up(self) -> bool {
        matches!(self, Self::Up | Self::Ramping)
    }
}

/// A flap factor after some time without a rise or a fall.
pub(crate) fn halved(factor: u8, quiet: Duration) -> u8 {
    let halvings = quiet.as_secs() / QUIET.as_secs();
    let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
    factor.checked_shr(halvings).unwrap_or(0).max(1)
}

/// A change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The state before.
    pub from: State,
    /// The state after; another one.
    pub to: State,
    /// Reason why it went down; `None` if it did not.
    pub reason: Option<Reason>,
}

/// One backend with the results of its checks.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) state: State,
    /// When it came up or went down. The end of a ramp does not count.
    pub(crate) since: Duration,
    pub(crate) reason: Option<Reason>,
    pub(crate) changes: u64,
    /// The factor of `rise` at `quiet_since`.
    pub(crate) factor: u8,
    /// When the factor was last doubled or halved, or the backend last rose or fell.
    quiet_since: Duration,
    rose: Option<Duration>,
    checks: Vec<Checked>,
    hash: CheckHash,
}

/// One check of the backend.
#[derive(Debug, Clone)]
struct Checked {
    check: Arc<Check>,
    judgement: Judgement,
    weight: Option<DynamicWeight>,
    administrative: Administrative,
    reason: Option<Reason>,
}

impl Checked {
    /// A check that has no result yet.
    fn new(assigned: &Assigned) -> Self {
        Self {
            check: Arc::clone(&assigned.check),
            judgement: Judgement::Unknown,
            weight: None,
            administrative: Administrative::Enabled,
            reason: None,
        }
    }
}

impl Machine {
    /// A backend that has just become known.
    pub(crate) fn new(
        backend: &Backend,
        policy: &HealthPolicy,
        saved: Option<&SavedBackend>,
        now: Duration,
    ) -> Self {
        let hash = CheckHash::of(backend.checks.iter());
        if let Some(saved) = saved.filter(|saved| saved.checks == hash) {
            return Self::restored(backend, saved);
        }
        let is_up = backend.checks.is_empty()
            || backend.serves_already
            || policy.initial_state == InitialState::Up;
        let checks = backend.checks.iter();
        Self {
            state: if is_up { State::Up } else { State::Probing },
            since: now,
            reason: None,
            changes: 0,
            factor: 1,
            quiet_since: now,
            rose: None,
            checks: checks.map(Checked::new).collect(),
            hash,
        }
    }

    fn restored(backend: &Backend, saved: &SavedBackend) -> Self {
        let checks = backend
            .checks
            .iter()
            .enumerate()
            .map(|(index, each)| Checked {
                judgement: saved.judgements.get(index).copied().unwrap_or_default(),
                weight: saved.weights.get(index).copied().flatten(),
                administrative: saved.administrative.get(index).copied().unwrap_or_default(),
                reason: saved.reason.clone(),
                ..Checked::new(each)
            });
        Self {
            state: saved.state,
            since: saved.since,
            reason: saved.reason.clone(),
            changes: 0,
            factor: saved.factor.clamp(1, MAX_FACTOR),
            quiet_since: saved.quiet_since,
            rose: saved.state.is_up().then_some(saved.since),
            checks: checks.collect(),
            hash: saved.checks,
        }
    }

    /// The form to be saved.
    pub(crate) fn save(&self, address: std::net::SocketAddr) -> SavedBackend {
        let checks = self.checks.iter();
        SavedBackend {
            address,
            checks: self.hash,
            state: self.state,
            since: self.since,
            factor: self.factor,
            quiet_since: self.quiet_since,
            judgements: checks.clone().map(|each| each.judgement).collect(),
            weights: checks.clone().map(|each| each.weight).collect(),
            administrative: checks.map(|each| each.administrative).collect(),
            reason: self.reason.clone(),
        }
    }

    /// Takes another configuration. A check that stays keeps its results; the first result of another
    /// one decides alone, and the state holds until then.
    pub(crate) fn update(
        &mut self,
        backend: &Backend,
        policy: &HealthPolicy,
        now: Duration,
    ) -> Option<Change> {
        let old = std::mem::take(&mut self.checks);
        let keep = |each: &Assigned| {
            // Whatever its way: that is known late, and another after a restart.
            let same = old.iter().find(|old| old.check == each.check);
            same.cloned().unwrap_or_else(|| Checked::new(each))
        };
        self.checks = backend.checks.iter().map(keep).collect();
        self.hash = CheckHash::of(backend.checks.iter());
        self.settle(policy, now)
    }

    /// Takes the outcome of a probe of one check. A check that there is no more is ignored.
    pub(crate) fn take(
        &mut self,
        check: usize,
        outcome: &Outcome,
        policy: &HealthPolicy,
        now: Duration,
    ) -> Option<Change> {
        let factor = u32::from(self.factor_at(now));
        let is_silent = |checked: &Checked| {
            let timers = &checked.check.timers;
            let patience = timers.interval.min(SPREAD) + timers.timeout * 2;
            self.state == State::Probing && now.saturating_sub(self.since) >= patience
        };
        let checked = self.checks.get(check)?;
        let (is_silent, timers) = (is_silent(checked), checked.check.timers);
        let rise = timers.rise.saturating_mul(factor);
        let checked = self.checks.get_mut(check)?;
        match outcome {
            Outcome::Pass { weight } => {
                checked.weight = *weight;
                checked.judgement = checked.judgement.passed(rise);
            }
            Outcome::Fail(reason) => checked.fail(timers.fall, reason),
            Outcome::NoVerdict(reason) if is_silent && checked.judgement == Judgement::Unknown => {
                checked.fail(timers.fall, reason);
            }
            Outcome::NoVerdict(_) => {}
            Outcome::Word(word) => checked.hear(word, rise, timers.fall),
        }
        self.settle(policy, now)
    }

    /// The time until the next probe of one check.
    pub(crate) fn next_probe(&self, check: usize) -> Option<Duration> {
        let checked = self.checks.get(check)?;
        Some(checked.judgement.next(&checked.check.timers))
    }

    /// Ends a ramp whose time is over.
    pub(crate) fn tick(&mut self, policy: &HealthPolicy, now: Duration) -> Option<Change> {
        let is_over = now.saturating_sub(self.since) >= policy.slow_start;
        (self.state == State::Ramping && is_over).then(|| self.go(State::Up, None))
    }

    /// When the share of its weight may change next.
    pub(crate) fn next_tick(&self, policy: &HealthPolicy, now: Duration) -> Option<Duration> {
        let elapsed = now.saturating_sub(self.since);
        let next = match self.state {
            State::Ramping => ramp::next(policy.slow_start, elapsed).unwrap_or(elapsed),
            _ => return None,
        };
        Some(self.since + next)
    }

    /// The share of its weight, in percent.
    pub(crate) fn share(&self, policy: &HealthPolicy, now: Duration) -> u32 {
        match self.state {
            State::Ramping => ramp::share(policy.slow_start, now.saturating_sub(self.since)),
            _ => 100,
        }
    }

    /// The weight that its checks give it; the smallest one of several.
    pub(crate) fn dynamic(&self, configured: u16) -> Option<DynamicWeight> {
        let weights = self.checks.iter().filter_map(|each| each.weight);
        weights.reduce(|a, b| weight::smaller(configured, a, b))
    }

    /// The state that the backend itself asks for; the strongest of several.
    pub(crate) fn administrative(&self) -> Administrative {
        let asked = self.checks.iter().map(|each| each.administrative);
        asked.max().unwrap_or_default()
    }

    /// The factor of `rise`: doubled by each flap, halved by quiet time.
    pub(crate) fn factor_at(&self, now: Duration) -> u8 {
        halved(self.factor, now.saturating_sub(self.quiet_since))
    }

    /// Makes the state that of the checks.
    fn settle(&mut self, policy: &HealthPolicy, now: Duration) -> Option<Change> {
        let failing = |each: &&Checked| matches!(each.judgement, Judgement::Failing { .. });
        let unknown = |each: &Checked| each.judgement == Judgement::Unknown;
        let failure = self.checks.iter().find(failing);
        let reason = failure.map(|each| each.reason.clone());
        let is_unknown = self.checks.iter().any(unknown);
        match (self.state, reason) {
            (State::Probing, Some(reason)) => {
                self.quiet_since = now;
                self.since = now;
                Some(self.go(State::Down, reason))
            }
            (State::Up | State::Ramping, Some(reason)) => Some(self.fall(reason, now)),
            (State::Probing, None) if !is_unknown => Some(self.rise(State::Up, now)),
            (State::Down, None) if !is_unknown => {
                let ramps = !policy.slow_start.is_zero();
                let to = if ramps { State::Ramping } else { State::Up };
                Some(self.rise(to, now))
            }
            _ => None,
        }
    }

    fn rise(&mut self, to: State, now: Duration) -> Change {
        self.factor = self.factor_at(now);
        (self.since, self.quiet_since, self.rose) = (now, now, Some(now));
        self.go(to, None)
    }

    fn fall(&mut self, reason: Option<Reason>, now: Duration) -> Change {
        let factor = self.factor_at(now);
        let flaps = |rose| now.saturating_sub(rose) < FLAP;
        self.factor = match self.rose.is_some_and(flaps) {
            true => factor.saturating_mul(2).min(MAX_FACTOR),
            false => factor,
        };
        (self.since, self.quiet_since) = (now, now);
        self.go(State::Down, reason)
    }

    fn go(&mut self, to: State, reason: Option<Reason>) -> Change {
        let from = std::mem::replace(&mut self.state, to);
        if from != State::Ramping || to != State::Up {
            self.changes += 1;
        }
        self.reason.clone_from(&reason);
        Change { from, to, reason }
    }
}

impl Checked {
    fn fail(&mut self, fall: u32, reason: &Reason) {
        self.judgement = self.judgement.failed(fall);
        self.reason = Some(reason.clone());
    }

    /// Takes a word; absent parts stay as they were. A backend that has said nothing yet is not down.
    fn hear(&mut self, word: &Word, rise: u32, fall: u32) {
        self.weight = word.weight.or(self.weight);
        self.administrative = word.administrative.unwrap_or(self.administrative);
        match word.up {
            Some(true) => self.judgement = self.judgement.passed(rise),
            Some(false) => {
                let said = || Reason::from("it calls itself down");
                self.fail(fall, &word.reason.clone().unwrap_or_else(said));
            }
            None if self.judgement == Judgement::Unknown => {
                self.judgement = self.judgement.passed(rise);
            }
            None => {}
        }
    }
}
