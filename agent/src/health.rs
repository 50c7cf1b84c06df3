// SPDX-License-Identifier: Apache-2.0

//! Health of the agent: a family is unhealthy if a change of the table waits for too long.
//!
//! A loop without a sign of life for a minute is stuck, even if no change waits. A family that could not be
//! programmed waits too, and is unhealthy at once if it never could.
//!
//! A change counts as served even if the kernel refused single objects: one Service that cannot be
//! programmed must not make load balancers avoid the whole node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use portolan_model::{Families, Family};
use tokio::time::Instant;

/// Time without a sign of life after which the loop is stuck. It gives one every ten seconds, except
/// during a reconciliation.
const STUCK: Duration = Duration::from_secs(60);

/// Waiting changes of one family.
#[derive(Debug, Clone, Copy, Default)]
struct Track {
    /// Arrival of the oldest change that is not served.
    oldest: Option<Instant>,
    /// Arrival of the newest change.
    newest: Option<Instant>,
    /// Time at which the last change was served.
    served: Option<SystemTime>,
    /// Start of the reconciliation that served it, which includes all changes before.
    served_from: Option<Instant>,
    /// Whether at least one reconciliation has failed and none has succeeded.
    never_served: bool,
}

/// Health of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyHealth {
    /// Whether no change waits for too long.
    pub healthy: bool,
    /// The present time while healthy, otherwise the time at which the last change was served.
    pub last_updated: Option<SystemTime>,
}

/// Health of the agent at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The time.
    pub now: SystemTime,
    /// Whether load balancers may send the node new connections.
    pub eligible: bool,
    /// Health by family.
    pub families: BTreeMap<Family, FamilyHealth>,
}

impl Report {
    /// Returns `true` if all families are healthy.
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.families.values().all(|family| family.healthy)
    }

    /// The oldest of the families' times.
    #[must_use]
    pub fn last_updated(&self) -> Option<SystemTime> {
        let times = self.families.values().map(|family| family.last_updated);
        times.min().flatten()
    }
}

/// Health shared by the source of changes, the sync loop, and the health endpoints.
#[derive(Debug, Clone)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// A change that waits for longer than this makes a family unhealthy.
    patience: Duration,
    eligible: bool,
    tracks: BTreeMap<Family, Track>,
    /// Last sign of life of the loop.
    beat: Option<Instant>,
}

impl Health {
    /// Health of these families; a change may wait for two sync periods.
    #[must_use]
    pub fn new(families: impl IntoIterator<Item = Family>, sync_period: Duration) -> Self {
        Self(Arc::new(Mutex::new(State {
            patience: sync_period * 2,
            eligible: false,
            beat: None,
            tracks: families
                .into_iter()
                .map(|family| (family, Track::default()))
                .collect(),
        })))
    }

    /// Records a change that arrived at a time; it may be served already.
    pub fn queued(&self, at: Instant) {
        self.with(|state| {
            let waits = |track: &&mut Track| track.served_from.is_none_or(|from| from < at);
            for track in state.tracks.values_mut().filter(waits) {
                track.oldest.get_or_insert(at);
                track.newest = Some(at);
            }
        });
    }

    /// Records a reconciliation that began at `start` and failed for the families in `broken`.
    pub fn served(&self, start: Instant, broken: Families, now: SystemTime) {
        self.with(|state| {
            for (family, track) in &mut state.tracks {
                if broken.contains(*family) {
                    // The kernel differs from the table, even if no change waits.
                    track.oldest.get_or_insert(start);
                    track.never_served = track.served.is_none();
                    continue;
                }
                track.never_served = false;
                track.served = Some(now);
                track.served_from = Some(start);
                // A change that arrived meanwhile may not be included; it waits since `start` at most.
                let later = track.newest.is_some_and(|newest| newest > start);
                track.oldest = later.then_some(start);
            }
        });
    }

    /// Records a sign of life of the loop.
    pub fn beat(&self, now: Instant) {
        self.with(|state| state.beat = Some(now));
    }

    /// Sets whether load balancers may send the node new connections.
    pub fn set_eligible(&self, eligible: bool) {
        self.with(|state| state.eligible = eligible);
    }

    /// Health at a time.
    #[must_use]
    pub fn report(&self, now: Instant, wall: SystemTime) -> Report {
        self.with(|state| {
            let silence = state.beat.map(|beat| now.duration_since(beat));
            let stuck = silence.is_some_and(|silence| silence >= STUCK);
            let family = |track: &Track| {
                let waits = track.oldest.map(|since| now.duration_since(since));
                let in_time = waits.is_none_or(|waits| waits < state.patience);
                let healthy = !stuck && in_time && !track.never_served;
                let last_updated = if healthy { Some(wall) } else { track.served };
                FamilyHealth {
                    healthy,
                    last_updated,
                }
            };
            Report {
                now: wall,
                eligible: state.eligible,
                families: state
                    .tracks
                    .iter()
                    .map(|(name, track)| (*name, family(track)))
                    .collect(),
            }
        })
    }

    /// Health at the present time.
    #[must_use]
    pub fn now(&self) -> Report {
        self.report(Instant::now(), SystemTime::now())
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(30);

    fn wall(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn healthy(health: &Health, now: Instant) -> [bool; 2] {
        let report = health.report(now, wall(9));
        Family::ALL.map(|family| report.families[&family].healthy)
    }

    #[tokio::test(start_paused = true)]
    async fn change_that_waits_for_two_sync_periods_is_too_old() {
        let (health, start) = (Health::new(Family::ALL, PERIOD), Instant::now());
        assert_eq!(healthy(&health, start + PERIOD * 9), [true, true]);
        health.queued(start);
        health.queued(start + PERIOD);
        assert_eq!(healthy(&health, start + PERIOD), [true, true]);
        assert_eq!(healthy(&health, start + PERIOD * 2), [false, false]);
        health.served(start + PERIOD * 2, Families::NONE, wall(5));
        assert_eq!(healthy(&health, start + PERIOD * 9), [true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn loop_without_a_sign_of_life_is_stuck() {
        let (health, start) = (Health::new(Family::ALL, PERIOD), Instant::now());
        health.beat(start);
        health.served(start, Families::NONE, wall(7));
        let just = Duration::from_millis(1);
        assert_eq!(healthy(&health, start + STUCK - just), [true, true]);
        let report = health.report(start + STUCK, wall(9));
        assert!(!report.healthy());
        assert_eq!(report.last_updated(), Some(wall(7)));
        health.beat(start + STUCK);
        assert_eq!(healthy(&health, start + STUCK), [true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_family_stays_queued_with_its_last_success() {
        let (health, start) = (Health::new(Family::ALL, PERIOD), Instant::now());
        health.served(start, Families::NONE, wall(1));
        let start = start + PERIOD;
        health.queued(start);
        health.served(start, [Family::V6].into_iter().collect(), wall(2));
        let report = health.report(start + PERIOD * 2, wall(9));
        let last = |family| report.families[&family].last_updated;
        assert_eq!(
            (last(Family::V4), last(Family::V6)),
            (Some(wall(9)), Some(wall(1)))
        );
        assert!(!report.healthy());
        assert_eq!(report.last_updated(), Some(wall(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn broken_family_becomes_unhealthy_without_a_change() {
        let (health, start) = (Health::new(Family::ALL, PERIOD), Instant::now());
        health.served(start, Families::NONE, wall(1));
        health.served(start + PERIOD, [Family::V6].into_iter().collect(), wall(2));
        assert_eq!(healthy(&health, start + PERIOD * 2), [true, true]);
        assert_eq!(healthy(&health, start + PERIOD * 3), [true, false]);
        health.served(start + PERIOD * 3, Families::NONE, wall(3));
        assert_eq!(healthy(&health, start + PERIOD * 9), [true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn family_that_was_never_programmed_is_unhealthy_at_once() {
        let (health, start) = (Health::new(Family::ALL, PERIOD), Instant::now());
        health.served(start, [Family::V6].into_iter().collect(), wall(1));
        assert_eq!(healthy(&health, start), [true, false]);
        health.served(start, Families::NONE, wall(2));
        assert_eq!(healthy(&health, start), [true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn change_served_before_it_is_recorded_does_not_wait() {
        let (health, start) = (Health::new(Family::ALL, PERIOD), Instant::now());
        health.served(start + PERIOD, Families::NONE, wall(1));
        health.queued(start);
        assert_eq!(healthy(&health, start + PERIOD * 9), [true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn change_during_a_reconciliation_is_not_served_by_it() {
        let (health, start) = (Health::new(Family::ALL, PERIOD), Instant::now());
        health.queued(start);
        health.queued(start + PERIOD);
        health.served(start, Families::NONE, wall(1));
        assert_eq!(healthy(&health, start + PERIOD * 2), [false, false]);
    }
}
