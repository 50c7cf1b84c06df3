//! The one writer.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_model::{Record, RecordKey};
use portolan_proto::convert::make_patch;
use portolan_proto::encoded::encode;
use portolan_select::TableDelta;
use prost::bytes::Bytes;
use tokio::sync::watch;

use crate::feed::{Delivery, Step, commit, full_commit};
use crate::log::{ClusterApplied, Item};
use crate::reader::{State, Tables};
use crate::wire::Writer;
use crate::{Origin, Prepared, Retention};

/// The writing half; there is one.
#[derive(Debug)]
pub struct Publisher {
    tables: Tables,
    published: watch::Sender<Published>,
}

/// How far the writer is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Published {
    /// The last revision; 0 before the first.
    pub revision: u64,
    /// Whether every source has delivered all that it has. Before that nothing is served: a table
    /// with half of the Services would make agents delete the other half.
    pub synced: bool,
}

impl Publisher {
    /// An empty log of a new epoch, with both of its halves.
    #[must_use]
    pub fn new(retention: Retention) -> (Self, Tables) {
        let (published, receiver) = watch::channel(Published::default());
        let tables = Tables::new(retention, receiver);
        let publisher = Self {
            tables: tables.clone(),
            published,
        };
        (publisher, tables)
    }

    /// As [`Self::publish_from`], from nowhere in particular.
    pub fn publish(&mut self, delta: &TableDelta) -> u64 {
        self.publish_from(delta, &Origin::default())
    }

    /// Publishes one transition, and returns the revision that it made; the last one if it says
    /// nothing new.
    pub fn publish_from(&mut self, delta: &TableDelta, origin: &Origin) -> u64 {
        self.publish_prepared(Prepared::from(delta), origin)
    }

    /// As [`Self::publish_from`], with everything encoded already. What can be encoded without the
    /// lock is, in the caller's time.
    pub fn publish_prepared(&mut self, prepared: Prepared, origin: &Origin) -> u64 {
        let applied = self.tables.write().apply(prepared, origin);
        for (cluster, applied) in &applied.clusters {
            let step = self.step(cluster, applied);
            self.tables
                .feed(cluster)
                .publish(self.tables.head(cluster), step);
        }
        self.tables.raise();
        self.published.send_if_modified(|published| {
            let newer = published.revision != applied.revision;
            published.revision = applied.revision;
            newer
        });
        applied.revision
    }

    /// Says that every source has delivered all that it has: serving begins.
    pub fn set_synced(&mut self) {
        self.tables.enter(State::Synced);
        self.published
            .send_if_modified(|published| !std::mem::replace(&mut published.synced, true));
    }

    /// What streams send that have the table before this transition. `None` if nobody has it, or
    /// it changes so much that a snapshot is less.
    fn step(&self, cluster: &Arc<str>, applied: &ClusterApplied) -> Option<Step> {
        if self.tables.state() != State::Synced {
            return None;
        }
        let from = applied.from;
        let patches = self.patches(cluster, &applied.replaced);
        let log = self.tables.read();
        let of = log.of(cluster);
        let (to, versions) = (of.head(), log.source_versions().to_vec());
        let changes = of.records_since(from, &patches)?;
        if Tables::is_much(changes.bytes(), of) {
            return None;
        }
        let triggers = of.triggers_since(from);
        let nodes = applied.nodes.iter();
        let own: Option<Vec<_>> = nodes
            .map(|node| Some((node, of.hashes(node), of.own_after(node, from)?)))
            .collect();
        let (records, own) = (of.records().hash(), own?);
        drop(log);
        let mut last = commit(to, records, None, &versions);
        last.trigger_times_ms.clone_from(&triggers);
        let shared = Arc::new(Writer::default().records(changes).commit(last).finish());
        let own = own.into_iter().map(|(node, hashes, (own, replace))| {
            let mut last = full_commit(to, hashes, &versions);
            last.trigger_times_ms.clone_from(&triggers);
            let delivery = Delivery::with_own(&shared, own, replace, last);
            (Arc::clone(node), delivery)
        });
        let own = own.collect();
        Some(Step {
            from,
            to,
            shared,
            own,
        })
    }

    /// Patches for large records of which only destinations changed, where that is less.
    fn patches(&self, cluster: &str, replaced: &[Item<Record>]) -> BTreeMap<RecordKey, Bytes> {
        if replaced.is_empty() {
            return BTreeMap::new();
        }
        let log = self.tables.read();
        let records = log.of(cluster).records();
        let pairs: Vec<_> = replaced
            .iter()
            .filter_map(|old| Some((old, records.get(&old.value.key)?.clone())))
            .collect();
        drop(log);
        let patches = pairs.into_iter().filter_map(|(old, new)| {
            // A patch says nothing of what we have not understood.
            if !(old.is_whole && new.is_whole) {
                return None;
            }
            let patch = make_patch(&old.value, old.hash, &new.value, new.hash)?;
            let patch = encode(&patch);
            let is_less = 2 * patch.len() < new.encoded.len();
            is_less.then(|| (new.value.key.clone(), patch))
        });
        patches.collect()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.tables.enter(State::Closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_model::{NodeInfo, NodeKey};

    fn zone(zone: &str) -> TableDelta {
        let info = NodeInfo {
            zone: Some(zone.into()),
            ..NodeInfo::default()
        };
        let node = NodeKey {
            cluster: "".into(),
            name: "a".into(),
        };
        TableDelta {
            nodes: BTreeMap::from([(node, info)]),
            ..TableDelta::default()
        }
    }

    #[test]
    fn the_writer_wakes_readers_only_for_something_new() {
        let (mut publisher, tables) = Publisher::new(Retention::default());
        let mut published = tables.published();
        assert_eq!(publisher.publish(&zone("a")), 1);
        publisher.set_synced();
        let seen = *published.borrow_and_update();
        assert_eq!((seen.revision, seen.synced), (1, true));
        assert_eq!(publisher.publish(&zone("a")), 1);
        publisher.set_synced();
        assert!(!published.has_changed().unwrap());
        assert_eq!(publisher.publish(&zone("b")), 2);
        assert!(published.has_changed().unwrap());
    }
}
