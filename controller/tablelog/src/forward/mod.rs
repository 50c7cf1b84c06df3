// SPDX-License-Identifier: Apache-2.0

//! The writer of a relay, which forwards the tables of another controller.
//!
//! Records are published as the received bytes with the received hashes: an agent gets the same
//! table from the relay as from the controller behind it, including fields that this version does
//! not understand. A transition is checked against the hashes of its Commit before it is published.

mod item;
mod lost;
mod staged;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use portolan_model::{ContentHash, Loss, NodeKey, Record, RecordKey, SetHash, node_hash, replaced};
use portolan_proto::convert::{DecodeError, decode_set_hash};
use portolan_proto::encoded::{EncodedOwn, EncodedRecords};
use portolan_proto::v1;

use crate::log::{Cluster, NodeItem, TableHashes};
use crate::{ClusterOrigin, Origin, Prepared, Publisher, TableReader, Update};
pub use lost::Lost;
use staged::{Place, Staged};

/// The most trigger times of a pending transition: no Commit has more.
const MAX_TRIGGERS: usize = 64;

/// The reason for which a transition was dropped. The tables stay as they were, and the next
/// transition must be a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// The received tables do not have the hash of their Commit.
    #[error("{part} of revision {revision} have hash {got}, not {stated}")]
    Mismatch {
        /// The part of the tables.
        part: &'static str,
        /// The Commit's revision.
        revision: u64,
        /// The hash in the Commit.
        stated: SetHash,
        /// The hash of the received tables.
        got: SetHash,
    },
    /// A malformed hash.
    #[error("{0}")]
    Hash(#[from] DecodeError),
    /// A `NodeInfo` that cannot be decoded and has no valid hash.
    #[error("node {node}: {reason}")]
    Node {
        /// The name of the node.
        node: Arc<str>,
        /// The error of the decoder.
        reason: DecodeError,
    },
    /// Bytes that do not decode as a message.
    #[error("a record, list or key that cannot be read: {0}")]
    Unreadable(String),
    /// A message that relays do not request.
    #[error("{0} sent to a relay")]
    Unexpected(&'static str),
}

impl ForwardError {
    fn unreadable(error: impl ToString) -> Self {
        Self::Unreadable(error.to_string())
    }
}

/// A complete transition that is to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The epoch of the controller that sent it.
    pub epoch: u64,
    /// Its revision at that controller.
    pub revision: u64,
    /// The hash of the shared records.
    pub records_hash: SetHash,
    /// The hash of the own parts of all nodes.
    pub own_hash: SetHash,
}

/// The only writer of a relay's tables.
#[derive(Debug)]
pub struct Forwarder {
    cluster: Arc<str>,
    publisher: Publisher,
    tables: TableReader,
    /// The changes received since the last Commit.
    arriving: Staged,
    /// The changes from the published tables to the last Commit.
    pending: Option<Pending>,
    /// Records and Directors that stay published although the last Commit lacks them.
    withheld: Lost,
    /// The controller's epoch and revision of the published tables; `None` if the next stream must
    /// begin with a snapshot.
    position: Option<(u64, u64)>,
    source_versions: Vec<u64>,
    /// The items of the published tables that cannot be forwarded, by their hashes.
    foreign: BTreeMap<Place, ContentHash>,
    /// The hash of the published own parts of all nodes, including the items of `foreign`.
    own: SetHash,
}

/// A complete transition whose tables match the hashes of its Commit.
#[derive(Debug)]
struct Pending {
    staged: Staged,
    committed: Committed,
    foreign: BTreeMap<Place, ContentHash>,
    source_versions: Vec<u64>,
    trigger_times_ms: Vec<u64>,
    /// Whether everything but what is withheld is published.
    is_published: bool,
}

impl Forwarder {
    /// A forwarder of empty tables.
    #[must_use]
    pub fn new(cluster: &str, publisher: Publisher, tables: TableReader) -> Self {
        Self {
            cluster: cluster.into(),
            publisher,
            tables,
            arriving: Staged::default(),
            pending: None,
            withheld: Lost::default(),
            position: None,
            source_versions: Vec::new(),
            foreign: BTreeMap::new(),
            own: SetHash::default(),
        }
    }

    /// Begins a stream: drops the unpublished changes of the last one, and adds the state of the
    /// published tables to `hello`.
    pub fn begin(&mut self, hello: v1::Hello) -> v1::Hello {
        self.arriving = Staged::default();
        self.pending = None;
        let feed = self.tables.feed(&self.cluster);
        let cluster_id = feed.cluster_id();
        // Sent even without a position: a controller with older tables must not serve this relay.
        let hello = v1::Hello {
            source_versions: self.source_versions.clone(),
            cluster_id: cluster_id.map(ToString::to_string).unwrap_or_default(),
            ..hello
        };
        let Some((epoch, revision)) = self.position else {
            return hello;
        };
        let shared = hash_of(&self.foreign, "");
        let records = self.tables.read().of(&self.cluster).records().hash();
        v1::Hello {
            epoch,
            revision,
            records_hash: sum(records, shared).to_bytes().into(),
            own_hash: self.own.to_bytes().into(),
            ..hello
        }
    }

    /// Forgets the source versions of the last controller. Returns whether there were any.
    pub fn forget_source_versions(&mut self) -> bool {
        !std::mem::take(&mut self.source_versions).is_empty()
    }

    /// Stages changes of shared records.
    ///
    /// # Errors
    /// If the records cannot be decoded. A new stream must be begun.
    pub fn take_records(&mut self, records: EncodedRecords) -> Result<(), ForwardError> {
        let taken = self.arriving.take_records(records, &self.cluster);
        taken.inspect_err(|_| self.drop_all())
    }

    /// Stages changes of a node's own part.
    ///
    /// # Errors
    /// As [`take_records`](Self::take_records).
    pub fn take_own(&mut self, own: EncodedOwn) -> Result<(), ForwardError> {
        let taken = self.arriving.take_own(own, &self.cluster);
        taken.inspect_err(|_| self.drop_all())
    }

    /// Completes the staged transition, from the controller with this epoch. It is not published
    /// yet.
    ///
    /// # Errors
    /// If the tables do not match the hashes of the Commit. A new stream must be begun.
    pub fn commit(&mut self, commit: v1::Commit, epoch: u64) -> Result<Committed, ForwardError> {
        let staged = std::mem::take(&mut self.arriving);
        let pending = self.complete(staged, commit, epoch);
        let pending = pending.inspect_err(|_| self.drop_all())?;
        let committed = pending.committed.clone();
        self.pending = Some(pending);
        Ok(committed)
    }

    fn complete(
        &mut self,
        arrived: Staged,
        commit: v1::Commit,
        epoch: u64,
    ) -> Result<Pending, ForwardError> {
        let (mut staged, mut triggers) = match self.pending.take() {
            Some(pending) => (pending.staged, pending.trigger_times_ms),
            None => Default::default(),
        };
        staged.merge(arrived, commit.snapshot);
        let log = self.tables.read();
        let there = log.of(&self.cluster);
        staged.name_what_goes(there);
        let foreign = staged.foreign_after(&self.foreign);
        let got = self.hashes_after(&staged, &foreign, there);
        let records_hash = decode_set_hash("records_hash", &commit.records_hash)?;
        let own_hash = decode_set_hash("own_hash", &commit.own_hash)?;
        fits("records", commit.revision, records_hash, got.records)?;
        fits("the nodes' own", commit.revision, own_hash, got.own)?;
        let committed = Committed {
            epoch,
            revision: commit.revision,
            records_hash,
            own_hash,
        };
        triggers.extend(commit.trigger_times_ms);
        triggers.truncate(MAX_TRIGGERS);
        Ok(Pending {
            staged,
            committed,
            foreign,
            source_versions: commit.source_versions,
            trigger_times_ms: triggers,
            is_published: false,
        })
    }

    /// The hashes of the tables after `staged`.
    fn hashes_after(
        &self,
        staged: &Staged,
        foreign: &BTreeMap<Place, ContentHash>,
        there: &Cluster,
    ) -> TableHashes {
        let mut records = sum(there.records().hash(), hash_of(foreign, ""));
        for (key, item) in &staged.records {
            let old = there.records().get(key).map(|item| item.hash);
            old.into_iter().for_each(|old| records.remove(old));
            item.iter().for_each(|new| records.insert(new.hash));
        }
        let mut own = match staged.is_whole() {
            true => SetHash::default(),
            false => self.own,
        };
        for (name, node) in &staged.nodes {
            let (mut lists, info) = there.own_parts(name);
            if !staged.is_whole() {
                let before = named(name, sum(lists, hash_of(&self.foreign, name)), &info);
                before.into_iter().for_each(|before| own.remove(before));
            }
            for (key, item) in &node.lists {
                let old = there.list_hash(name, key);
                old.into_iter().for_each(|old| lists.remove(old));
                item.iter().for_each(|new| lists.insert(new.hash));
            }
            let info = node.info.as_ref().unwrap_or(&info);
            let after = named(name, sum(lists, hash_of(foreign, name)), info);
            after.into_iter().for_each(|after| own.insert(after));
        }
        TableHashes { records, own }
    }

    /// The published records that the last Commit lacks or leaves without endpoints, the nodes
    /// whose Director it lacks, and the size of that loss: all of them, or only those that are
    /// withheld already. Records with an address that another record takes over are not lost. Each
    /// lost Director counts as one record, as it does for an agent.
    #[must_use]
    pub fn lost(&self, only_withheld: bool) -> (Lost, Loss) {
        let log = self.tables.read();
        let cluster = log.of(&self.cluster);
        let there = cluster.records();
        let mut loss = Loss::default();
        for (_, item) in there.iter() {
            loss.of.add(&item.value);
        }
        let Some(pending) = &self.pending else {
            return (Lost::default(), loss);
        };
        let is_asked = |key: &RecordKey| !only_withheld || self.withheld.records.contains(key);
        let mut lost: BTreeMap<&RecordKey, &Record> = BTreeMap::new();
        let mut others = Vec::new();
        for (key, new) in &pending.staged.records {
            // The loss of a record is unknown if its new value is not fully understood.
            let new = new.as_ref().filter(|new| new.is_whole);
            let is_understood = new.is_some() || pending.staged.records[key].is_none();
            match there.get(key) {
                Some(old)
                    if is_understood
                        && is_asked(key)
                        && old.value.is_lost(new.map(|new| &*new.value)) =>
                {
                    lost.insert(key, &old.value);
                }
                _ => others.extend(new.map(|new| &*new.value)),
            }
        }
        for key in replaced(lost.values().copied(), others.into_iter()) {
            lost.remove(&key);
        }
        for record in lost.values() {
            loss.lost.add(record);
        }
        let mut directors = pending.staged.lost_directors(cluster);
        if only_withheld {
            directors.retain(|name| self.withheld.directors.contains(name));
        }
        loss.lost.records += directors.len();
        loss.of.records += directors.len();
        let lost = Lost {
            records: lost.into_keys().cloned().collect(),
            directors,
        };
        (lost, loss)
    }

    /// Returns `true` if records are withheld, besides Directors.
    #[must_use]
    pub fn withholds_records(&self) -> bool {
        !self.withheld.records.is_empty()
    }

    /// Keeps these records and Directors published as they are, in place of those withheld before.
    pub fn withhold(&mut self, lost: Lost) {
        self.withheld = lost;
    }

    /// Number of the start of this writer, as streams of its own agents state it.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.tables.epoch()
    }

    /// Publishes the pending transition, first seen at `observed`, without what is withheld.
    /// The first call begins serving. Returns the head of this relay and the controller's Commit;
    /// `None` if there is nothing to publish.
    pub fn publish(&mut self, observed: Instant) -> Option<(u64, Committed)> {
        let is_due = |pending: &mut Pending| !pending.is_published || self.withheld.is_empty();
        let mut pending = self.pending.take_if(is_due)?;
        let rest = pending.staged.split_off(&self.withheld);
        let committed = pending.committed.clone();
        self.own = match &rest {
            None => committed.own_hash,
            Some(_) => {
                let log = self.tables.read();
                let there = log.of(&self.cluster);
                self.hashes_after(&pending.staged, &pending.foreign, there)
                    .own
            }
        };
        let of_cluster = ClusterOrigin {
            source_versions: pending.source_versions.clone(),
            trigger_times_ms: std::mem::take(&mut pending.trigger_times_ms),
        };
        let origin = Origin {
            observed: Some(observed),
            ..Origin::of(&self.cluster, of_cluster)
        };
        let prepared = self.prepared(std::mem::take(&mut pending.staged));
        let update = Update::new(prepared).from_origin(origin);
        self.publisher.publish(update);
        self.publisher.set_synced(&self.cluster);
        // While something is withheld, the next stream must begin with a snapshot.
        let position = (committed.epoch, committed.revision);
        self.position = rest.is_none().then_some(position);
        self.source_versions.clone_from(&pending.source_versions);
        self.foreign.clone_from(&pending.foreign);
        self.pending = rest.map(|staged| Pending {
            staged,
            is_published: true,
            ..pending
        });
        Some((self.tables.head(&self.cluster), committed))
    }

    /// The number of records and lists that cannot be forwarded, because this version cannot decode
    /// their keys.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.foreign.len()
    }

    fn prepared(&self, staged: Staged) -> Prepared {
        let mut prepared = Prepared {
            records: staged.records.into_iter().collect(),
            lists: Vec::new(),
            nodes: Vec::new(),
        };
        for (name, changes) in staged.nodes {
            let node = NodeKey {
                cluster: Arc::clone(&self.cluster),
                name,
            };
            let lists = changes.lists.into_iter();
            let lists = lists.map(|(key, item)| (node.clone(), key, item));
            prepared.lists.extend(lists);
            let info = changes.info.into_iter();
            prepared.nodes.extend(info.map(|info| (node.clone(), info)));
        }
        prepared
    }

    /// Drops all unpublished changes and the position after an error: the controller may assume
    /// other tables.
    fn drop_all(&mut self) {
        self.arriving = Staged::default();
        self.pending = None;
        self.position = None;
    }
}

/// The term of a node in the hash of all nodes; `None` if its own part is empty.
fn named(name: &str, lists: SetHash, info: &NodeItem) -> Option<ContentHash> {
    // The sum over no lists is 0.
    if lists == SetHash::default() && info.is_default() {
        return None;
    }
    let mut own = lists;
    own.insert(info.hash);
    Some(node_hash(name, own))
}

/// The sum of the hashes of a node's items that cannot be forwarded, or of the shared ones if
/// `node` is empty.
fn hash_of(foreign: &BTreeMap<Place, ContentHash>, node: &str) -> SetHash {
    let of_node = foreign.iter().filter(|((of, _), _)| **of == *node);
    of_node.map(|(_, hash)| *hash).collect()
}

fn sum(one: SetHash, other: SetHash) -> SetHash {
    SetHash(one.0.wrapping_add(other.0))
}

fn fits(
    part: &'static str,
    revision: u64,
    stated: SetHash,
    got: SetHash,
) -> Result<(), ForwardError> {
    (stated == got).then_some(()).ok_or(ForwardError::Mismatch {
        part,
        revision,
        stated,
        got,
    })
}

#[cfg(test)]
mod tests;
