// SPDX-License-Identifier: Apache-2.0

//! The rate at which probes start.

use std::time::Duration;

use tokio::time::Instant;

use super::slots::LENGTHS;

/// Starts that were not used for this time are lost. Probes of one slot start together at the allowed rate.
const SAVED: Duration = LENGTHS[0];

/// A rate.
#[derive(Debug)]
pub(super) struct Pace {
    gap: Duration,
    next: Instant,
}

impl Pace {
    pub(super) fn new(per_second: u32, now: Instant) -> Self {
        Self {
            gap: Duration::from_secs(1) / per_second.max(1),
            next: now,
        }
    }

    /// Sets another rate. The next start is no later than it would be by this rate alone.
    pub(super) fn set(&mut self, per_second: u32, now: Instant) {
        self.gap = Duration::from_secs(1) / per_second.max(1);
        self.next = self.next.min(now + self.gap);
    }

    /// Takes one start, or tells when there is one.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let earliest = now.checked_sub(SAVED).unwrap_or(now);
        let next = self.next.max(earliest);
        if next > now {
            return Err(next);
        }
        self.next = next + self.gap;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_apart_and_few_are_saved() {
        let start = Instant::now();
        let mut pace = Pace::new(1_000, start);
        assert_eq!(pace.take(start), Ok(()));
        assert_eq!(pace.take(start), Err(start + Duration::from_millis(1)));
        let later = start + Duration::from_secs(10);
        let taken = (0..1_000).take_while(|_| pace.take(later).is_ok()).count();
        assert_eq!(taken, 101);
    }

    #[test]
    fn another_rate_counts_from_now_on() {
        let start = Instant::now();
        let mut pace = Pace::new(1, start);
        assert_eq!(pace.take(start), Ok(()));
        assert_eq!(pace.take(start), Err(start + Duration::from_secs(1)));
        pace.set(10, start);
        assert_eq!(pace.take(start), Err(start + Duration::from_millis(100)));
        let next = start + Duration::from_millis(100);
        assert_eq!(pace.take(next), Ok(()));
        pace.set(1, next);
        assert_eq!(pace.take(next), Err(start + Duration::from_millis(200)));
        let next = start + Duration::from_millis(200);
        assert_eq!(pace.take(next), Ok(()));
        assert_eq!(pace.take(next), Err(next + Duration::from_secs(1)));
    }
}
