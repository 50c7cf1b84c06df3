// SPDX-License-Identifier: Apache-2.0

//! The only writer of the tables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use portolan_model::{Record, RecordKey};
use portolan_proto::convert::make_patch;
use portolan_proto::encoded::encode;
use prost::bytes::Bytes;
use tokio::sync::watch;

use crate::feed::Transition;
use crate::identity::ClusterIdentity;
use crate::log::{ClusterApplied, Item, Retention};
use crate::published::{Outcome, Published};
use crate::reader::TableReader;
use crate::shared::{Shared, State};
use crate::since::{OwnPart, SharedPart};
use crate::sources::{Doubts, SourceDoubts};
use crate::update::{PublishObserver, Update};

/// The only writer of the tables. [`publish`](Self::publish) is the only way to change them: it
/// updates the log, the streams and the observer.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Shared>,
    published: watch::Sender<Published>,
    observer: Option<Arc<dyn PublishObserver>>,
}

impl Publisher {
    /// Creates an empty log of a new epoch; returns its writer and a reader.
    #[must_use]
    pub fn new(retention: Retention) -> (Self, TableReader) {
        let shared = Arc::new(Shared::new(retention));
        let (published, receiver) = watch::channel(Published::default());
        let reader = TableReader::new(Arc::clone(&shared), receiver);
        let publisher = Self {
            shared,
            published,
            observer: None,
        };
        (publisher, reader)
    }

    /// Sets the observer of updates.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn PublishObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// The handle that sets a cluster's identity, for the cluster's source.
    #[must_use]
    pub fn identity(&self, cluster: &Arc<str>) -> ClusterIdentity {
        ClusterIdentity {
            shared: Arc::clone(&self.shared),
            feed: self.shared.feed(cluster),
        }
    }

    /// The handle that proves to agents that the versions of a cluster's source went back, for the
    /// source.
    #[must_use]
    pub fn source_doubts(&self, cluster: &Arc<str>) -> SourceDoubts {
        self.doubts().of(cluster)
    }

    /// The same of all clusters.
    #[must_use]
    pub fn doubts(&self) -> Doubts {
        Doubts(Arc::clone(&self.shared))
    }

    /// Publishes one update.
    pub fn publish(&mut self, update: impl Into<Update>) -> Outcome {
        let Update {
            tables,
            origin,
            nodes,
        } = update.into();
        let observed = origin.observed.unwrap_or_else(Instant::now);
        if let Some(observer) = &self.observer {
            for (node, is_present) in &nodes {
                observer.node_changed(node, *is_present);
            }
        }
        let applied = self.shared.write().apply(tables, &origin);
        let mut heads = BTreeMap::new();
        for (cluster, applied) in &applied.clusters {
            let transition = self.transition(cluster, applied);
            let head = self.shared.read().of(cluster).head();
            self.shared.feed(cluster).publish(head, transition);
            heads.insert(Arc::clone(cluster), head);
        }
        self.shared.raise();
        self.published.send_if_modified(|published| {
            let newer = published.revision != applied.revision;
            published.revision = applied.revision;
            newer
        });
        if let Some(observer) = &self.observer {
            for (cluster, head) in &heads {
                observer.head_changed(cluster, *head, observed);
            }
        }
        Outcome {
            revision: applied.revision,
            heads,
        }
    }

    /// Number of the start of this writer; revisions compare within one.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Begins serving a cluster: its source has delivered all of its objects. Other clusters are not
    /// waited for.
    pub fn set_synced(&mut self, cluster: &Arc<str>) {
        let is_new = self.shared.feed(cluster).set_synced();
        self.published.send_if_modified(|published| {
            published.synced += usize::from(is_new);
            is_new
        });
    }

    /// Stops serving a cluster: its streams are sent nothing more, until [`set_synced`](Self::set_synced)
    /// is called again. Its versions are forgotten: those of its next source may be lower.
    pub fn withhold(&mut self, cluster: &Arc<str>) {
        let was_served = self.shared.feed(cluster).withhold();
        self.shared.write().forget_versions(cluster);
        self.published.send_if_modified(|published| {
            published.synced -= usize::from(was_served);
            was_served
        });
    }

    /// The newest transition, for streams at the revision before it. `None` if the tables are not
    /// served yet, or a snapshot must be sent.
    fn transition(&self, cluster: &Arc<str>, applied: &ClusterApplied) -> Option<Transition> {
        if self.shared.state(&self.shared.feed(cluster)) != State::Synced {
            return None;
        }
        let from = applied.from;
        let patches = self.patches(cluster, &applied.replaced);
        let log = self.shared.read();
        let to = log.of(cluster).head();
        let shared = SharedPart::for_agents(&log, cluster, from, true, &patches).ok()?;
        let mut own = Vec::new();
        for node in &applied.nodes {
            if let Some(part) = OwnPart::of(&log, cluster, node, from, true).ok()? {
                own.push((Arc::clone(node), part));
            }
        }
        drop(log);
        let shared = shared.encode();
        let own = own.into_iter();
        let own = own.map(|(node, part)| (node, part.after(&shared)));
        Some(Transition {
            from,
            to,
            own: own.collect(),
            shared,
        })
    }

    /// Patches for large records of which only destinations and zone masks changed. A patch is used
    /// if it is shorter than half of the record.
    fn patches(&self, cluster: &str, replaced: &[Item<Record>]) -> BTreeMap<RecordKey, Bytes> {
        if replaced.is_empty() {
            return BTreeMap::new();
        }
        let log = self.shared.read();
        let records = log.of(cluster).records();
        let pairs: Vec<_> = replaced
            .iter()
            .filter_map(|old| Some((old, records.get(&old.value.key)?.clone())))
            .collect();
        drop(log);
        let patches = pairs.into_iter().filter_map(|(old, new)| {
            // A patch cannot carry fields that this version does not decode.
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
        self.shared.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Origin;
    use portolan_model::{NodeInfo, NodeKey};
    use portolan_select::TableDelta;

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
    fn a_cluster_that_returns_may_have_lower_versions() {
        let (mut publisher, _tables) = Publisher::new(Retention::default());
        let cluster: Arc<str> = "".into();
        for (name, versions) in [("a", [10, 10, 10]), ("b", [3, 3, 3])] {
            let origin = Origin::versions(&cluster, versions.to_vec());
            publisher.publish(Update::from(&zone(name)).from_origin(origin));
            publisher.set_synced(&cluster);
            let log = publisher.shared.read();
            assert_eq!(log.of(&cluster).source_versions(), versions);
            drop(log);
            publisher.withhold(&cluster);
        }
    }

    #[test]
    fn the_writer_wakes_readers_only_for_something_new() {
        let (mut publisher, tables) = Publisher::new(Retention::default());
        let mut published = tables.published();
        assert_eq!(publisher.publish(&zone("a")).revision, 1);
        publisher.set_synced(&"".into());
        let seen = *published.borrow_and_update();
        assert_eq!((seen.revision, seen.synced), (1, 1));
        assert_eq!(publisher.publish(&zone("a")).revision, 1);
        publisher.set_synced(&"".into());
        assert!(!published.has_changed().unwrap());
        assert_eq!(publisher.publish(&zone("b")).revision, 2);
        assert!(published.has_changed().unwrap());
    }
}
