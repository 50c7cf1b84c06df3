//! A table as the frames that would send it, to be kept and taken again.

use std::sync::Arc;

use portolan_model::{ContentHash, NodeInfo, NodeOverlay, Record, RecordKey, SetHash};
use portolan_proto::convert::{encode_key, encode_lists, encode_node, encode_record};
use portolan_proto::limits::FRAME_BYTES;
use portolan_proto::v1;
use portolan_proto::v1::frame::Frame;
use prost::Message;

use super::{Staging, own_hash};

/// Stands for the hash of a value that was not taken whole: it is none of a controller's, so a
/// controller will send the record again, perhaps to a newer version of this agent.
const NOT_WHOLE: ContentHash = ContentHash(0);

/// The hash under which a value is kept. If we make another hash of it than its controller, it has
/// something that this version does not know and that would be lost.
fn whole(stated: ContentHash, computed: ContentHash) -> ContentHash {
    if stated == computed {
        stated
    } else {
        NOT_WHOLE
    }
}

/// What a table was when it was last committed. Its frames are made later, by whoever has time.
#[derive(Debug, Clone)]
pub struct Saved {
    epoch: u64,
    revision: u64,
    source_versions: Vec<u64>,
    records: Vec<(Arc<Record>, ContentHash)>,
    lists: Vec<(RecordKey, Arc<NodeOverlay>, ContentHash)>,
    node: (NodeInfo, ContentHash),
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
        let (epoch, revision) = self.position.unwrap_or_default();
        let is_node_whole = self.node.problem.is_none();
        let node_hash = is_node_whole.then_some(self.node.hash);
        Saved {
            epoch,
            revision,
            source_versions: self.source_versions.clone(),
            records: records.collect(),
            lists: lists.collect(),
            node: (self.table.node.clone(), node_hash.unwrap_or(NOT_WHOLE)),
        }
    }
}

impl Saved {
    /// A whole stream: Welcome, the table, and a Commit. Computes the hashes of all that is in it.
    pub fn frames(&self) -> Vec<v1::Frame> {
        let mut marked = self.clone();
        marked.mark_what_is_not_whole();
        marked.as_frames()
    }

    fn as_frames(&self) -> Vec<v1::Frame> {
        let mut frames = vec![Frame::Welcome(v1::Welcome {
            version: portolan_proto::VERSION,
            epoch: self.epoch,
            ..v1::Welcome::default()
        })];
        let records = self.records.iter().map(|(r, hash)| encode_record(r, *hash));
        frames.extend(chunks(records).map(|put| {
            Frame::Records(v1::Records {
                put,
                ..v1::Records::default()
            })
        }));
        let lists = self.lists.iter();
        let lists = lists.map(|(key, lists, hash)| encode_lists(key, lists, *hash));
        frames.extend(chunks(lists).map(|put| {
            Frame::Own(v1::Own {
                put,
                ..v1::Own::default()
            })
        }));
        frames.push(Frame::Own(v1::Own {
            node: Some(encode_node(&self.node.0, self.node.1)),
            ..v1::Own::default()
        }));
        frames.push(Frame::Commit(self.commit()));
        frames
            .into_iter()
            .map(|f| v1::Frame { frame: Some(f) })
            .collect()
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

    fn commit(&self) -> v1::Commit {
        let records: SetHash = self.records.iter().map(|(_, hash)| *hash).collect();
        let lists: SetHash = self.lists.iter().map(|(.., hash)| *hash).collect();
        v1::Commit {
            revision: self.revision,
            snapshot: true,
            records_hash: records.to_bytes().into(),
            own_hash: own_hash(lists, self.node.1).to_bytes().into(),
            source_versions: self.source_versions.clone(),
            trigger_times_ms: Vec::new(),
        }
    }
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
