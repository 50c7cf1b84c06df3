// SPDX-License-Identifier: Apache-2.0

//! Time and target of the next connection attempt.
//!
//! Pure: time is returned as durations, and randomness comes from a seed. The loss of a controller hits
//! all agents of a cluster at once: they must neither reconnect together nor all to one controller.

use std::collections::VecDeque;
use std::time::Duration;

/// The shortest wait after a failure.
const BASE: Duration = Duration::from_millis(200);

/// The longest wait after a failure.
const CAP: Duration = Duration::from_secs(10);

/// The longest spread that a Goaway may ask for.
const MAX_SPREAD: Duration = Duration::from_secs(300);

/// The end of an attempt or of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// There was no connection.
    Unreachable,
    /// The stream broke or was refused before there was a table on it.
    Refused,
    /// The stream broke after it had brought a table.
    Broken {
        /// Whether the stream had lived for long.
        lasted: bool,
    },
    /// The controller knows no such node; this one may have joined just now.
    UnknownNode,
    /// The controller is of another cluster than the node.
    WrongCluster,
    /// The controller's sources are older than the table in force.
    Behind,
    /// The table did not match the controller's hashes, or another agent uses the same name. A
    /// quick reconnect would repeat it.
    Suspect,
    /// The controller is about to stop.
    Goaway,
}

/// Keeps the back-off and the next target. All targets are tried once in a round, in random order, so
/// that agents spread over controllers and find each that is there.
#[derive(Debug)]
pub struct Reconnect<T> {
    round: VecDeque<T>,
    /// The target that was left last.
    left: Option<T>,
    last_wait: Duration,
    random: Random,
}

impl<T: PartialEq> Reconnect<T> {
    /// Creates the state before the first round.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            round: VecDeque::new(),
            left: None,
            last_wait: BASE,
            random: Random(seed),
        }
    }

    /// The target to connect to; `None` if a round must be begun.
    #[must_use]
    pub fn current(&self) -> Option<&T> {
        self.round.front()
    }

    /// Begins a round over these targets. The one that was left last is not the first, if there are
    /// others.
    pub fn begin_round(&mut self, targets: Vec<T>) {
        let size = targets.len();
        self.round = targets.into();
        for last in (1..size).rev() {
            let other = self.random.below(last as u64 + 1);
            self.round
                .swap(last, usize::try_from(other).unwrap_or(last));
        }
        if self.left.is_some() && self.round.front() == self.left.as_ref() {
            self.round.rotate_left(1.min(size));
        }
    }

    /// Time of the agent's leave within the time of a Goaway, over which agents spread.
    pub fn departure(&mut self) -> Departure {
        Departure(self.random.next())
    }

    /// Chooses the next target, and returns the pause before the attempt.
    pub fn after(&mut self, end: End) -> Duration {
        match end {
            // The others may be there: no pause before all were tried.
            End::Unreachable => {
                self.leave();
                if self.round.is_empty() {
                    self.back_off()
                } else {
                    Duration::ZERO
                }
            }
            // The same controller resumes the table at the least cost.
            End::Broken { lasted } => {
                if lasted {
                    self.last_wait = BASE;
                }
                self.back_off()
            }
            End::Refused | End::WrongCluster | End::Behind | End::Suspect => {
                self.leave();
                self.back_off()
            }
            // The controller waits for the node too, so that there is no hurry.
            End::UnknownNode => {
                self.leave();
                self.last_wait = BASE;
                self.back_off()
            }
            End::Goaway => {
                self.leave();
                self.last_wait = BASE;
                if self.round.is_empty() {
                    self.back_off()
                } else {
                    Duration::ZERO
                }
            }
        }
    }

    fn leave(&mut self) {
        if let Some(left) = self.round.pop_front() {
            self.left = Some(left);
        }
    }

    /// Decorrelated jitter: from the shortest wait to three times the last one.
    fn back_off(&mut self) -> Duration {
        self.last_wait = self.random.between(BASE, self.last_wait * 3).min(CAP);
        self.last_wait
    }
}

/// Time at which an agent leaves a stopping controller: a share of the time that all agents have.
#[derive(Debug, Clone, Copy)]
pub struct Departure(u64);

impl Departure {
    /// Time that the agent stays.
    #[must_use]
    pub fn after(self, spread: Duration) -> Duration {
        let nanos = (spread.min(MAX_SPREAD).as_nanos() * u128::from(self.0)) >> 64;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The `SplitMix64` generator.
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

    /// A number from 0 up to, but excluding, `bound`; 0 if `bound` is 0.
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

    /// In a round over so many.
    fn round(targets: usize, seed: u64) -> Reconnect<usize> {
        let mut reconnect = Reconnect::new(seed);
        reconnect.begin_round((0..targets).collect());
        reconnect
    }

    fn current(reconnect: &Reconnect<usize>) -> usize {
        *reconnect.current().unwrap()
    }

    #[test]
    fn waits_grow_with_jitter_up_to_a_cap() {
        let mut longest = Duration::ZERO;
        for seed in 0..100 {
            let mut reconnect = Reconnect::new(seed);
            let mut last = BASE;
            for _ in 0..50 {
                reconnect.begin_round(vec![1]);
                let wait = reconnect.after(End::Unreachable);
                assert!(wait >= BASE && wait <= (last * 3).min(CAP), "{wait:?}");
                last = wait;
                longest = longest.max(wait);
            }
        }
        assert_eq!(longest, CAP);
    }

    #[test]
    fn waits_grow_without_targets_too() {
        let mut reconnect: Reconnect<usize> = Reconnect::new(1);
        reconnect.begin_round(vec![]);
        assert_eq!(reconnect.current(), None);
        assert!(reconnect.after(End::Unreachable) >= BASE);
    }

    #[test]
    fn a_stream_that_lasted_resets_the_wait_and_no_other_does() {
        let mut reconnect = round(1, 3);
        for end in [End::Suspect, End::Broken { lasted: false }] {
            for _ in 0..1000 {
                reconnect.begin_round(vec![0]);
                reconnect.after(end);
                if reconnect.last_wait == CAP {
                    break;
                }
            }
            assert_eq!(reconnect.last_wait, CAP, "{end:?}");
            let wait = reconnect.after(End::Broken { lasted: true });
            assert!(wait <= BASE * 3);
        }
    }

    #[test]
    fn all_are_tried_before_waiting() {
        let mut reconnect = round(3, 7);
        let mut tried = BTreeSet::from([current(&reconnect)]);
        for _ in 0..2 {
            assert_eq!(reconnect.after(End::Unreachable), Duration::ZERO);
            tried.insert(current(&reconnect));
        }
        assert_eq!(tried, BTreeSet::from([0, 1, 2]));
        assert!(reconnect.after(End::Unreachable) >= BASE);
        assert_eq!(reconnect.current(), None);
    }

    #[test]
    fn a_broken_stream_is_resumed_where_it_was() {
        let mut reconnect = round(2, 7);
        let first = current(&reconnect);
        reconnect.after(End::Broken { lasted: false });
        assert_eq!(current(&reconnect), first);
        reconnect.after(End::Refused);
        assert_ne!(current(&reconnect), first);
    }

    #[test]
    fn a_controller_whose_table_is_suspect_is_left() {
        let mut reconnect = round(2, 7);
        let first = current(&reconnect);
        assert!(reconnect.after(End::Suspect) >= BASE);
        assert_ne!(current(&reconnect), first);
    }

    #[test]
    fn a_round_does_not_begin_with_the_one_that_was_left() {
        for seed in 0..100 {
            let mut reconnect = round(1, seed);
            reconnect.after(End::Behind);
            reconnect.begin_round(vec![0, 1, 2]);
            assert_ne!(current(&reconnect), 0);
            reconnect.begin_round(vec![0]);
            assert_eq!(current(&reconnect), 0);
        }
    }

    #[test]
    fn agents_begin_and_leave_spread_evenly() {
        let spread = Duration::from_secs(10);
        let mut starts = [0_u32; 4];
        let mut sum = Duration::ZERO;
        for seed in 0..1000 {
            let mut reconnect = round(4, seed);
            starts[current(&reconnect)] += 1;
            let stay = reconnect.departure().after(spread);
            assert!(stay < spread);
            assert_eq!(reconnect.after(End::Goaway), Duration::ZERO);
            sum += stay;
        }
        assert!(starts.iter().all(|count| (200..300).contains(count)));
        assert!((4_500..5_500).contains(&(sum / 1000).as_millis()));
        let mut only = round(1, 1);
        assert!(only.departure().after(Duration::MAX) <= MAX_SPREAD);
        assert!(only.after(End::Goaway) >= BASE, "there is no other one");
    }
}
