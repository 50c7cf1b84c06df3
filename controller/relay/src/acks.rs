//! What is to be said to the controller behind us.

use std::collections::VecDeque;
use std::time::Instant;

use portolan_model::SetHash;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_tablelog::Committed;

/// How many revisions wait until our agents have programmed them. The oldest are given up first:
/// acks are cumulative.
const MAX_WAITING: usize = 1_024;

/// The acks of one stream; only the newest of each kind is said.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    received: Option<v1::Received>,
    last_received: v1::Received,
    programmed: Option<v1::Programmed>,
    /// What was published and is not known to be programmed, in order.
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// The revision that our agents know.
    ours: u64,
    theirs: u64,
    records_hash: SetHash,
    own_hash: SetHash,
    published: Instant,
}

impl Acks {
    /// A Commit has arrived, and is held or not.
    pub(crate) fn committed(&mut self, revision: u64, held: Option<v1::Held>) {
        self.last_received = v1::Received {
            revision,
            held,
            ..v1::Received::default()
        };
        self.received = Some(self.last_received.clone());
    }

    /// What was held is not any more.
    pub(crate) fn released(&mut self) {
        if self.last_received.held.take().is_some() {
            self.received = Some(self.last_received.clone());
        }
    }

    /// A Commit was published, as a revision of ours.
    pub(crate) fn published(&mut self, ours: u64, committed: &Committed, now: Instant) {
        self.waiting.push_back(Waiting {
            ours,
            theirs: committed.revision,
            records_hash: committed.records_hash,
            own_hash: committed.own_hash,
            published: now,
        });
        if self.waiting.len() > MAX_WAITING {
            self.waiting.pop_front();
        }
    }

    /// Whether something waits to be programmed.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// All our agents have programmed what `is_programmed` says.
    pub(crate) fn look(&mut self, now: Instant, is_programmed: impl Fn(u64) -> bool) {
        while let Some(first) = self.waiting.pop_front_if(|first| is_programmed(first.ours)) {
            let duration = now.saturating_duration_since(first.published);
            self.programmed = Some(v1::Programmed {
                revision: first.theirs,
                records_hash: first.records_hash.to_bytes().into(),
                own_hash: first.own_hash.to_bytes().into(),
                duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
                ..v1::Programmed::default()
            });
        }
    }

    pub(crate) fn has_mail(&self) -> bool {
        self.received.is_some() || self.programmed.is_some()
    }

    /// The next message; `None` if there is nothing to say.
    pub(crate) fn take(&mut self) -> Option<v1::AgentMessage> {
        let message = match self.received.take() {
            Some(received) => Message::Received(received),
            None => Message::Programmed(self.programmed.take()?),
        };
        Some(v1::AgentMessage {
            message: Some(message),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(revision: u64) -> Committed {
        Committed {
            epoch: 1,
            revision,
            records_hash: SetHash(revision.into()),
            own_hash: SetHash::default(),
            deleted: 0,
            records: 0,
        }
    }

    #[test]
    fn a_revision_is_programmed_when_all_agents_have_ours() {
        let now = Instant::now();
        let mut acks = Acks::default();
        for (theirs, ours) in [(10, 1), (11, 2), (12, 2), (13, 3)] {
            acks.committed(theirs, None);
            acks.published(ours, &committed(theirs), now);
        }
        acks.look(now, |_| false);
        let Some(Message::Received(received)) = acks.take().unwrap().message else {
            panic!("nothing received");
        };
        assert_eq!(received.revision, 13);
        assert!(!acks.has_mail());
        acks.look(now, |ours| ours <= 2);
        let Some(Message::Programmed(programmed)) = acks.take().unwrap().message else {
            panic!("nothing programmed");
        };
        assert_eq!(programmed.revision, 12);
        assert_eq!(programmed.records_hash, SetHash(12).to_bytes());
        assert!(acks.is_waiting() && !acks.has_mail());
    }

    #[test]
    fn what_is_held_no_more_is_said_once() {
        let mut acks = Acks::default();
        acks.committed(1, Some(v1::Held::default()));
        assert!(acks.take().is_some());
        acks.released();
        let Some(Message::Received(received)) = acks.take().unwrap().message else {
            panic!("nothing received");
        };
        assert_eq!((received.revision, received.held), (1, None));
        acks.released();
        assert!(!acks.has_mail());
    }
}
