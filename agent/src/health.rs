//! Whether the agent keeps up: per family, whether a change of the table waits for too long.
//!
//! A loop that shows no sign of life for a minute is stuck, also when no change waits. A family that could
//! not be programmed waits too, and is unhealthy at once if it never could.
//!
//! A change that was programmed counts as served even if the kernel refused single objects of it:
//! one Service that cannot be programmed must not make load balancers avoid the whole node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use portolan_model::{Families, Family};
use tokio::time::Instant;

/// A loop that was not heard of for so long is stuck. It beats every ten seconds, but for the time
/// that one reconciliation takes.
const STUCK: Duration = Duration::from_secs(60);

/// What is known of one family.
#[derive(Debug, Clone, Copy, Default)]
struct Track {
    /// When the oldest change arrived that has not been served.
    oldest: Option<Instant>,
    /// When the newest change arrived.
    newest: Option<Instant>,
    /// When the last change was served.
    served: Option<SystemTime>,
    /// When the reconciliation began that served it: what had arrived by then is in it.
    served_from: Option<Instant>,
    /// Whether no reconciliation has worked so far, and at least one has failed.
    never_served: bool,
}

/// How one family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyHealth {
    /// Whether no change waits for too long.
    pub healthy: bool,
    /// The time of the question while healthy, else when the last change was served.
    pub last_updated: Option<SystemTime>,
}

/// How the agent is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// When that was.
    pub now: SystemTime,
    /// Whether load balancers may send the node new connections.
    pub eligible: bool,
    /// By family.
    pub families: BTreeMap<Family, FamilyHealth>,
}

impl Report {
    /// Whether all families are healthy.
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

/// Shared between what brings changes, what serves them, and whoever asks.
#[derive(Debug, Clone)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// A change that waits for longer than this makes a family unhealthy.
    patience: Duration,
    eligible: bool,
    tracks: BTreeMap<Family, Track>,
    /// When the loop was last heard of.
    beat: Option<Instant>,
}

impl Health {
    /// Of these families; a change may wait for two sync periods.
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

    /// A change has arrived, `at` that time; it may have been served by now.
    pub fn queued(&self, at: Instant) {
        self.with(|state| {
            let waits = |track: &&mut Track| track.served_from.is_none_or(|from| from < at);
            for track in state.tracks.values_mut().filter(waits) {
                track.oldest.get_or_insert(at);
                track.newest = Some(at);
            }
        });
    }

    /// A reconciliation that began at `start` has ended; it failed as a whole for `broken`.
    pub fn served(&self, start: Instant, broken: Families, now: SystemTime) {
        self.with(|state| {
            for (family, track) in &mut state.tracks {
                if broken.contains(*family) {
                    // The kernel is not as it should be, also when no change waits.
                    track.oldest.get_or_insert(start);
                    track.never_served = track.served.is_none();
                    continue;
                }
                track.never_served = false;
                track.served = Some(now);
                track.served_from = Some(start);
                // What arrived meanwhile may not be in it, and waits since then at most.
                let later = track.newest.is_some_and(|newest| newest > start);
                track.oldest = later.then_some(start);
            }
        });
    }

    /// The loop that serves changes is not stuck.
    pub fn beat(&self, now: Instant) {
        self.with(|state| state.beat = Some(now));
    }

    /// Whether load balancers may send the node new connections, as the table says.
    pub fn set_eligible(&self, eligible: bool) {
        self.with(|state| state.eligible = eligible);
    }

    /// How the agent is now.
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

    /// How the agent is, by the clocks.
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
    async fn a_change_that_waits_for_two_sync_periods_is_too_old() {
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
    async fn a_loop_that_is_not_heard_of_is_stuck() {
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
    async fn a_family_that_failed_stays_queued_and_says_when_it_was_well() {
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
    async fn a_kernel_that_breaks_without_a_change_is_too_old_in_time() {
        let (health, start) = (Health::new(Family::ALL, PERIOD), Instant::now());
        health.served(start, Families::NONE, wall(1));
        health.served(start + PERIOD, [Family::V6].into_iter().collect(), wall(2));
        assert_eq!(healthy(&health, start + PERIOD * 2), [true, true]);
        assert_eq!(healthy(&health, start + PERIOD * 3), [true, false]);
        health.served(start + PERIOD * 3, Families::NONE, wall(3));
        assert_eq!(healthy(&health, start + PERIOD * 9), [true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_family_that_could_never_be_programmed_is_unhealthy_at_once() {
        let (health, start) = (Health::new(Family::ALL, PERIOD), Instant::now());
        health.served(start, [Family::V6].into_iter().collect(), wall(1));
        assert_eq!(healthy(&health, start), [true, false]);
        health.served(start, Families::NONE, wall(2));
        assert_eq!(healthy(&health, start), [true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_served_before_it_was_noted_does_not_wait() {
        let (health, start) = (Health::new(Family::ALL, PERIOD), Instant::now());
        health.served(start + PERIOD, Families::NONE, wall(1));
        health.queued(start);
        assert_eq!(healthy(&health, start + PERIOD * 9), [true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_arrives_during_a_reconciliation_is_not_served_by_it() {
        let (health, start) = (Health::new(Family::ALL, PERIOD), Instant::now());
        health.queued(start);
        health.queued(start + PERIOD);
        health.served(start, Families::NONE, wall(1));
        assert_eq!(healthy(&health, start + PERIOD * 2), [false, false]);
    }
}
