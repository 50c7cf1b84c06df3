// SPDX-License-Identifier: Apache-2.0

//! The pace of acknowledgements. A controller closes connections on which agents say too much, so that honest ones must
//! stay below that whatever the rate of changes.
//!
//! Pure: time is an argument.

use std::time::{Duration, Instant};

use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;

/// Shortest time between two acknowledgements of one kind.
const PAUSE: Duration = Duration::from_millis(50);

/// Acknowledgements of one stream that are to be sent. Both kinds are cumulative, so that only the newest of each is
/// kept. The first one after a pause goes at once.
#[derive(Debug, Default)]
pub struct Acknowledgements {
    received: Paced<v1::Received>,
    programmed: Paced<v1::Programmed>,
}

/// Messages of one kind.
#[derive(Debug, Default)]
struct Paced<T> {
    message: Option<T>,
    /// The end of the pause after the last message; `None` once it is known to be over.
    from: Option<Instant>,
}

impl Acknowledgements {
    /// Queues a `Received` in place of an earlier one.
    pub fn received(&mut self, message: v1::Received, now: Instant) {
        self.received.put(message, now);
    }

    /// Queues a `Programmed` in place of an earlier one.
    pub fn programmed(&mut self, message: v1::Programmed, now: Instant) {
        self.programmed.put(message, now);
    }

    /// Returns `true` if [`Self::next_message`] has a message.
    #[must_use]
    pub fn has_message(&self) -> bool {
        self.received.is_ready() || self.programmed.is_ready()
    }

    /// Time at which [`Self::resume`] is to be called; `None` if no message waits for it.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let due = [self.received.due(), self.programmed.due()];
        due.into_iter().flatten().min()
    }

    /// Ends the pauses that are over.
    pub fn resume(&mut self, now: Instant) {
        self.received.resume(now);
        self.programmed.resume(now);
    }

    /// The next message; `None` if there is none for now. `Received` states what the agent refused of the table that
    /// `Programmed` is about. So it waits for no pause beside it, and comes first, or last if the agent `is_holding`
    /// deletions: older controllers end the hold at `Programmed`.
    pub fn next_message(&mut self, is_holding: bool, now: Instant) -> Option<Message> {
        if self.programmed.is_ready() && self.received.message.is_some() {
            self.received.from = None;
        }
        let received = |all: &mut Self| all.received.take(now).map(Message::Received);
        let programmed = |all: &mut Self| all.programmed.take(now).map(Message::Programmed);
        match is_holding {
            false => received(self).or_else(|| programmed(self)),
            true => programmed(self).or_else(|| received(self)),
        }
    }
}

impl<T> Paced<T> {
    fn put(&mut self, message: T, now: Instant) {
        self.resume(now);
        self.message = Some(message);
    }

    fn is_ready(&self) -> bool {
        self.message.is_some() && self.from.is_none()
    }

    fn due(&self) -> Option<Instant> {
        self.from.filter(|_| self.message.is_some())
    }

    fn resume(&mut self, now: Instant) {
        self.from = self.from.filter(|from| *from > now);
    }

    fn take(&mut self, now: Instant) -> Option<T> {
        if !self.is_ready() {
            return None;
        }
        self.from = Some(now + PAUSE);
        self.message.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(revision: u64) -> v1::Received {
        v1::Received {
            revision,
            ..v1::Received::default()
        }
    }

    fn programmed(revision: u64) -> v1::Programmed {
        v1::Programmed {
            revision,
            ..v1::Programmed::default()
        }
    }

    /// The messages that are sent now, with their revisions.
    fn sent(all: &mut Acknowledgements, is_holding: bool, now: Instant) -> Vec<(char, u64)> {
        let next = || match all.next_message(is_holding, now)? {
            Message::Received(received) => Some(('r', received.revision)),
            Message::Programmed(programmed) => Some(('p', programmed.revision)),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_lone_change_is_acknowledged_at_once() {
        let begin = Instant::now();
        let mut all = Acknowledgements::default();
        for (revision, now) in [(1, begin), (2, begin + PAUSE), (3, begin + 5 * PAUSE)] {
            all.received(received(revision), now);
            assert!(all.has_message());
            assert_eq!(sent(&mut all, false, now), [('r', revision)]);
            all.programmed(programmed(revision), now);
            assert_eq!(sent(&mut all, false, now), [('p', revision)]);
            assert_eq!((all.has_message(), all.due()), (false, None));
        }
    }

    #[test]
    fn later_changes_share_an_acknowledgement_after_the_pause() {
        let begin = Instant::now();
        let mut all = Acknowledgements::default();
        all.received(received(1), begin);
        assert_eq!(sent(&mut all, false, begin), [('r', 1)]);
        for revision in 2..4 {
            let now = begin + PAUSE / 5;
            all.received(received(revision), now);
            assert!(!all.has_message() && sent(&mut all, false, now).is_empty());
            assert_eq!(all.due(), Some(begin + PAUSE));
        }
        all.resume(begin + PAUSE / 2);
        assert!(!all.has_message());
        all.resume(begin + PAUSE);
        assert!(all.has_message());
        assert_eq!(all.due(), None);
        assert_eq!(sent(&mut all, false, begin + PAUSE), [('r', 3)]);
    }

    #[test]
    fn a_table_is_not_stated_as_programmed_before_its_refusals_are() {
        for (is_holding, expected) in [(false, ['r', 'p']), (true, ['p', 'r'])] {
            let begin = Instant::now();
            let mut all = Acknowledgements::default();
            all.received(received(1), begin);
            assert_eq!(sent(&mut all, is_holding, begin), [('r', 1)]);
            all.received(received(2), begin);
            all.programmed(programmed(2), begin);
            let expected = expected.map(|kind| (kind, 2));
            assert_eq!(sent(&mut all, is_holding, begin), expected);
        }
    }

    #[test]
    fn sustained_changes_have_twenty_acknowledgements_of_a_kind_a_second() {
        let begin = Instant::now();
        let mut all = Acknowledgements::default();
        let mut count = 0;
        for ms in 0..1_000 {
            let now = begin + Duration::from_millis(ms);
            match ms % 5 {
                0 => all.received(received(ms), now),
                3 => all.programmed(programmed(ms), now),
                _ => {}
            }
            all.resume(now);
            count += sent(&mut all, false, now).len();
        }
        assert_eq!(count, 40);
    }
}
