// SPDX-License-Identifier: Apache-2.0

//! Times at which probes start together.
//!
//! Waking up costs more than a TCP check itself. A thousand checks a second that start by twenties share that cost.

use std::time::Duration;

use portolan_model::check::Timers;
use tokio::time::Instant;

/// Length of a slot.
pub(super) const SLOT: Duration = Duration::from_millis(20);
/// The shortest interval whose probes start with a slot: a slot is at most a fiftieth of it.
const SHORTEST: Duration = Duration::from_secs(1);

/// Slots, one after the other from an origin on.
#[derive(Debug)]
pub(super) struct Slots {
    origin: Instant,
}

impl Slots {
    pub(super) fn new(origin: Instant) -> Self {
        Self { origin }
    }

    /// Returns when a probe that is due starts: with the next slot, or when it is due if its interval is short.
    pub(super) fn start(&self, timers: &Timers, due: Instant) -> Instant {
        if timers.interval.min(timers.fast_interval) < SHORTEST {
            return due;
        }
        let nanos = due.saturating_duration_since(self.origin).as_nanos() % SLOT.as_nanos();
        match u64::try_from(nanos).map(Duration::from_nanos) {
            Ok(Duration::ZERO) | Err(_) => due,
            Ok(passed) => due + (SLOT - passed),
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::check::{Check, Probe, TcpProbe};

    use super::*;

    #[test]
    fn a_probe_starts_with_the_next_slot() {
        let origin = Instant::now();
        let slots = Slots::new(origin);
        let timers = Check::new(Probe::Tcp(TcpProbe::default())).timers;
        for (due, start) in [
            (0, 0),
            (1, 20_000),
            (19_999, 20_000),
            (20_000, 20_000),
            (20_001, 40_000),
        ] {
            let at = |micros| origin + Duration::from_micros(micros);
            assert_eq!(slots.start(&timers, at(due)), at(start), "{due} us");
        }
    }

    #[test]
    fn short_intervals_are_kept() {
        let origin = Instant::now();
        let slots = Slots::new(origin);
        let mut timers = Check::new(Probe::Tcp(TcpProbe::default())).timers;
        timers.fast_interval = Duration::from_millis(999);
        let due = origin + Duration::from_millis(7);
        assert_eq!(slots.start(&timers, due), due);
    }
}
