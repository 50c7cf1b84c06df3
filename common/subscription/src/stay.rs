// SPDX-License-Identifier: Apache-2.0

//! The duration of a stream, and its end.

use std::time::{Duration, Instant};

use crate::{Departure, End};

/// A stream that broke sooner gives no reason to reconnect quickly.
const LASTED: Duration = Duration::from_secs(10);

/// A stay with a controller. Time is an argument.
#[derive(Debug, Clone, Copy)]
pub struct Stay {
    since: Instant,
    departure: Departure,
    leave_at: Option<Instant>,
}

impl Stay {
    /// Begins a stay now.
    #[must_use]
    pub fn new(departure: Departure, now: Instant) -> Self {
        Self {
            since: now,
            departure,
            leave_at: None,
        }
    }

    /// The controller is about to stop, and its agents leave within `spread`. It serves each until
    /// then. Returns the time that is left.
    pub fn goaway(&mut self, spread: Duration, now: Instant) -> Duration {
        let leave_at = *self
            .leave_at
            .get_or_insert(now + self.departure.after(spread));
        leave_at.saturating_duration_since(now)
    }

    /// Time to leave, if the controller is about to stop.
    #[must_use]
    pub fn leave_at(&self) -> Option<Instant> {
        self.leave_at
    }

    /// The end of a stream that has brought a table.
    #[must_use]
    pub fn broken(&self, now: Instant) -> End {
        match self.leave_at {
            Some(_) => End::Goaway,
            None => End::Broken {
                lasted: now.saturating_duration_since(self.since) >= LASTED,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reconnect;

    #[test]
    fn a_stay_ends_within_the_spread_of_the_first_goaway() {
        let (start, spread) = (Instant::now(), Duration::from_secs(10));
        let departure = Reconnect::<u8>::new(7).departure();
        let mut stay = Stay::new(departure, start);
        assert_eq!(stay.leave_at(), None);
        let left = stay.goaway(spread, start);
        assert!(left < spread);
        assert_eq!(stay.leave_at(), Some(start + left));
        let later = start + Duration::from_millis(1);
        stay.goaway(spread * 100, later);
        assert_eq!(stay.leave_at(), Some(start + left));
        assert_eq!(stay.broken(later), End::Goaway);
    }

    #[test]
    fn a_stream_lasted_that_was_there_for_a_while() {
        let start = Instant::now();
        let stay = Stay::new(Reconnect::<u8>::new(7).departure(), start);
        for (after, lasted) in [(LASTED, true), (LASTED / 2, false)] {
            assert_eq!(stay.broken(start + after), End::Broken { lasted });
        }
    }
}
