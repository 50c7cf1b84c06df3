// SPDX-License-Identifier: Apache-2.0

//! Times at which probes start together.
//!
//! Waking up costs more than a TCP check itself. A thousand checks a second that start by hundreds share that cost.

use std::time::Duration;

use tokio::time::Instant;

/// Lengths of slots, the longest first. Each is a multiple of the next, so that long slots begin together with short ones.
pub(super) const LENGTHS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(20)];
/// A slot is at most this part of the wait for it.
const PART: u32 = 40;

/// Slots, one after the other from an origin on.
#[derive(Debug)]
pub(super) struct Slots {
    origin: Instant,
}

impl Slots {
    pub(super) fn new(origin: Instant) -> Self {
        Self { origin }
    }

    /// Returns when a probe starts that is due after a delay: with the next slot, or just then if the delay is short.
    pub(super) fn start(&self, now: Instant, delay: Duration) -> Instant {
        let due = now + delay;
        let Some(length) = LENGTHS.iter().find(|length| **length * PART <= delay) else {
            return due;
        };
        let nanos = due.saturating_duration_since(self.origin).as_nanos() % length.as_nanos();
        match u64::try_from(nanos).map(Duration::from_nanos) {
            Ok(Duration::ZERO) | Err(_) => due,
            Ok(passed) => due + (*length - passed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_starts_with_the_next_slot() {
        let origin = Instant::now();
        let slots = Slots::new(origin);
        let millis = Duration::from_millis;
        for (delay, start) in [
            (4_000, 4_000),
            (4_001, 4_100),
            (4_100, 4_100),
            (60_001, 60_100),
            // Short slots.
            (3_999, 4_000),
            (3_901, 3_920),
            (800, 800),
            (801, 820),
            // None.
            (799, 799),
            (7, 7),
        ] {
            let start = origin + millis(start);
            assert_eq!(slots.start(origin, millis(delay)), start, "{delay} ms");
        }
    }

    #[test]
    fn slots_are_counted_from_their_origin() {
        let origin = Instant::now();
        let now = origin + Duration::from_micros(33_000);
        let start = Slots::new(origin).start(now, Duration::from_secs(1));
        assert_eq!(start, origin + Duration::from_millis(1_040));
    }
}
