//! What is to be said to the controller. Both kinds of ack are cumulative, so only the newest of
//! each is kept: a controller that does not read costs nothing.

use std::collections::VecDeque;

use portolan_model::SetHash;
use portolan_proto::convert::encode_key;
use portolan_proto::limits::{fitting, problem_text};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;

use super::{Committed, Report};

/// How many Commits' hashes are remembered for when they are programmed.
const MAX_COMMITS: usize = 1_024;

/// The acks of one stream.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    epoch: u64,
    /// Revisions of this stream with their hashes, in order; the first may be programmed already.
    commits: VecDeque<(u64, SetHash, SetHash)>,
    /// The newest report, and whether it was made into an ack.
    report: Option<Report>,
    told: bool,
    /// The answer to the newest question.
    buckets: Option<v1::Buckets>,
    received: Option<v1::Received>,
    /// What was last received, to be said again when it is held no more.
    last_received: v1::Received,
    programmed: Option<v1::Programmed>,
}

impl Outbox {
    /// A Commit was staged.
    pub(super) fn committed(&mut self, committed: &Committed) {
        self.epoch = committed.epoch;
        let commit = (
            committed.revision,
            committed.records_hash,
            committed.own_hash,
        );
        self.commits.push_back(commit);
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
            held: None,
        };
        self.received = Some(self.last_received.clone());
        self.tell();
    }

    /// The newest table is held, or no more.
    pub(super) fn held(&mut self, held: Option<v1::Held>) {
        if self.last_received.held.is_some() != held.is_some() || held.is_some() {
            self.last_received.held = held;
            // There is none before the first Commit of a stream.
            if !self.commits.is_empty() {
                self.received = Some(self.last_received.clone());
            }
        }
    }

    /// The kernel is at a table. A report that says the same as the last one is said once.
    pub(super) fn reported(&mut self, report: &Report) {
        let same = self.report.as_ref().is_some_and(|last| {
            (last.epoch, last.revision) == (report.epoch, report.revision)
                && last.errors == report.errors
        });
        if !same {
            self.report = Some(report.clone());
            self.told = false;
            self.tell();
        }
    }

    /// Makes an ack of the report, if it is about something that this controller sent us. A report
    /// from before this stream waits until the stream's first Commit.
    fn tell(&mut self) {
        let Some(report) = self.report.as_ref().filter(|_| !self.told) else {
            return;
        };
        let newest = self.commits.back().map(|(revision, ..)| *revision);
        if report.epoch != self.epoch || newest.is_none_or(|newest| newest < report.revision) {
            return;
        }
        while self
            .commits
            .front()
            .is_some_and(|(revision, ..)| *revision < report.revision)
        {
            self.commits.pop_front();
        }
        let hashes = self.commits.front().copied();
        let hashes = hashes.filter(|(revision, ..)| *revision == report.revision);
        self.programmed = Some(programmed(report, hashes.map(|(_, r, o)| (r, o))));
        self.told = true;
    }

    /// The controller asked what we have.
    pub(super) fn asked(&mut self, buckets: v1::Buckets) {
        self.buckets = Some(buckets);
    }

    pub(super) fn has_mail(&self) -> bool {
        self.buckets.is_some() || self.received.is_some() || self.programmed.is_some()
    }

    /// The next message; `None` if there is nothing to say.
    pub(super) fn take(&mut self) -> Option<v1::AgentMessage> {
        let buckets = self.buckets.take().map(Message::Buckets);
        let message = match buckets.or_else(|| self.received.take().map(Message::Received)) {
            Some(message) => message,
            None => Message::Programmed(self.programmed.take()?),
        };
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
        }
    }

    /// The revisions that are said to be received and programmed.
    fn said(outbox: &mut Outbox) -> (Option<u64>, Option<u64>) {
        let mut said = (None, None);
        while let Some(message) = outbox.take() {
            match message.message {
                Some(Message::Received(received)) => said.0 = Some(received.revision),
                Some(Message::Programmed(programmed)) => {
                    let hash = SetHash(programmed.revision.into()).to_bytes().to_vec();
                    assert_eq!(programmed.records_hash, hash);
                    said.1 = Some(programmed.revision);
                }
                _ => panic!("no ack"),
            }
        }
        assert!(!outbox.has_mail());
        said
    }

    #[test]
    fn only_the_newest_is_said() {
        let mut outbox = Outbox::default();
        for revision in 1..5 {
            outbox.committed(&committed(revision));
            outbox.reported(&report(1, revision, &[]));
        }
        outbox.committed(&committed(5));
        assert_eq!(said(&mut outbox), (Some(5), Some(4)));
    }

    #[test]
    fn a_report_is_for_the_controller_that_sent_the_table() {
        let mut outbox = Outbox::default();
        // The last stream's: the same revision may be another table here.
        outbox.reported(&report(9, 1, &[]));
        outbox.committed(&committed(1));
        assert_eq!(said(&mut outbox), (Some(1), None));
        outbox.reported(&report(1, 1, &[]));
        assert_eq!(said(&mut outbox), (None, Some(1)));
    }

    #[test]
    fn a_held_table_is_said_and_said_again_when_it_is_held_no_more() {
        let mut outbox = Outbox::default();
        let received = |outbox: &mut Outbox| match outbox.take().unwrap().message {
            Some(Message::Received(received)) => (received.revision, received.held.is_some()),
            other => panic!("{other:?}"),
        };
        outbox.held(None);
        assert!(!outbox.has_mail());
        outbox.committed(&committed(3));
        outbox.held(Some(v1::Held::default()));
        assert_eq!(received(&mut outbox), (3, true));
        assert!(!outbox.has_mail());
        outbox.held(None);
        assert_eq!(received(&mut outbox), (3, false));
        outbox.held(None);
        assert!(!outbox.has_mail());
    }

    #[test]
    fn what_is_programmed_already_is_said_after_a_resumption() {
        let mut outbox = Outbox::default();
        outbox.reported(&report(1, 7, &[]));
        assert!(!outbox.has_mail());
        outbox.committed(&committed(7));
        assert_eq!(said(&mut outbox), (Some(7), Some(7)));
    }

    #[test]
    fn the_same_is_said_once_and_changed_errors_again() {
        let mut outbox = Outbox::default();
        outbox.committed(&committed(1));
        outbox.reported(&report(1, 1, &["no"]));
        assert_eq!(said(&mut outbox), (Some(1), Some(1)));
        outbox.reported(&report(1, 1, &["no"]));
        assert!(!outbox.has_mail());
        outbox.reported(&report(1, 1, &[]));
        assert_eq!(said(&mut outbox), (None, Some(1)));
    }
}
