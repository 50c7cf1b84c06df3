// SPDX-License-Identifier: Apache-2.0

//! The states of clusters: contact, loss, return and drain, each as a step of 0 to 20 that scales the
//! cluster's share.
//!
//! One replica decides ([`Fleet::advance`]). Others that are told its statuses show them ([`Fleet::follow`]), and one
//! that takes over goes on from there ([`Fleet::take_over`]), so that no step goes back. How statuses get from one
//! replica to another is up to the caller. A process that starts again goes on from those that it kept
//! ([`Fleet::resume`]).
//!
//! Time is what [`Fleet::advance`] is told. It counts at most [`LONGEST_TICK`] between two calls: a
//! process that was stopped, or a clock that was set, takes no cluster out.

mod cluster;
mod drain;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use portolan_policy::{Cluster, Drain, Loss};

use crate::Moment;
use cluster::{Reach, State};

/// The step of a cluster that has its whole share.
pub const FULL: u8 = 20;

/// The time without an event, bookmark or probe after which a cluster is stale: three probes.
pub const SILENCE: Duration = Duration::from_secs(30);

/// The most time that counts between two calls of [`Fleet::advance`]: a probe's period.
pub const LONGEST_TICK: Duration = Duration::from_secs(10);

/// The longest wait before a cluster returns that is lost again and again.
pub const LONGEST_RETURN: Duration = Duration::from_mins(10);

/// The time for which a loss doubles the wait after the next one.
pub const LOSS_MEMORY: Duration = Duration::from_hours(1);

/// `Cluster.status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Not all kinds of objects are listed yet. The last known endpoints serve, if there are any.
    Connecting,
    /// In contact.
    Ready,
    /// Out of contact. Its endpoints stay as they are, and nothing is written there.
    Stale,
    /// Out of contact for too long. Its endpoints are withdrawn.
    Lost,
    /// In contact again, or no longer drained: its share rises.
    Returning,
    /// The operator drains it: its share falls.
    Draining,
    /// The operator has drained it.
    Drained,
}

impl Phase {
    /// As in the status, and a label of metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "Connecting",
            Self::Ready => "Ready",
            Self::Stale => "Stale",
            Self::Lost => "Lost",
            Self::Returning => "Returning",
            Self::Draining => "Draining",
            Self::Drained => "Drained",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Settings of the operator for a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Time after which it is lost once it is stale; zero for never.
    pub stale_ttl: Duration,
    /// Time that it is in contact before it returns.
    pub return_after: Duration,
    /// Time over which its share rises.
    pub ramp_up: Duration,
    /// The drain.
    pub drain: Option<Drain>,
}

impl Settings {
    /// Those of a cluster in a set with these rules of loss.
    #[must_use]
    pub fn new(set: &Loss, cluster: &Cluster) -> Self {
        Self {
            stale_ttl: cluster.loss.stale_ttl.unwrap_or(set.stale_ttl),
            return_after: cluster.loss.return_after.unwrap_or(set.return_after),
            ramp_up: cluster.loss.ramp_up.unwrap_or(set.ramp_up),
            drain: cluster.drain,
        }
    }
}

/// Known state of a cluster, which its status keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The phase.
    pub phase: Phase,
    /// The step: 0 to [`FULL`].
    pub step: u8,
    /// The part of the step that contact allows, without a drain.
    pub reach_step: u8,
    /// The part of the step that the drain allows.
    pub drain_step: u8,
    /// `true` if the operator drains it. While `drain_step` is 0 its endpoints count neither as ready nor as missing.
    pub drained: bool,
    /// The last event, bookmark or probe.
    pub last_contact: Option<Moment>,
    /// The time out of contact that counts towards `staleTTL`.
    pub stale_for: Duration,
    /// The losses of the last hour.
    pub recent_losses: Vec<Moment>,
    /// All losses.
    pub losses: u64,
}

/// A change of phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The id of the cluster.
    pub cluster: Arc<str>,
    /// The phase before.
    pub from: Phase,
    /// The phase now.
    pub to: Phase,
}

/// The states of all clusters, by id.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    states: BTreeMap<Arc<str>, State>,
    now: Moment,
    preserving: bool,
}

impl Fleet {
    /// Clusters with the statuses that another replica, or an earlier process, wrote. Those that were
    /// in contact are connecting and keep their step. [`Self::set`] follows for each of them.
    #[must_use]
    pub fn resume(statuses: &BTreeMap<Arc<str>, Status>, now: Moment) -> Self {
        let states = statuses.iter().map(|(id, status)| {
            let mut state = State::resumed(status);
            state.keep_to(now);
            (Arc::clone(id), state)
        });
        Self {
            states: states.collect(),
            now,
            preserving: false,
        }
    }

    /// Adds a cluster, or gives one other settings. One that is new begins with its drain complete.
    pub fn set(&mut self, id: &Arc<str>, settings: Settings) {
        match self.states.get_mut(id) {
            Some(state) => state.settings = Some(settings),
            None => {
                self.states.insert(Arc::clone(id), State::new(settings));
            }
        }
    }

    /// Removes a cluster.
    pub fn remove(&mut self, id: &str) {
        self.states.remove(id);
    }

    /// An event, a bookmark or the answer of a probe came from a cluster. `listed` says whether all
    /// kinds of its objects are listed by now. A refusal is no contact.
    pub fn contact(&mut self, id: &str, listed: bool, now: Moment) {
        if let Some(state) = self.states.get_mut(id) {
            state.contact(listed, now);
        }
    }

    /// Lets the time pass until now. `mass_loss` is the percentage of clusters that may be stale at
    /// once, of those that are not lost already and were in contact before. If more are, at least
    /// two, it is this side that has no contact, and no clock of loss or return runs.
    ///
    /// Changes of phase since the last call are returned.
    pub fn advance(&mut self, now: Moment, mass_loss: u8) -> Vec<Transition> {
        let tick = now.since(self.now).min(LONGEST_TICK);
        self.now = now;
        for state in self.states.values_mut() {
            state.keep_to(now);
            state.listen(tick);
        }
        self.preserving = self.is_mass_loss(mass_loss);
        for state in self.states.values_mut() {
            let tick_of_contact = if self.preserving {
                Duration::ZERO
            } else {
                tick
            };
            state.advance(tick_of_contact, now);
            state.advance_drain(tick);
        }
        self.transitions()
    }

    /// Takes the statuses that the replica which leads has decided on, in place of [`Self::advance`]. Clusters that
    /// are not among them stay as they are, and new ones are added as by [`Self::resume`]. Contact is noted, since
    /// this replica may lead next.
    ///
    /// Changes of phase since the last call are returned.
    pub fn follow(
        &mut self,
        statuses: &BTreeMap<Arc<str>, Status>,
        now: Moment,
    ) -> Vec<Transition> {
        let tick = now.since(self.now).min(LONGEST_TICK);
        self.now = now;
        self.preserving = false;
        for (id, status) in statuses {
            let state = self.states.entry(Arc::clone(id));
            let state = state.or_insert_with(|| State::resumed(status));
            state.follow(status);
        }
        for state in self.states.values_mut() {
            state.keep_to(now);
            state.hear(tick);
        }
        self.transitions()
    }

    /// Begins to decide, after [`Self::follow`]. Clusters that this replica has not listed itself are connecting, and
    /// keep their step.
    pub fn take_over(&mut self) {
        self.states.values_mut().for_each(State::take_over);
    }

    fn transitions(&mut self) -> Vec<Transition> {
        let states = self.states.iter_mut().filter_map(|(id, state)| {
            let (from, to) = (state.shown, state.phase());
            state.shown = to;
            (from != to).then(|| Transition {
                cluster: Arc::clone(id),
                from,
                to,
            })
        });
        states.collect()
    }

    fn is_mass_loss(&self, most_percent: u8) -> bool {
        let live = self.states.values().filter(|state| state.is_live());
        let stale = |state: &State| matches!(state.reach, Reach::Stale { .. });
        let (all, stale) = live.fold((0_usize, 0_usize), |(all, count), state| {
            (all + 1, count + usize::from(stale(state)))
        });
        stale >= 2 && stale * 100 > usize::from(most_percent) * all
    }

    /// Returns `true` if so many clusters are stale that none is lost (`SelfPreservation`).
    #[must_use]
    pub fn is_preserving(&self) -> bool {
        self.preserving
    }

    /// The status of a cluster.
    #[must_use]
    pub fn status(&self, id: &str) -> Option<Status> {
        self.states.get(id).map(State::status)
    }

    /// All statuses.
    #[must_use]
    pub fn statuses(&self) -> BTreeMap<Arc<str>, Status> {
        let states = self.states.iter();
        states
            .map(|(id, state)| (Arc::clone(id), state.status()))
            .collect()
    }
}

/// Returns `true` if a replica that has not listed a cluster's objects yet, and has none from
/// before, may serve agents of clusters that import from it: not before that cluster would be lost.
/// Else a restart while it is out of contact would delete endpoints that are alive.
///
/// This is what the clock says. After a time when no replica ran it is no sign of a loss, so a caller
/// also asks for how long it has waited itself ([`may_be_late`]).
#[must_use]
pub fn may_serve_without(last_contact: Option<Moment>, stale_ttl: Duration, now: Moment) -> bool {
    let Some(last_contact) = last_contact else {
        return true;
    };
    !stale_ttl.is_zero() && now.since(last_contact) >= SILENCE + stale_ttl
}

/// Returns `true` if the objects of a cluster may still come to a process that has waited for so long:
/// until a cluster would be lost. For one that is never lost the default counts: one that was never in
/// contact has no endpoints yet that stay.
#[must_use]
pub fn may_be_late(stale_ttl: Duration, waited: Duration) -> bool {
    let ttl = match stale_ttl.is_zero() {
        true => Loss::default().stale_ttl,
        false => stale_ttl,
    };
    waited < SILENCE + ttl
}
