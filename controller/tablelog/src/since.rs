// SPDX-License-Identifier: Apache-2.0

//! The transition from an earlier revision to the newest, for all streams: the newest transition
//! when it is published, and longer ones for streams that missed some.
//!
//! Each part is collected under the log's lock and encoded without it.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_model::RecordKey;
use portolan_proto::v1;
use prost::bytes::Bytes;

use crate::feed::{Delivery, commit, full_commit};
use crate::log::{Changes, Cluster, NodeChanges, OwnChanges, TableLog};
use crate::wire::{Chunks, Writer};

/// The share of all records, in percent of bytes, above which a snapshot replaces a change: a
/// snapshot is compressed, shared by all streams, and costs the agent less.
const MOST_CHANGED: usize = 70;

/// The size of a change, in bytes, up to which no snapshot replaces it. Also the size of a table
/// below which buckets are not compared.
pub(crate) const SMALL_TABLE: usize = 16 * 1024;

/// The reason for which a transition cannot be sent as a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoChange {
    /// The log has dropped some of the changes, or never had the revision.
    Unknown,
    /// A snapshot costs less, see [`MOST_CHANGED`].
    SnapshotIsLess,
}

/// The part of a transition that streams share.
#[derive(Debug)]
pub(crate) struct SharedPart {
    records: Changes,
    nodes: Vec<NodeChanges>,
    commit: v1::Commit,
}

impl SharedPart {
    /// The shared records that changed after `from`, for agents. `patches` replace the records of
    /// their keys. Only a live stream (`live`) gets trigger times.
    pub(crate) fn for_agents(
        log: &TableLog,
        cluster: &str,
        from: u64,
        live: bool,
        patches: &BTreeMap<RecordKey, Bytes>,
    ) -> Result<Self, NoChange> {
        let of = log.of(cluster);
        let records = of.records_since(from, patches).ok_or(NoChange::Unknown)?;
        let hash = of.records().hash();
        let commit = commit(of.head(), hash, None, of.source_versions());
        let commit = with_triggers(commit, of, from, live);
        Self::within_bounds(records, Vec::new(), commit, of)
    }

    /// The shared records and the own parts of all nodes that changed after `from`, for relays.
    /// Records are sent whole: a relay forwards bytes, and makes patches itself.
    pub(crate) fn for_relays(
        log: &TableLog,
        cluster: &str,
        from: u64,
        live: bool,
    ) -> Result<Self, NoChange> {
        let of = log.of(cluster);
        let records = of.records().since(from).ok_or(NoChange::Unknown)?;
        let nodes = of.own_of_all_since(from).ok_or(NoChange::Unknown)?;
        let commit = full_commit(of.head(), of.hashes_of_all(), of.source_versions());
        let commit = with_triggers(commit, of, from, live);
        Self::within_bounds(records, nodes, commit, of)
    }

    fn within_bounds(
        records: Changes,
        nodes: Vec<NodeChanges>,
        commit: v1::Commit,
        of: &Cluster,
    ) -> Result<Self, NoChange> {
        let bytes = records.bytes();
        if bytes > SMALL_TABLE && bytes * 100 > of.records().bytes() * MOST_CHANGED {
            return Err(NoChange::SnapshotIsLess);
        }
        Ok(Self {
            records,
            nodes,
            commit,
        })
    }

    /// The frames, with the Commit.
    pub(crate) fn encode(self) -> Arc<Chunks> {
        let writer = Writer::default().records(self.records).all(self.nodes);
        Arc::new(writer.commit(self.commit).finish())
    }
}

/// The part of a transition that belongs to one node.
#[derive(Debug)]
pub(crate) struct OwnPart {
    changes: OwnChanges,
    /// Whether `changes` is the whole own part.
    replace: bool,
    commit: v1::Commit,
}

impl OwnPart {
    /// The changes of a node's own part after `from`; `None` if there are none.
    pub(crate) fn of(
        log: &TableLog,
        cluster: &str,
        node: &str,
        from: u64,
        live: bool,
    ) -> Result<Option<Self>, NoChange> {
        let of = log.of(cluster);
        let (changes, replace) = of.own_after(node, from).ok_or(NoChange::Unknown)?;
        if !replace && changes == OwnChanges::default() {
            return Ok(None);
        }
        let commit = full_commit(of.head(), of.hashes(node), of.source_versions());
        Ok(Some(Self {
            changes,
            replace,
            commit: with_triggers(commit, of, from, live),
        }))
    }

    /// The node's transition: the shared part, then the own part with its Commit.
    pub(crate) fn after(self, shared: &Arc<Chunks>) -> Delivery {
        Delivery::with_own(shared, self.changes, self.replace, self.commit)
    }
}

fn with_triggers(commit: v1::Commit, of: &Cluster, from: u64, live: bool) -> v1::Commit {
    let trigger_times_ms = match live {
        true => of.triggers_since(from),
        false => Vec::new(),
    };
    v1::Commit {
        trigger_times_ms,
        ..commit
    }
}
