//! When to publish what has changed.

use std::time::{Duration, Instant};

/// Leading-edge debounce: an isolated change waits for nothing; in a stream of changes, those of a
/// short time are published together. No clock of its own, and it never waits itself.
#[derive(Debug, Clone, Default)]
pub struct Debounce {
    last_flush: Option<Instant>,
    first_pending: Option<Instant>,
}

impl Debounce {
    /// After so long without a batch, a change is isolated.
    pub const IDLE: Duration = Duration::from_millis(100);

    /// How long a change waits at most for others, and so at most one batch in this time. Versions
    /// must not come faster, or the cursors of the agents spread and what one of them is sent is
    /// of no use to the next.
    pub const WINDOW: Duration = Duration::from_millis(10);

    /// Notes that something changed, and tells when it must be published: now, or at a later time
    /// of at most [`Self::WINDOW`] from the first change that waits.
    pub fn changed(&mut self, now: Instant) -> Instant {
        let first = *self.first_pending.get_or_insert(now);
        match self.last_flush {
            Some(last) if first.saturating_duration_since(last) < Self::IDLE => {
                first + Self::WINDOW
            }
            _ => first,
        }
    }

    /// Notes that everything was published.
    pub fn flushed(&mut self, now: Instant) {
        self.last_flush = Some(now);
        self.first_pending = None;
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
        assert_eq!(debounce.changed(start), start);
        debounce.flushed(start);
        let later = start + Debounce::IDLE;
        assert_eq!(debounce.changed(later), later);
    }

    #[test]
    fn changes_of_one_window_are_published_together() {
        let start = Instant::now();
        let mut debounce = Debounce::default();
        debounce.flushed(start);
        let due = debounce.changed(start + MS);
        assert_eq!(due, start + MS + Debounce::WINDOW);
        assert_eq!(debounce.changed(start + 5 * MS), due);
        debounce.flushed(due);
        assert_eq!(debounce.changed(due), due + Debounce::WINDOW);
    }

    #[test]
    fn under_load_there_is_one_batch_per_window() {
        let start = Instant::now();
        let mut debounce = Debounce::default();
        let mut flushes = 0;
        let mut due = None;
        for tick in 0..1000 {
            let now = start + tick * MS;
            due = Some(debounce.changed(now));
            if due.is_some_and(|due| due <= now) {
                debounce.flushed(now);
                flushes += 1;
            }
        }
        assert!(due.is_some());
        assert!((80..=100).contains(&flushes), "{flushes}");
    }
}
