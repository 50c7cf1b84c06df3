// SPDX-License-Identifier: Apache-2.0

//! Acknowledgements to the upstream controller.

use std::collections::VecDeque;
use std::time::Instant;

use portolan_model::SetHash;
use portolan_proto::v1;
use portolan_serve::AllProgrammed;
use portolan_subscription::Acknowledgements;
use portolan_tablelog::Committed;

/// Number of revisions that wait until all agents have programmed them. The oldest are dropped first:
/// acknowledgements are cumulative.
const MAX_WAITING: usize = 1_024;

/// The acknowledgements of one stream.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    pending: Acknowledgements,
    last_received: v1::Received,
    /// Published revisions, in order. All agents may have programmed the first, and lack the second.
    revisions: VecDeque<Revision>,
}

#[derive(Debug)]
struct Revision {
    /// The revision at the relay.
    ours: u64,
    /// The revision at the controller.
    theirs: u64,
    /// The hashes of the records and of the nodes' own; `None` while deletions are held back.
    hashes: Option<(SetHash, SetHash)>,
    published: Instant,
    /// The last acknowledgement; `None` before the first one.
    acknowledged: Option<AllProgrammed>,
}

impl Revision {
    fn programmed(&self, all: AllProgrammed, now: Instant) -> v1::Programmed {
        let bytes = |hash: SetHash| hash.to_bytes().to_vec();
        let hashes = self.hashes.filter(|_| all.has_hashes);
        let (records_hash, own_hash) = hashes.unzip();
        let duration = now.saturating_duration_since(self.published);
        v1::Programmed {
            revision: self.theirs,
            records_hash: records_hash.map(bytes).unwrap_or_default(),
            own_hash: own_hash.map(bytes).unwrap_or_default(),
            duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            errors_total: all.errors_total,
            ..v1::Programmed::default()
        }
    }
}

impl Acks {
    /// A Commit has arrived; some of its deletions may be held back.
    pub(crate) fn committed(&mut self, revision: u64, held: Option<v1::Held>, now: Instant) {
        self.last_received = v1::Received {
            revision,
            held,
            ..v1::Received::default()
        };
        self.pending.received(self.last_received.clone(), now);
    }

    /// No deletions are held back any more.
    pub(crate) fn released(&mut self, now: Instant) {
        if self.last_received.held.take().is_some() {
            self.pending.received(self.last_received.clone(), now);
        }
    }

    /// A Commit was published as a revision of the relay, with or without all its deletions.
    pub(crate) fn published(
        &mut self,
        ours: u64,
        committed: &Committed,
        is_held: bool,
        now: Instant,
    ) {
        let hashes = (committed.records_hash, committed.own_hash);
        self.revisions.push_back(Revision {
            ours,
            theirs: committed.revision,
            hashes: (!is_held).then_some(hashes),
            published: now,
            acknowledged: None,
        });
        if self.revisions.len() > MAX_WAITING {
            self.revisions.pop_front();
        }
    }

    /// Returns `true` if a revision is not known to be programmed by all agents.
    pub(crate) fn is_waiting(&self) -> bool {
        let mut revisions = self.revisions.iter();
        revisions.any(|revision| revision.acknowledged.is_none())
    }

    /// Acknowledges the newest revision that all agents have programmed; again when they state
    /// something else.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        all_programmed: impl Fn(u64) -> Option<AllProgrammed>,
    ) {
        let is_programmed = |one: &Revision| all_programmed(one.ours).is_some();
        while self.revisions.get(1).is_some_and(is_programmed) {
            self.revisions.pop_front();
        }
        let Some(revision) = self.revisions.front_mut() else {
            return;
        };
        let Some(all) = all_programmed(revision.ours) else {
            return;
        };
        if revision.acknowledged.replace(all) == Some(all) {
            return;
        }
        self.pending.programmed(revision.programmed(all, now), now);
        if self.last_received.held.is_some() {
            // Older controllers end the hold at `Programmed`.
            self.pending.received(self.last_received.clone(), now);
        }
    }

    pub(crate) fn has_message(&self) -> bool {
        self.pending.has_message()
    }

    /// Time at which [`Self::resume`] is to be called; `None` if no message waits for it.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.pending.due()
    }

    /// Ends the pauses between messages that are over.
    pub(crate) fn resume(&mut self, now: Instant) {
        self.pending.resume(now);
    }

    /// The next message; `None` if there is none for now.
    pub(crate) fn next_message(&mut self, now: Instant) -> Option<v1::AgentMessage> {
        let is_holding = self.last_received.held.is_some();
        let message = self.pending.next_message(is_holding, now)?;
        Some(v1::AgentMessage {
            message: Some(message),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portolan_proto::v1::agent_message::Message;

    use super::*;

    /// Longer than the pause between two acknowledgements of a kind.
    const LATER: Duration = Duration::from_secs(1);

    fn committed(revision: u64) -> Committed {
        Committed {
            epoch: 1,
            revision,
            records_hash: SetHash(revision.into()),
            own_hash: SetHash::default(),
        }
    }

    fn programmed(acks: &mut Acks, now: Instant) -> v1::Programmed {
        match acks.next_message(now).unwrap().message {
            Some(Message::Programmed(programmed)) => programmed,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_revision_is_programmed_when_all_agents_have_ours() {
        let now = Instant::now();
        let mut acks = Acks::default();
        for (theirs, ours) in [(10, 1), (11, 2), (12, 2), (13, 3)] {
            acks.committed(theirs, None, now);
            acks.published(ours, &committed(theirs), false, now);
        }
        acks.look(now, |_| None);
        let Some(Message::Received(received)) = acks.next_message(now).unwrap().message else {
            panic!("nothing received");
        };
        assert_eq!(received.revision, 13);
        assert!(!acks.has_message());
        acks.look(now, |ours| (ours <= 2).then_some(AllProgrammed::EQUAL));
        let programmed = programmed(&mut acks, now);
        assert_eq!(programmed.revision, 12);
        assert_eq!(programmed.records_hash, SetHash(12).to_bytes());
        assert!(acks.is_waiting() && !acks.has_message());
    }

    #[test]
    fn kernels_that_differ_from_their_tables_are_stated() {
        let mut now = Instant::now();
        let mut acks = Acks::default();
        acks.published(1, &committed(10), false, now);
        let differing = AllProgrammed {
            has_hashes: false,
            errors_total: 2,
        };
        for _ in 0..2 {
            now += LATER;
            acks.look(now, |_| Some(differing));
            let first = programmed(&mut acks, now);
            assert_eq!((first.revision, first.errors_total), (10, 2));
            assert!(first.records_hash.is_empty() && first.own_hash.is_empty());
            acks.look(now, |_| Some(differing));
            // An agent that has just come lacks the revision.
            acks.look(now, |_| None);
            assert!(!acks.has_message());
            now += LATER;
            acks.look(now, |_| Some(AllProgrammed::EQUAL));
            let last = programmed(&mut acks, now);
            assert_eq!((last.revision, last.errors_total), (10, 0));
            assert_eq!(last.records_hash, SetHash(10).to_bytes());
            assert!(!acks.is_waiting());
        }
    }

    #[test]
    fn a_release_is_acknowledged_once() {
        let mut now = Instant::now();
        let mut acks = Acks::default();
        acks.committed(1, Some(v1::Held::default()), now);
        assert!(acks.next_message(now).is_some());
        now += LATER;
        acks.released(now);
        let Some(Message::Received(received)) = acks.next_message(now).unwrap().message else {
            panic!("nothing received");
        };
        assert_eq!((received.revision, received.held), (1, None));
        acks.released(now);
        assert!(!acks.has_message());
    }

    #[test]
    fn commits_in_quick_succession_have_one_acknowledgement_more() {
        let begin = Instant::now();
        let mut acks = Acks::default();
        acks.committed(1, None, begin);
        assert!(acks.next_message(begin).is_some());
        for revision in 2..9 {
            acks.committed(revision, None, begin);
            assert!(!acks.has_message());
        }
        let due = acks.due().unwrap();
        acks.resume(due);
        let Some(Message::Received(received)) = acks.next_message(due).unwrap().message else {
            panic!("nothing received");
        };
        assert_eq!(received.revision, 8);
        assert!(!acks.has_message() && acks.due().is_none());
    }
}
