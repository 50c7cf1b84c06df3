// SPDX-License-Identifier: Apache-2.0

//! The delay between a change and its publication.

use std::time::{Duration, Instant};

/// Leading-edge debounce: an isolated change is published at once, and frequent changes are
/// published in batches. The caller supplies the clock and does the waiting.
#[derive(Debug, Clone)]
pub struct Debounce {
    last_flush: Option<Instant>,
    first_pending: Option<Instant>,
    due: Option<Instant>,
    window: Duration,
}

impl Default for Debounce {
    fn default() -> Self {
        Self {
            last_flush: None,
            first_pending: None,
            due: None,
            window: Self::WINDOW,
        }
    }
}

impl Debounce {
    /// The time without a batch after which a change is isolated.
    pub const IDLE: Duration = Duration::from_millis(100);

    /// The shortest delay of a change that is not isolated. With faster revisions, the cursors of
    /// the agents would spread, and a transition encoded for one agent could not be shared with the
    /// next.
    pub const WINDOW: Duration = Duration::from_millis(10);

    /// The longest delay of a change, for any number of agents.
    pub const MAX_WINDOW: Duration = Duration::from_millis(100);

    /// Records a change at `now`, and returns the time at which it must be published, which may be
    /// `now`. A removal is `urgent`: connections go to the removed endpoint until it is published.
    /// An urgent change waits at most half of the current delay or [`WINDOW`](Self::WINDOW),
    /// whichever is longer: if half of the delay is longer, the previous revision is still on its
    /// way to most agents.
    pub fn changed(&mut self, now: Instant, urgent: bool) -> Instant {
        let first = *self.first_pending.get_or_insert(now);
        let is_isolated = self
            .last_flush
            .is_none_or(|last| first.saturating_duration_since(last) >= Self::IDLE);
        let mut due = match is_isolated {
            true => first,
            false => first + self.window,
        };
        if urgent {
            due = due.min(now + Self::WINDOW.max(self.window / 2));
        }
        let due = self.due.map_or(due, |earlier| due.min(earlier));
        self.due = Some(due);
        due
    }

    /// Records that all changes were published at `now`. `fan_out` is the time until all agents
    /// have such a batch: the next batch waits for it, within bounds, so that work does not pile
    /// up.
    pub fn flushed(&mut self, now: Instant, fan_out: Duration) {
        self.last_flush = Some(now);
        self.first_pending = None;
        self.due = None;
        self.window = fan_out.clamp(Self::WINDOW, Self::MAX_WINDOW);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_isolated_change_waits_for_nothing() {
        let start = Instant::now();
        let mut debounce = Debounce::default();
        assert_eq!(debounce.changed(start, false), start);
        debounce.flushed(start, 50 * MS);
        let later = start + Debounce::IDLE;
        assert_eq!(debounce.changed(later, false), later);
    }

    #[test]
    fn changes_of_one_window_are_published_together() {
        let start = Instant::now();
        let mut debounce = Debounce::default();
        debounce.flushed(start, MS);
        let due = debounce.changed(start + MS, false);
        assert_eq!(due, start + MS + Debounce::WINDOW);
        assert_eq!(debounce.changed(start + 5 * MS, true), due);
        debounce.flushed(due, MS);
        assert_eq!(debounce.changed(due, false), due + Debounce::WINDOW);
    }

    #[test]
    fn a_change_waits_as_long_as_the_agents_need_and_what_is_urgent_half_of_it() {
        let start = Instant::now();
        for (fan_out, window) in [(MS, 10 * MS), (40 * MS, 40 * MS), (900 * MS, 100 * MS)] {
            let mut debounce = Debounce::default();
            debounce.flushed(start, fan_out);
            assert_eq!(debounce.changed(start + MS, false), start + MS + window);
            let now = start + 3 * MS;
            let urgent = now + Debounce::WINDOW.max(window / 2);
            let urgent = urgent.min(start + MS + window);
            assert_eq!(debounce.changed(now, true), urgent);
            // A later change does not extend the delay.
            assert_eq!(debounce.changed(start + 5 * MS, false), urgent);
        }
    }

    #[test]
    fn under_load_there_is_one_batch_per_window() {
        let start = Instant::now();
        let mut debounce = Debounce::default();
        let mut flushes = 0;
        let mut due = None;
        for tick in 0..1000 {
            let now = start + tick * MS;
            due = Some(debounce.changed(now, tick % 3 == 0));
            if due.is_some_and(|due| due <= now) {
                debounce.flushed(now, 50 * MS);
                flushes += 1;
            }
        }
        assert!(due.is_some());
        // Half a window, since some changes are urgent.
        assert!((36..=40).contains(&flushes), "{flushes}");
    }
}
