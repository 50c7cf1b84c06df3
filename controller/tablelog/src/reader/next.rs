// SPDX-License-Identifier: Apache-2.0

//! Later transitions of a stream, and snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::answer::Next;
use super::{Scope, TableReader};
use crate::feed::{Delivery, Feed, Question, full_commit};
use crate::since::{NoChange, OwnPart, SharedPart};
use crate::wire::Writer;

impl TableReader {
    /// The next transition of a stream at the revision `cursor`.
    #[must_use]
    pub fn next(&self, feed: &Feed, scope: &Scope, cursor: u64) -> Next {
        if !feed.is_ahead(cursor) {
            return Next::Nothing;
        }
        let newest = match scope {
            Scope::Node(node) => feed.transition(&node.name, cursor),
            Scope::AllNodes(_) => None,
        };
        match newest.or_else(|| self.since(feed, scope, cursor, true)) {
            Some(delivery) => Next::Deliver(delivery),
            None => Next::Snapshot,
        }
    }

    /// The changes after `from`. `None` if a snapshot costs less, or the log has dropped some of
    /// them. The shared part is encoded once for all streams.
    pub(super) fn since(
        &self,
        feed: &Feed,
        scope: &Scope,
        from: u64,
        live: bool,
    ) -> Option<Delivery> {
        let log = self.read();
        let cluster = scope.cluster();
        let head = log.of(cluster).head();
        let (own, question) = match scope {
            Scope::Node(node) => {
                let own = OwnPart::of(&log, cluster, &node.name, from, live).ok()?;
                (own, Question::Since { from, live })
            }
            Scope::AllNodes(_) => (None, Question::SinceForRelays { from, live }),
        };
        let answer = feed.memo().answer(head, question);
        let collected = answer.get().is_none().then(|| match scope {
            Scope::Node(_) => SharedPart::for_agents(&log, cluster, from, live, &BTreeMap::new()),
            Scope::AllNodes(_) => SharedPart::for_relays(&log, cluster, from, live),
        });
        drop(log);
        if let Some(Err(NoChange::Unknown)) = collected {
            return None;
        }
        let make = || collected?.ok().map(SharedPart::encode);
        let shared = answer.get_or_init(make).as_ref()?;
        Some(match own {
            Some(own) => own.after(shared),
            None => Delivery::shared(head, Arc::clone(shared)),
        })
    }

    /// The whole table of a stream.
    #[must_use]
    pub fn snapshot(&self, feed: &Feed, scope: &Scope) -> Delivery {
        let mut segments = feed.segments();
        let log = self.read();
        let of = log.of(scope.cluster());
        let revision = of.head();
        let mut last = full_commit(revision, of.hashes_of(scope), of.source_versions());
        last.snapshot = true;
        let own = of.own_parts_of(scope);
        let work = segments.work(revision, of.records());
        drop(log);
        if let Some(work) = work {
            segments.finish(work);
        }
        let shared = Arc::clone(segments.chunks());
        drop(segments);
        let rest = Writer::default().all(own).commit(last).finish();
        Delivery::with_rest(&shared, rest, revision)
    }
}
