// SPDX-License-Identifier: Apache-2.0

//! Messages to the controller. Both kinds of acknowledgement are cumulative, so only the newest of
//! each is kept: a controller that does not read costs nothing.

use std::collections::VecDeque;
use std::time::Instant;

use portolan_model::SetHash;
use portolan_proto::convert::encode_key;
use portolan_proto::limits::{fitting, problem_text};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_subscription::Acknowledgements;

use super::{Committed, Report};

/// Limit of Commits whose hashes are remembered until they are programmed.
const MAX_COMMITS: usize = 1_024;

/// The acknowledgements of one stream.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    epoch: u64,
    /// Revisions of this stream with their hashes, in order; the first may be programmed already.
    commits: VecDeque<Commit>,
    /// The newest report, and whether it was acknowledged.
    report: Option<Report>,
    is_acknowledged: bool,
    /// The answer to the newest question.
    buckets: Option<v1::Buckets>,
    pending: Acknowledgements,
    /// The last acknowledgement, repeated when its deletions are no longer held.
    last_received: v1::Received,
}

#[derive(Debug, Clone, Copy)]
struct Commit {
    revision: u64,
    /// The hashes of the shared records and of the node's own.
    hashes: (SetHash, SetHash),
    /// Whether some deletions of the table are held. Its hashes are then not those of the
    /// programmed table.
    is_held: bool,
}

impl Outbox {
    /// Records a staged Commit, of which some deletions may be held.
    pub(super) fn committed(
        &mut self,
        committed: &Committed,
        held: Option<v1::Held>,
        now: Instant,
    ) {
        self.epoch = committed.epoch;
        self.commits.push_back(Commit {
            revision: committed.revision,
            hashes: (committed.records_hash, committed.own_hash),
            is_held: held.is_some(),
        });
        if self.commits.len() > MAX_COMMITS {
            self.commits.pop_front();
        }
        let refusals = committed.refused.iter().map(|refusal| v1::Refusal {
            key: refusal.key.clone(),
            reason: problem_text(refusal.reason.clone()),
        });
        let (refused, refused_total) = fitting(refusals);
        self.last_received = v1::Received {
            revision: committed.revision,
            refused,
            refused_total,
            held,
        };
        self.pending.received(self.last_received.clone(), now);
        self.acknowledge(now);
    }

    /// Records that no deletions are held any more.
    pub(super) fn released(&mut self, now: Instant) {
        if self.last_received.held.take().is_none() {
            return;
        }
        self.pending.received(self.last_received.clone(), now);
        if let Some(last) = self.commits.back_mut() {
            last.is_held = false;
        }
        // The next report is about the whole table, even if it is of the same revision.
        self.report = None;
    }

    /// Records that the kernel has a table. Equal reports are acknowledged once.
    pub(super) fn reported(&mut self, report: &Report, now: Instant) {
        let same = self.report.as_ref().is_some_and(|last| {
            (last.epoch, last.revision) == (report.epoch, report.revision)
                && last.errors == report.errors
        });
        if !same {
            self.report = Some(report.clone());
            self.is_acknowledged = false;
            self.acknowledge(now);
        }
    }

    /// Acknowledges the report, if it is about a table of this controller. A report from before this
    /// stream waits until the stream's first Commit.
    fn acknowledge(&mut self, now: Instant) {
        let Some(report) = self.report.as_ref().filter(|_| !self.is_acknowledged) else {
            return;
        };
        let newest = self.commits.back().map(|commit| commit.revision);
        if report.epoch != self.epoch || newest.is_none_or(|newest| newest < report.revision) {
            return;
        }
        let is_older = |commit: &mut Commit| commit.revision < report.revision;
        while self.commits.pop_front_if(is_older).is_some() {}
        let commit = self.commits.front();
        let commit = commit.filter(|commit| commit.revision == report.revision);
        let hashes = commit.filter(|commit| !commit.is_held);
        let programmed = programmed(report, hashes.map(|commit| commit.hashes));
        self.pending.programmed(programmed, now);
        self.is_acknowledged = true;
        if self.last_received.held.is_some() {
            // Older controllers end the hold at `Programmed`.
            self.pending.received(self.last_received.clone(), now);
        }
    }

    /// Records that the controller asks for the hashes of the buckets.
    pub(super) fn asked(&mut self, buckets: v1::Buckets) {
        self.buckets = Some(buckets);
    }

    pub(super) fn has_message(&self) -> bool {
        self.buckets.is_some() || self.pending.has_message()
    }

    /// Time at which [`Self::resume`] is to be called; `None` if no message waits for it.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pending.due()
    }

    /// Ends the pauses between acknowledgements that are over.
    pub(super) fn resume(&mut self, now: Instant) {
        self.pending.resume(now);
    }

    /// The next message; `None` if there is none for now. An answer waits for no pause: the
    /// controller sends no table before it.
    pub(super) fn next_message(&mut self, now: Instant) -> Option<v1::AgentMessage> {
        let buckets = self.buckets.take().map(Message::Buckets);
        let is_holding = self.last_received.held.is_some();
        let message = buckets.or_else(|| self.pending.next_message(is_holding, now))?;
        Some(v1::AgentMessage {
            message: Some(message),
        })
    }
}

fn programmed(report: &Report, hashes: Option<(SetHash, SetHash)>) -> v1::Programmed {
    let errors = report.errors.iter().map(|(key, message)| v1::RecordError {
        key: key.as_ref().map(encode_key),
        message: problem_text(message.clone()),
    });
    let (errors, errors_total) = fitting(errors);
    let bytes = |hash: SetHash| hash.to_bytes().to_vec();
    v1::Programmed {
        revision: report.revision,
        records_hash: hashes
            .map(|(records, _)| bytes(records))
            .unwrap_or_default(),
        own_hash: hashes.map(|(_, own)| bytes(own)).unwrap_or_default(),
        duration_us: u64::try_from(report.duration.as_micros()).unwrap_or(u64::MAX),
        errors,
        errors_total,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Longer than the pause between two acknowledgements of a kind.
    const LATER: Duration = Duration::from_secs(1);

    fn committed(revision: u64) -> Committed {
        Committed {
            epoch: 1,
            revision,
            snapshot: false,
            table: Default::default(),
            records_hash: SetHash(revision.into()),
            own_hash: SetHash(0),
            trigger_times_ms: vec![],
            refused: vec![],
        }
    }

    fn report(epoch: u64, revision: u64, errors: &[&str]) -> Report {
        Report {
            epoch,
            revision,
            duration: Duration::from_millis(3),
            errors: errors.iter().map(|e| (None, (*e).to_owned())).collect(),
            checked: 0,
        }
    }

    /// The revisions that are acknowledged as received and as programmed.
    fn acknowledged(outbox: &mut Outbox, now: Instant) -> (Option<u64>, Option<u64>) {
        let mut revisions = (None, None);
        while let Some(message) = outbox.next_message(now) {
            match message.message {
                Some(Message::Received(received)) => revisions.0 = Some(received.revision),
                Some(Message::Programmed(programmed)) => {
                    let hash = SetHash(programmed.revision.into()).to_bytes().to_vec();
                    assert_eq!(programmed.records_hash, hash);
                    revisions.1 = Some(programmed.revision);
                }
                _ => panic!("no ack"),
            }
        }
        assert!(!outbox.has_message());
        revisions
    }

    #[test]
    fn only_the_newest_is_acknowledged() {
        let now = Instant::now();
        let mut outbox = Outbox::default();
        for revision in 1..5 {
            outbox.committed(&committed(revision), None, now);
            outbox.reported(&report(1, revision, &[]), now);
        }
        outbox.committed(&committed(5), None, now);
        assert_eq!(acknowledged(&mut outbox, now), (Some(5), Some(4)));
    }

    #[test]
    fn a_lone_change_is_acknowledged_at_once_and_later_ones_after_a_pause() {
        let begin = Instant::now();
        let mut outbox = Outbox::default();
        outbox.committed(&committed(1), None, begin);
        assert_eq!(acknowledged(&mut outbox, begin), (Some(1), None));
        outbox.reported(&report(1, 1, &[]), begin);
        assert_eq!(acknowledged(&mut outbox, begin), (None, Some(1)));
        assert_eq!(outbox.due(), None);
        let soon = begin + Duration::from_millis(10);
        for revision in 2..5 {
            outbox.committed(&committed(revision), None, soon);
            outbox.reported(&report(1, revision, &[]), soon);
            assert_eq!(acknowledged(&mut outbox, soon), (None, None));
        }
        // An answer waits for nothing.
        outbox.asked(v1::Buckets::default());
        let answer = outbox.next_message(soon).unwrap().message;
        assert!(matches!(answer, Some(Message::Buckets(_))));
        let due = outbox.due().unwrap();
        assert_eq!(due, begin + Duration::from_millis(50));
        outbox.resume(due);
        assert_eq!(acknowledged(&mut outbox, due), (Some(4), Some(4)));
        assert_eq!(outbox.due(), None);
    }

    #[test]
    fn a_report_is_for_the_controller_that_sent_the_table() {
        let now = Instant::now();
        let mut outbox = Outbox::default();
        // The last stream's: the same revision may be another table here.
        outbox.reported(&report(9, 1, &[]), now);
        outbox.committed(&committed(1), None, now);
        assert_eq!(acknowledged(&mut outbox, now), (Some(1), None));
        outbox.reported(&report(1, 1, &[]), now);
        assert_eq!(acknowledged(&mut outbox, now), (None, Some(1)));
    }

    #[test]
    fn held_deletions_are_stated_until_they_are_released() {
        let mut now = Instant::now();
        let mut outbox = Outbox::default();
        let next = |outbox: &mut Outbox, now| outbox.next_message(now).unwrap().message.unwrap();
        let is_held = |message: Message| match message {
            Message::Received(received) => received.held.is_some(),
            other => panic!("{other:?}"),
        };
        outbox.released(now);
        assert!(!outbox.has_message());
        outbox.committed(&committed(3), Some(v1::Held::default()), now);
        assert!(is_held(next(&mut outbox, now)));
        assert!(!outbox.has_message());
        // The rest of the table is programmed; that the deletions are held is repeated after it.
        outbox.reported(&report(1, 3, &[]), now);
        match next(&mut outbox, now) {
            Message::Programmed(programmed) => {
                assert_eq!(programmed.revision, 3);
                assert!(programmed.records_hash.is_empty());
            }
            other => panic!("{other:?}"),
        }
        assert!(is_held(next(&mut outbox, now)));
        assert!(!outbox.has_message());
        now += LATER;
        outbox.released(now);
        assert!(!is_held(next(&mut outbox, now)));
        // Now the kernel has all of the same revision.
        outbox.reported(&report(1, 3, &[]), now);
        assert_eq!(acknowledged(&mut outbox, now), (None, Some(3)));
        outbox.released(now);
        assert!(!outbox.has_message());
    }

    #[test]
    fn an_answer_loses_no_acknowledgement() {
        let now = Instant::now();
        let mut outbox = Outbox::default();
        outbox.committed(&committed(3), None, now);
        outbox.asked(v1::Buckets::default());
        let first = outbox.next_message(now).unwrap().message;
        assert!(matches!(first, Some(Message::Buckets(_))));
        assert_eq!(acknowledged(&mut outbox, now), (Some(3), None));
    }

    #[test]
    fn a_table_that_is_programmed_already_is_acknowledged_after_a_resumption() {
        let now = Instant::now();
        let mut outbox = Outbox::default();
        outbox.reported(&report(1, 7, &[]), now);
        assert!(!outbox.has_message());
        outbox.committed(&committed(7), None, now);
        assert_eq!(acknowledged(&mut outbox, now), (Some(7), Some(7)));
    }

    #[test]
    fn equal_reports_are_acknowledged_once_and_changed_errors_again() {
        let mut now = Instant::now();
        let mut outbox = Outbox::default();
        outbox.committed(&committed(1), None, now);
        outbox.reported(&report(1, 1, &["no"]), now);
        assert_eq!(acknowledged(&mut outbox, now), (Some(1), Some(1)));
        now += LATER;
        outbox.reported(&report(1, 1, &["no"]), now);
        assert!(!outbox.has_message());
        outbox.reported(&report(1, 1, &[]), now);
        assert_eq!(acknowledged(&mut outbox, now), (None, Some(1)));
    }
}
