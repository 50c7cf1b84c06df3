//! What relays are sent: the shared records, and what all nodes have of their own.
//!
//! Records come whole, never as patches: a relay passes on bytes, also those of what it does not
//! know, and makes patches for its agents itself. A relay that comes from another controller, and
//! has not the same table, is sent all: there are few of them.

use std::sync::Arc;

use super::{First, Have, How, Next, Tables, is_behind};
use crate::feed::{Delivery, Feed, Question, full_commit};
use crate::log::{Cluster, OwnChanges};
use crate::wire::Writer;

impl Tables {
    /// As [`first`](Self::first), to a relay.
    #[must_use]
    pub fn first_of_all(&self, feed: &Feed, cluster: &str, have: &Have) -> First {
        let log = self.read();
        let Some(theirs) = have.hashes else {
            return if is_behind(log.source_versions(), &have.source_versions) {
                First::Behind
            } else {
                First::Snapshot
            };
        };
        let of = log.of(cluster);
        let ours = of.hashes_of_all();
        if theirs == ours {
            let last = full_commit(of.head(), ours, log.source_versions());
            let nothing = OwnChanges::default();
            let delivery = Delivery::with_own(&Arc::default(), nothing, false, last);
            return First::Deliver(delivery, How::Equal);
        }
        if is_behind(log.source_versions(), &have.source_versions) {
            return First::Behind;
        }
        drop(log);
        let known = have.epoch == self.epoch();
        let since = known.then(|| self.since_of_all(feed, cluster, have.revision, false));
        match since.flatten() {
            Some(delivery) => First::Deliver(delivery, How::Resume),
            None => First::Snapshot,
        }
    }

    /// As [`next`](Self::next), to a relay.
    #[must_use]
    pub fn next_of_all(&self, feed: &Feed, cluster: &str, cursor: u64) -> Next {
        if !feed.is_ahead(cursor) {
            return Next::Nothing;
        }
        match self.since_of_all(feed, cluster, cursor, true) {
            Some(delivery) => Next::Deliver(delivery),
            None => Next::Snapshot,
        }
    }

    /// What changed after `from`; `None` if a snapshot is less, or that is not known any more. Made
    /// once for all relays that ask.
    fn since_of_all(&self, feed: &Feed, cluster: &str, from: u64, live: bool) -> Option<Delivery> {
        let log = self.read();
        let of = log.of(cluster);
        let head = of.head();
        let answer = feed
            .memo()
            .answer(head, Question::SinceOfAll { from, live });
        let parts = match answer.get() {
            Some(_) => None,
            None => Some((of.records().since(from)?, of.own_of_all_since(from)?)),
        };
        let parts = parts.filter(|(records, _)| !Self::is_much(records.bytes(), of));
        let mut last = full_commit(head, of.hashes_of_all(), log.source_versions());
        if live {
            last.trigger_times_ms = of.triggers_since(from);
        }
        drop(log);
        let make = || {
            let (records, nodes) = parts?;
            let writer = Writer::default().records(records).all(nodes);
            Some(Arc::new(writer.commit(last).finish()))
        };
        let chunks = answer.get_or_init(make).as_ref()?;
        Some(Delivery::shared(head, Arc::clone(chunks)))
    }

    /// All that all nodes must have.
    #[must_use]
    pub fn snapshot_of_all(&self, feed: &Feed, cluster: &str) -> Delivery {
        let mut segments = feed.segments();
        let log = self.read();
        let of: &Cluster = log.of(cluster);
        let mut last = full_commit(of.head(), of.hashes_of_all(), log.source_versions());
        last.snapshot = true;
        let (revision, nodes) = (of.head(), of.own_of_all());
        let work = segments.work(revision, of.records());
        drop(log);
        if let Some(work) = work {
            segments.take(work);
        }
        let shared = Arc::clone(segments.chunks());
        drop(segments);
        let rest = Writer::default().all(nodes).commit(last).finish();
        Delivery::with_rest(&shared, rest, revision)
    }
}
