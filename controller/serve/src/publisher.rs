//! What the one writer and all sessions share.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use portolan_model::{NodeKey, NodeTable, SetHash};
use portolan_select::TableDelta;
use tokio::sync::watch;

use crate::{Batch, Origin, Prepared, Retention, TableLog};

/// The writing half; there is one.
#[derive(Debug)]
pub struct Publisher {
    log: Arc<RwLock<TableLog>>,
    published: watch::Sender<Published>,
}

/// The reading half, for sessions and the admin server.
#[derive(Debug, Clone)]
pub struct Tables {
    epoch: u64,
    log: Arc<RwLock<TableLog>>,
    published: watch::Receiver<Published>,
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

/// What an agent says that it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Have {
    /// The epoch of `revision`; 0 if it has none.
    pub epoch: u64,
    /// The revision of its last Commit.
    pub revision: u64,
    /// The hashes of its records and of its own lists, if it has a table.
    pub hashes: Option<(SetHash, SetHash)>,
}

/// What an agent is sent first.
#[derive(Debug, Clone, PartialEq)]
pub struct First {
    /// The batch.
    pub batch: Batch,
    /// Why this one.
    pub how: How,
}

/// How an agent's table comes to be ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It is equal already; also if another controller sent it.
    Equal,
    /// We sent it, and know what changed since.
    Resume,
    /// It is replaced.
    Snapshot,
}

impl Publisher {
    /// An empty log of a new epoch, with both of its halves.
    #[must_use]
    pub fn new(retention: Retention) -> (Self, Tables) {
        let log = Arc::new(RwLock::new(TableLog::new(retention)));
        let (sender, published) = watch::channel(Published::default());
        let tables = Tables {
            epoch: random_epoch(),
            log: Arc::clone(&log),
            published,
        };
        let publisher = Self {
            log,
            published: sender,
        };
        (publisher, tables)
    }

    /// As [`Self::publish_from`], from nowhere in particular.
    pub fn publish(&mut self, delta: &TableDelta) -> u64 {
        self.publish_from(delta, &Origin::default())
    }

    /// Publishes one transition, and returns the revision that it made; the last one if it says
    /// nothing new. Encodes before it takes the lock, in the caller's time.
    pub fn publish_from(&mut self, delta: &TableDelta, _origin: &Origin) -> u64 {
        let prepared = Prepared::from(delta);
        let mut log = self.log.write().unwrap_or_else(PoisonError::into_inner);
        let revision = log.apply_prepared(prepared);
        drop(log);
        self.published.send_if_modified(|published| {
            let newer = published.revision != revision;
            published.revision = revision;
            newer
        });
        revision
    }

    /// Says that every source has delivered all that it has: serving begins.
    pub fn set_synced(&mut self) {
        self.published
            .send_if_modified(|published| !std::mem::replace(&mut published.synced, true));
    }
}

impl Tables {
    /// The epoch of all revisions here: a random number, not 0.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Follows the writer. It ends when the [`Publisher`] is dropped.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<Published> {
        self.published.clone()
    }

    /// What an agent is sent first: as little as makes its table equal to ours.
    #[must_use]
    pub fn first(&self, node: &NodeKey, have: &Have) -> First {
        let log = self.read();
        let unchanged = log.unchanged(node);
        if have.hashes == Some((unchanged.records_hash, unchanged.own_hash)) {
            return First {
                batch: unchanged,
                how: How::Equal,
            };
        }
        let known = have.epoch == self.epoch && have.hashes.is_some();
        match known.then(|| log.since(node, have.revision)).flatten() {
            Some(batch) => First {
                batch,
                how: How::Resume,
            },
            None => First {
                batch: log.snapshot(node),
                how: How::Snapshot,
            },
        }
    }

    /// What an agent is sent that has the table of revision `cursor`; `None` if that is the newest
    /// of its cluster.
    #[must_use]
    pub fn next(&self, node: &NodeKey, cursor: u64) -> Option<Batch> {
        let log = self.read();
        if log.head(&node.cluster) == cursor {
            return None;
        }
        let since = log.since(node, cursor);
        Some(since.unwrap_or_else(|| log.snapshot(node)))
    }

    /// A node's table, for people. Copies it.
    #[must_use]
    pub fn table(&self, node: &NodeKey) -> NodeTable {
        self.read().table(node)
    }

    /// The revision that an up-to-date agent of a cluster has.
    #[must_use]
    pub fn head(&self, cluster: &str) -> u64 {
        self.read().head(cluster)
    }

    /// Readers only look: whatever a panic left there is as good as it was.
    fn read(&self) -> RwLockReadGuard<'_, TableLog> {
        self.log.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// From the standard library's per-process random state: enough to tell two starts apart.
fn random_epoch() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new()
        .hash_one(std::time::SystemTime::now())
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_model::NodeInfo;
    use std::collections::BTreeMap;

    fn node() -> NodeKey {
        NodeKey {
            cluster: "".into(),
            name: "a".into(),
        }
    }

    fn zone(zone: &str) -> TableDelta {
        let info = NodeInfo {
            zone: Some(zone.into()),
            ..NodeInfo::default()
        };
        TableDelta {
            nodes: BTreeMap::from([(node(), info)]),
            ..TableDelta::default()
        }
    }

    fn have(tables: &Tables, epoch: u64) -> Have {
        let batch = tables.first(&node(), &Have::default()).batch;
        Have {
            epoch,
            revision: batch.revision,
            hashes: Some((batch.records_hash, batch.own_hash)),
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

    #[test]
    fn first_sends_as_little_as_it_can() {
        let (mut publisher, tables) = Publisher::new(Retention::default());
        publisher.publish(&zone("a"));
        let old = have(&tables, tables.epoch());
        let how = |have: &Have| tables.first(&node(), have).how;
        assert_eq!(how(&Have::default()), How::Snapshot);
        assert_eq!(how(&old), How::Equal);
        publisher.publish(&zone("b"));
        assert_eq!(how(&old), How::Resume);
        let elsewhere = Have { epoch: 1, ..old };
        assert_eq!(how(&elsewhere), How::Snapshot);
        let future = Have { revision: 9, ..old };
        assert_eq!(how(&future), How::Snapshot);
        // Back to what the agent has from wherever: nothing is to be sent.
        publisher.publish(&zone("a"));
        assert_eq!(how(&elsewhere), How::Equal);
        assert_eq!(tables.first(&node(), &elsewhere).batch.revision, 3);
    }
}
