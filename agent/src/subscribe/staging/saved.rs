// SPDX-License-Identifier: Apache-2.0

//! A table as the frames that would send it, to be written to disk and taken again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::{ContentHash, NodeInfo, NodeOverlay, NodeTable, Record, RecordKey, SetHash};
use portolan_proto::convert::{encode_key, encode_lists, encode_node, encode_record};
use portolan_proto::limits::FRAME_BYTES;
use portolan_proto::v1;
use portolan_proto::v1::frame::Frame;
use prost::Message;

use super::{Staging, own_hash};

/// Replaces the hash of a value that was taken in part. It equals no hash of a controller, so a
/// controller will send the record again, perhaps to a newer version of this agent.
const NOT_WHOLE: ContentHash = ContentHash(0);

/// The hash with which a value is kept. If the computed hash differs from the controller's, the
/// value has fields that this version does not know and that would be lost.
fn whole(stated: ContentHash, computed: ContentHash) -> ContentHash {
    if stated == computed {
        stated
    } else {
        NOT_WHOLE
    }
}

/// A table as it was last committed, and as it is in force. Its frames are made later.
#[derive(Debug, Clone)]
pub struct Saved {
    epoch: u64,
    revision: u64,
    source_versions: Vec<u64>,
    records: Vec<(Arc<Record>, ContentHash)>,
    lists: Vec<(RecordKey, Arc<NodeOverlay>, ContentHash)>,
    node: (NodeInfo, ContentHash),
    /// The table in force, if deletions are held back.
    in_force: Option<Arc<NodeTable>>,
}

impl Staging {
    /// The table of the last good Commit.
    #[must_use]
    pub fn save(&self) -> Saved {
        let records = self.table.records.iter().map(|(key, record)| {
            let hash = self.records.hash_of(&encode_key(key));
            (Arc::clone(record), hash.unwrap_or(NOT_WHOLE))
        });
        let lists = self.table.lists.iter().map(|(key, lists)| {
            let hash = self.lists.hash_of(&encode_key(key));
            (key.clone(), Arc::clone(lists), hash.unwrap_or(NOT_WHOLE))
        });
        // A revision promises all of the table. A refused value without a good version leaves no trace in it.
        let has_problems =
            self.records.problems().next().is_some() || self.lists.problems().next().is_some();
        let position = self.position.filter(|_| !has_problems);
        let (epoch, revision) = position.unwrap_or_default();
        let is_node_whole = self.node.problem.is_none();
        let node_hash = is_node_whole.then_some(self.node.hash);
        Saved {
            epoch,
            revision,
            source_versions: self.source_versions.clone(),
            records: records.collect(),
            lists: lists.collect(),
            node: (self.table.node.clone(), node_hash.unwrap_or(NOT_WHOLE)),
            in_force: None,
        }
    }
}

impl Saved {
    /// A table that no controller sent.
    #[must_use]
    pub fn of_table(table: &NodeTable) -> Self {
        let records = table.records.values();
        let lists = table.lists.iter();
        Self {
            epoch: 0,
            revision: 0,
            source_versions: Vec::new(),
            records: records
                .map(|record| (Arc::clone(record), record.content_hash()))
                .collect(),
            lists: lists
                .map(|(key, overlay)| (key.clone(), Arc::clone(overlay), overlay.content_hash(key)))
                .collect(),
            node: (table.node.clone(), table.node.content_hash()),
            in_force: None,
        }
    }

    /// Adds the table in force, if deletions of this one are held back.
    #[must_use]
    pub fn with_in_force(self, in_force: Option<Arc<NodeTable>>) -> Self {
        Self { in_force, ..self }
    }

    /// A whole stream: Welcome, the table, and a Commit; then, if deletions are held back, a
    /// transition to the table in force, which is of no controller. Computes the hashes of all
    /// that is in it.
    pub fn frames(&self) -> Vec<v1::Frame> {
        let mut marked = self.clone();
        marked.mark_what_is_not_whole();
        let mut frames = marked.as_frames();
        if let Some(in_force) = &self.in_force {
            frames.extend(marked.frames_to(in_force));
        }
        let frame = |frame| v1::Frame { frame: Some(frame) };
        frames.into_iter().map(frame).collect()
    }

    /// The transition to the table in force, which has records that this one lacks.
    fn frames_to(&self, in_force: &NodeTable) -> Vec<Frame> {
        let mut after = Self {
            epoch: 0,
            revision: 0,
            ..self.clone()
        };
        let sent: BTreeMap<_, _> = self.records.iter().map(|(r, _)| (&r.key, r)).collect();
        let is_sent = |record: &Arc<Record>| sent.get(&record.key) == Some(&record);
        let records: Vec<_> = in_force.records.values().filter(|r| !is_sent(r)).collect();
        let keys: BTreeSet<_> = records.iter().map(|record| &record.key).collect();
        after
            .records
            .retain(|(record, _)| !keys.contains(&record.key));
        let records = records.into_iter();
        let records: Vec<_> = records.map(|r| (Arc::clone(r), r.content_hash())).collect();

        let sent: BTreeMap<_, _> = self.lists.iter().map(|(key, o, _)| (key, o)).collect();
        let overlays = in_force.lists.iter();
        let overlays: Vec<_> = overlays
            .filter(|(key, o)| sent.get(key) != Some(o))
            .collect();
        let keys: BTreeSet<_> = overlays.iter().map(|(key, _)| *key).collect();
        after.lists.retain(|(key, ..)| !keys.contains(key));
        let overlays = overlays.into_iter();
        let overlays: Vec<_> = overlays
            .map(|(key, o)| (key.clone(), Arc::clone(o), o.content_hash(key)))
            .collect();

        let welcome = v1::Welcome {
            version: portolan_proto::VERSION,
            ..v1::Welcome::default()
        };
        let mut frames = vec![Frame::Welcome(welcome)];
        frames.extend(put_records(
            records.iter().map(|(r, hash)| encode_record(r, *hash)),
        ));
        let puts = overlays.iter();
        frames.extend(put_overlays(
            puts.map(|(key, o, hash)| encode_lists(key, o, *hash)),
        ));
        if in_force.node.director != self.node.0.director {
            let hash = in_force.node.content_hash();
            after.node = (in_force.node.clone(), hash);
            frames.push(Frame::Own(v1::Own {
                node: Some(encode_node(&in_force.node, hash)),
                ..v1::Own::default()
            }));
        }
        after.records.extend(records);
        after.lists.extend(overlays);
        frames.push(Frame::Commit(after.commit(false)));
        frames
    }

    fn as_frames(&self) -> Vec<Frame> {
        let mut frames = vec![Frame::Welcome(v1::Welcome {
            version: portolan_proto::VERSION,
            epoch: self.epoch,
            ..v1::Welcome::default()
        })];
        let records = self.records.iter().map(|(r, hash)| encode_record(r, *hash));
        frames.extend(put_records(records));
        let lists = self.lists.iter();
        let lists = lists.map(|(key, lists, hash)| encode_lists(key, lists, *hash));
        frames.extend(put_overlays(lists));
        frames.push(Frame::Own(v1::Own {
            node: Some(encode_node(&self.node.0, self.node.1)),
            ..v1::Own::default()
        }));
        frames.push(Frame::Commit(self.commit(true)));
        frames
    }

    fn mark_what_is_not_whole(&mut self) {
        for (record, hash) in &mut self.records {
            *hash = whole(*hash, record.content_hash());
        }
        for (key, lists, hash) in &mut self.lists {
            *hash = whole(*hash, lists.content_hash(key));
        }
        self.node.1 = whole(self.node.1, self.node.0.content_hash());
        let records = self.records.iter().map(|(_, hash)| hash);
        let lists = self.lists.iter().map(|(.., hash)| hash);
        let mut all = records.chain(lists).chain([&self.node.1]);
        if all.any(|hash| *hash == NOT_WHOLE) {
            // A revision would promise all of it.
            (self.epoch, self.revision) = (0, 0);
        }
    }

    fn commit(&self, snapshot: bool) -> v1::Commit {
        let records: SetHash = self.records.iter().map(|(_, hash)| *hash).collect();
        let lists: SetHash = self.lists.iter().map(|(.., hash)| *hash).collect();
        v1::Commit {
            revision: self.revision,
            snapshot,
            records_hash: records.to_bytes().into(),
            own_hash: own_hash(lists, self.node.1).to_bytes().into(),
            source_versions: self.source_versions.clone(),
            trigger_times_ms: Vec::new(),
        }
    }
}

fn put_records(records: impl Iterator<Item = v1::Record>) -> impl Iterator<Item = Frame> {
    chunks(records).map(|put| {
        Frame::Records(v1::Records {
            put,
            ..v1::Records::default()
        })
    })
}

fn put_overlays(lists: impl Iterator<Item = v1::NodeLists>) -> impl Iterator<Item = Frame> {
    chunks(lists).map(|put| {
        Frame::Own(v1::Own {
            put,
            ..v1::Own::default()
        })
    })
}

/// Groups of about [`FRAME_BYTES`].
fn chunks<M: Message>(messages: impl Iterator<Item = M>) -> impl Iterator<Item = Vec<M>> {
    let mut messages = messages.peekable();
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let mut chunk = Vec::new();
        while let Some(message) = messages.next_if(|_| bytes < FRAME_BYTES) {
            bytes += message.encoded_len();
            chunk.push(message);
        }
        (!chunk.is_empty()).then_some(chunk)
    })
}
