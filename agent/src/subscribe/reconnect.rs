//! When and where to connect again.
//!
//! Pure: time comes out as durations, chance goes in as a seed. A controller that is gone is one
//! event for all agents of a cluster: they must neither come back together nor all to one place.

use std::time::Duration;

/// The shortest wait after a failure.
const BASE: Duration = Duration::from_millis(200);

/// The longest wait after a failure.
const CAP: Duration = Duration::from_secs(10);

/// The longest spread that a Goaway may ask for.
const MAX_SPREAD: Duration = Duration::from_secs(300);

/// How an attempt or a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// There was nobody to talk to.
    Unreachable,
    /// The stream broke or was refused; whether a table was committed on it.
    Broken { committed: bool },
    /// The table was not what the controller sent, or another agent uses our name: coming back
    /// quickly would only repeat it.
    Suspect,
    /// The controller is about to stop.
    Goaway { spread: Duration },
}

/// Remembers failures, and which endpoint's turn it is.
#[derive(Debug)]
pub(super) struct Reconnect {
    endpoints: usize,
    current: usize,
    /// Endpoints in a row that could not be reached.
    unreachable: usize,
    last_wait: Duration,
    random: Random,
}

impl Reconnect {
    /// Begins at a random one of so many endpoints.
    pub(super) fn new(endpoints: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        let current = random.below(endpoints as u64);
        Self {
            endpoints: endpoints.max(1),
            current: usize::try_from(current).unwrap_or(0),
            unreachable: 0,
            last_wait: BASE,
            random,
        }
    }

    /// The index of the endpoint to connect to.
    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// Whether there is another endpoint to go to.
    pub(super) fn has_others(&self) -> bool {
        self.endpoints > 1
    }

    /// Chooses the endpoint to connect to next, and how long to wait before.
    pub(super) fn after(&mut self, end: End) -> Duration {
        let unreachable = match end {
            End::Unreachable => self.unreachable + 1,
            _ => 0,
        };
        self.unreachable = unreachable % self.endpoints;
        match end {
            // The others may well be there: no wait before all were tried.
            End::Unreachable => {
                self.advance();
                if self.unreachable > 0 {
                    return Duration::ZERO;
                }
                self.back_off()
            }
            // It was good, and the table is resumed there at the least cost.
            End::Broken { committed: true } => {
                self.last_wait = BASE;
                self.back_off()
            }
            End::Broken { committed: false } => {
                self.advance();
                self.back_off()
            }
            End::Suspect => self.back_off(),
            End::Goaway { spread } => {
                self.advance();
                self.last_wait = BASE;
                self.random.between(Duration::ZERO, spread.min(MAX_SPREAD))
            }
        }
    }

    fn advance(&mut self) {
        self.current = (self.current + 1) % self.endpoints;
    }

    /// Decorrelated jitter: from the shortest wait to three times the last one.
    fn back_off(&mut self) -> Duration {
        self.last_wait = self.random.between(BASE, self.last_wait * 3).min(CAP);
        self.last_wait
    }
}

/// `SplitMix64`: good enough to spread agents.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 up to but without `bound`; 0 if that is 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = high.saturating_sub(low).as_nanos();
        low + Duration::from_nanos(self.below(u64::try_from(span).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn waits_grow_with_jitter_up_to_a_cap() {
        let mut longest = Duration::ZERO;
        for seed in 0..100 {
            let mut reconnect = Reconnect::new(1, seed);
            let mut last = BASE;
            for _ in 0..50 {
                let wait = reconnect.after(End::Unreachable);
                assert!(wait >= BASE && wait <= (last * 3).min(CAP), "{wait:?}");
                last = wait;
                longest = longest.max(wait);
            }
        }
        assert_eq!(longest, CAP);
    }

    #[test]
    fn a_good_stream_resets_the_wait_and_a_suspect_one_does_not() {
        let mut reconnect = Reconnect::new(1, 3);
        for _ in 0..1000 {
            reconnect.after(End::Suspect);
            if reconnect.last_wait == CAP {
                break;
            }
        }
        assert_eq!(reconnect.last_wait, CAP);
        let wait = reconnect.after(End::Broken { committed: true });
        assert!(wait <= BASE * 3);
    }

    #[test]
    fn all_endpoints_are_tried_before_waiting() {
        let mut reconnect = Reconnect::new(3, 7);
        let mut tried = BTreeSet::from([reconnect.current()]);
        for _ in 0..2 {
            assert_eq!(reconnect.after(End::Unreachable), Duration::ZERO);
            tried.insert(reconnect.current());
        }
        assert_eq!(tried, BTreeSet::from([0, 1, 2]));
        assert!(reconnect.after(End::Unreachable) >= BASE);
    }

    #[test]
    fn a_broken_stream_is_resumed_where_it_was() {
        let mut reconnect = Reconnect::new(2, 7);
        let first = reconnect.current();
        reconnect.after(End::Broken { committed: true });
        assert_eq!(reconnect.current(), first);
        reconnect.after(End::Broken { committed: false });
        assert_ne!(reconnect.current(), first);
    }

    #[test]
    fn agents_begin_and_come_back_spread_evenly() {
        let spread = Duration::from_secs(10);
        let mut starts = [0_u32; 4];
        let mut sum = Duration::ZERO;
        for seed in 0..1000 {
            let mut reconnect = Reconnect::new(4, seed);
            starts[reconnect.current()] += 1;
            let wait = reconnect.after(End::Goaway { spread });
            assert!(wait < spread);
            sum += wait;
        }
        assert!(starts.iter().all(|count| (200..300).contains(count)));
        assert!((4_500..5_500).contains(&(sum / 1000).as_millis()));
        let forever = Reconnect::new(1, 1).after(End::Goaway {
            spread: Duration::MAX,
        });
        assert!(forever <= MAX_SPREAD);
    }
}
