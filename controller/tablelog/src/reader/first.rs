// SPDX-License-Identifier: Apache-2.0

//! The first transition of a stream: the shortest one that makes the agent's table equal.

use std::sync::Arc;

use portolan_model::{NodeKey, SetHash};
use portolan_proto::buckets::{bucket_count, short};
use tokio::time::Instant;

use super::answer::{First, Have, How};
use super::{Scope, TableReader};
use crate::feed::{Delivery, Feed, Question, full_commit};
use crate::log::{OwnChanges, TableHashes};
use crate::since::SMALL_TABLE;
use crate::wire::{Chunks, Writer};

/// The share of all records, in percent of bytes, above which a snapshot replaces the differing
/// buckets: many records in them are equal.
const MOST_IN_BUCKETS: usize = 50;

impl TableReader {
    /// The first transition of a stream: the shortest one that makes the agent's table equal. A
    /// relay that comes from another controller gets a snapshot unless its tables are equal: relays
    /// are few.
    #[must_use]
    pub fn first(&self, feed: &Feed, scope: &Scope, have: &Have) -> First {
        let log = self.read();
        let of = log.of(scope.cluster());
        let (known, claimed) = (of.source_versions(), &have.source_versions);
        let went_back = |since| feed.stated().went_back(known, claimed, since);
        let is_behind = is_behind(known, claimed) && !have.since.is_some_and(went_back);
        let Some(theirs) = have.hashes else {
            // The agent dropped its table, but the versions of that table are known.
            return match is_behind {
                true => First::Behind,
                false => First::Snapshot,
            };
        };
        let ours = of.hashes_of(scope);
        let last = || full_commit(of.head(), ours, of.source_versions());
        if theirs == ours {
            let nothing = OwnChanges::default();
            let delivery = Delivery::with_own(&Arc::default(), nothing, false, last());
            return First::Deliver(delivery, How::Equal);
        }
        if is_behind {
            return First::Behind;
        }
        if let Scope::Node(node) = scope
            && theirs.records == ours.records
        {
            let own = of.own(&node.name);
            let delivery = Delivery::with_own(&Arc::default(), own, true, last());
            return First::Deliver(delivery, How::Resume);
        }
        drop(log);
        if have.epoch == self.epoch()
            && let Some(delivery) = self.since(feed, scope, have.revision, false)
        {
            return First::Deliver(delivery, How::Resume);
        }
        match scope {
            Scope::Node(node) => self.first_by_buckets(feed, node, have, theirs),
            Scope::AllNodes(_) => First::Snapshot,
        }
    }

    /// The first transition to an agent of which only the hash of the records is known.
    fn first_by_buckets(
        &self,
        feed: &Feed,
        node: &NodeKey,
        have: &Have,
        theirs: TableHashes,
    ) -> First {
        // The lock order, see Shared: the log is released before the memo is locked.
        let head = self.head(&node.cluster);
        if have.epoch == self.epoch() {
            // The differing buckets hold all of a change that is known to be too large.
            let (from, live) = (have.revision, false);
            let answer = feed.memo().answer(head, Question::Since { from, live });
            if answer.get().is_some_and(Option::is_none) {
                return First::Snapshot;
            }
        }
        let log = self.read();
        let of = log.of(&node.cluster);
        if of.records().bytes() < SMALL_TABLE {
            return First::Snapshot;
        }
        // About one for each record: a hash is much shorter than a record.
        let count = bucket_count(of.records().len());
        let records = theirs.records;
        let mut memo = feed.memo();
        let answer = memo.answer(of.head(), Question::Elsewhere { records });
        let Some(answer) = answer.get() else {
            return match memo.is_to_ask(of.head(), records, Instant::now()) {
                true => First::Ask(count),
                false => First::Wait(count),
            };
        };
        drop(memo);
        match answer {
            Some(shared) => {
                let last = full_commit(of.head(), of.hashes(&node.name), of.source_versions());
                let (own, replace) = of.own_unless(&node.name, theirs.own);
                let delivery = Delivery::with_own(shared, own, replace, last);
                First::Deliver(delivery, How::Buckets)
            }
            None => First::Snapshot,
        }
    }

    /// The transition to an agent whose buckets have these hashes; `None` if a snapshot costs less.
    /// Other agents with the same records get the same transition. If the hashes are not those of
    /// the agent's records, the resulting tables do not match their Commit, and the agents get a
    /// snapshot.
    #[must_use]
    pub fn buckets(
        &self,
        feed: &Feed,
        node: &NodeKey,
        theirs: TableHashes,
        hashes: &[[u8; 8]],
    ) -> Option<Delivery> {
        let count = u32::try_from(hashes.len()).ok()?;
        let log = self.read();
        let of = log.of(&node.cluster);
        let records = theirs.records;
        let of_all = feed
            .memo()
            .answer(of.head(), Question::Elsewhere { records });
        let share = |answer: Option<&Arc<Chunks>>| {
            if add_up(hashes, records) && of_all.set(answer.cloned()).is_ok() {
                feed.wake();
            }
        };
        let (buckets, bytes) = of.buckets().differing(hashes);
        if buckets.is_empty() || bytes * 100 > of.records().bytes() * MOST_IN_BUCKETS {
            share(None);
            return None;
        }
        let last = full_commit(of.head(), of.hashes(&node.name), of.source_versions());
        let (own, replace) = of.own_unless(&node.name, theirs.own);
        let question = Question::Buckets {
            buckets: buckets.clone(),
            count,
        };
        let answer = feed.memo().answer(of.head(), question);
        let put = answer
            .get()
            .is_none()
            .then(|| of.of_buckets(&buckets, count));
        drop(log);
        let make = || {
            let chunks = Writer::default().buckets(buckets, count, put?).finish();
            Some(Arc::new(chunks))
        };
        let shared = answer.get_or_init(make).as_ref()?;
        share(Some(shared));
        Some(Delivery::with_own(shared, own, replace, last))
    }
}

/// Returns `true` if the agent's table was made from a later version of any source. `false` if
/// either side states no versions, or the sources differ in number.
fn is_behind(ours: &[u64], theirs: &[u64]) -> bool {
    ours.len() == theirs.len() && ours.iter().zip(theirs).any(|(ours, theirs)| ours < theirs)
}

/// Whether the hashes of the buckets sum up to the hash of the records: a necessary
/// condition only.
fn add_up(hashes: &[[u8; 8]], records: SetHash) -> bool {
    let sum = hashes.iter().fold(0_u64, |sum, hash| {
        sum.wrapping_add(u64::from_be_bytes(*hash))
    });
    sum.to_be_bytes() == short(records)
}
