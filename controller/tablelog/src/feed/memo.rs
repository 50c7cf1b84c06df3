// SPDX-License-Identifier: Apache-2.0

//! Cached transitions: in a storm of reconnects, many agents need the same ones.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use portolan_model::SetHash;
use tokio::time::Instant;

use crate::wire::Chunks;

/// The most answers in a memo. If their size exceeds [`MAX_BYTES`], the least recently used are
/// dropped too.
const MAX_ANSWERS: usize = 256;
const MAX_BYTES: usize = 4 << 20;

/// The time for an agent to send its hashes, after which another one with the same records is
/// asked.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// The cache key of the shared part of a transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    /// The changes after a revision; `live` if with trigger times, which only a live stream gets.
    Since { from: u64, live: bool },
    /// As `Since`, for relays.
    SinceForRelays { from: u64, live: bool },
    /// All records of `buckets`, out of `count`.
    Buckets { buckets: Vec<u32>, count: u32 },
    /// The differences from records with this hash, of any epoch: the buckets that differ from the
    /// hashes that one agent with these records sent.
    Elsewhere { records: SetHash },
}

/// An answer that is made once, by the first stream that needs it; the others wait for it. `None`
/// if a snapshot costs less.
pub(crate) type Answer = OnceLock<Option<Arc<Chunks>>>;

/// The most recently used answers that lead to one revision.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    revision: u64,
    /// Questions and answers, the least recently used first.
    answers: Vec<(Question, Arc<Answer>)>,
    /// The hashes of records whose buckets an agent was asked for, and the time of the last
    /// request.
    asked: Vec<(SetHash, Instant)>,
}

impl Memo {
    /// The slot of an answer, empty if it was not made yet. Drops the answers to other revisions.
    pub(crate) fn answer(&mut self, revision: u64, question: Question) -> Arc<Answer> {
        self.lead_to(revision);
        let found = self
            .answers
            .iter()
            .rposition(|(known, _)| *known == question);
        let entry = match found {
            Some(index) => self.answers.remove(index),
            None => {
                self.make_room();
                (question, Arc::default())
            }
        };
        let answer = Arc::clone(&entry.1);
        self.answers.push(entry);
        answer
    }

    /// Returns `true` if to ask an agent with these records for the hashes of its buckets: no agent
    /// was asked yet, or the last one has not answered in time. All agents with these records have
    /// the same hashes. At most [`MAX_ANSWERS`] different hashes are asked for at one revision.
    pub(crate) fn is_to_ask(&mut self, revision: u64, records: SetHash, now: Instant) -> bool {
        self.lead_to(revision);
        let room = self.asked.len() < MAX_ANSWERS;
        match self.asked.iter_mut().find(|(known, _)| *known == records) {
            Some((_, asked)) if now.duration_since(*asked) < ANSWERED_WITHIN => false,
            Some((_, asked)) => {
                *asked = now;
                true
            }
            None if room => {
                self.asked.push((records, now));
                true
            }
            None => false,
        }
    }

    fn lead_to(&mut self, revision: u64) {
        if self.revision != revision {
            self.revision = revision;
            self.answers.clear();
            self.asked.clear();
        }
    }

    fn make_room(&mut self) {
        let bytes = |answer: &Answer| {
            let chunks = answer.get().and_then(Option::as_ref);
            chunks.map_or(0, |chunks| chunks.bytes())
        };
        let mut sum: usize = self.answers.iter().map(|(_, answer)| bytes(answer)).sum();
        let mut drop = 0;
        while sum > MAX_BYTES || self.answers.len() - drop >= MAX_ANSWERS {
            sum -= bytes(&self.answers[drop].1);
            drop += 1;
        }
        self.answers.drain(..drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::bytes::Bytes;

    fn since(from: u64) -> Question {
        Question::Since { from, live: true }
    }

    fn of(bytes: usize) -> Arc<Chunks> {
        Arc::new(Chunks {
            chunks: vec![Bytes::from(vec![0; bytes])],
            ..Chunks::default()
        })
    }

    #[test]
    fn equal_questions_have_one_answer_until_the_revision_is_another() {
        let mut memo = Memo::default();
        let first = memo.answer(7, since(1));
        assert!(Arc::ptr_eq(&first, &memo.answer(7, since(1))));
        assert!(!Arc::ptr_eq(&first, &memo.answer(7, since(2))));
        assert!(Arc::ptr_eq(&first, &memo.answer(7, since(1))));
        assert!(!Arc::ptr_eq(&first, &memo.answer(8, since(1))));
    }

    #[test]
    fn one_of_those_with_the_same_records_is_asked_at_a_time() {
        let (mut memo, begin) = (Memo::default(), Instant::now());
        let (soon, later) = (begin + ANSWERED_WITHIN / 2, begin + ANSWERED_WITHIN);
        for (revision, hash, now, asks) in [
            (7, 1, begin, true),
            (7, 1, soon, false),
            (7, 2, soon, true),
            // The first agent has not answered.
            (7, 1, later, true),
            (7, 1, later, false),
            (7, 2, later, false),
            (8, 1, later, true),
            (8, 1, later, false),
        ] {
            assert_eq!(memo.is_to_ask(revision, SetHash(hash), now), asks);
        }
        let many = 0..10_000;
        let asked = many.filter(|hash| memo.is_to_ask(9, SetHash(*hash), later));
        assert!(asked.count() <= MAX_ANSWERS);
    }

    #[test]
    fn the_least_recently_used_are_forgotten() {
        let mut memo = Memo::default();
        let used = memo.answer(7, since(0));
        for from in 1..1_000 {
            memo.answer(7, since(from));
            assert!(Arc::ptr_eq(&used, &memo.answer(7, since(0))));
        }
        assert_eq!(memo.answers.len(), MAX_ANSWERS);
        for from in 1_000..1_100 {
            memo.answer(7, since(from))
                .get_or_init(|| Some(of(1 << 20)));
        }
        let answers = memo.answers.iter().filter_map(|(_, answer)| answer.get());
        let bytes = answers.flatten().map(|chunks| chunks.bytes());
        assert!(bytes.sum::<usize>() <= MAX_BYTES + (1 << 20));
    }
}
