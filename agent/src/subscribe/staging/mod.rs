// SPDX-License-Identifier: Apache-2.0

//! Frames to tables: stages frames, and swaps tables at a Commit whose hashes fit.
//!
//! Pure: no I/O, no clock. The hashes are the controller's: they show that all that was sent has
//! arrived, also values that this version refuses.

mod commit;
mod node;
mod part;
mod replaced;
mod saved;

use std::sync::Arc;

use portolan_model::{ContentHash, NodeOverlay, NodeTable, Record, SetHash};
use portolan_proto::buckets::{bucket_hashes, is_bucket_count};
use portolan_proto::convert::{DecodeError, decode_lists, decode_record};
use portolan_proto::v1;
use portolan_proto::v1::frame::Frame;
use portolan_subscription::{InflateError, inflate};
use prost::Message;

use node::{Node, StagedNode};
use part::{Decoded, TablePart};

pub use part::PatchError;
pub use saved::Saved;

/// A node's table, and the transition that is being received.
#[derive(Debug, Clone)]
pub struct Staging {
    cluster: Arc<str>,
    /// Name of the node.
    name: Arc<str>,
    table: Arc<NodeTable>,
    records: TablePart<Record>,
    lists: TablePart<NodeOverlay>,
    node: Node,
    staged_node: Option<StagedNode>,
    /// The epoch of the present stream.
    epoch: u64,
    /// The epoch and revision of the last good Commit; `None` if the next must be a snapshot.
    position: Option<(u64, u64)>,
    /// Source versions of the controller at that Commit.
    source_versions: Vec<u64>,
}

/// A frame that was taken.
#[derive(Debug)]
pub enum Taken {
    /// The stream's first frame.
    Welcome(v1::Welcome),
    /// Part of a transition.
    Staged,
    /// The end of one.
    Committed(Committed),
    /// The controller asks for the hashes of the buckets: the answer.
    Asked(v1::Buckets),
    /// An operator confirms deletions that are held back.
    Confirmed(v1::Confirm),
    /// The controller is about to stop.
    Goaway(v1::Goaway),
    /// A kind that this version does not know; ignored.
    Unknown,
}

/// A committed table.
#[derive(Debug, Clone)]
pub struct Committed {
    /// The epoch of the controller that sent it.
    pub epoch: u64,
    /// Its revision.
    pub revision: u64,
    /// Whether it was sent as a snapshot.
    pub snapshot: bool,
    /// The table; the same `Arc` as before if nothing changed.
    pub table: Arc<NodeTable>,
    /// The hash of its records as the controller has them.
    pub records_hash: SetHash,
    /// The hash of the node's own part, as the controller has it.
    pub own_hash: SetHash,
    /// Trigger times of its changes, in milliseconds of Unix time; empty for a snapshot.
    pub trigger_times_ms: Vec<u64>,
    /// All refusals, of this Commit and earlier ones, in order of the keys; first, without a key, those
    /// of the node's facts.
    pub refused: Vec<v1::Refusal>,
}

/// Reason of a dropped transition. The table stays as it was, and the next must be a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum StagingError {
    /// The staged table differs from the one that was sent.
    #[error("{part} of revision {revision} have hash {got}, not {stated}")]
    Mismatch {
        /// The part of the table.
        part: &'static str,
        /// The Commit's revision.
        revision: u64,
        /// The hash in the Commit.
        stated: SetHash,
        /// The hash of the staged table.
        got: SetHash,
    },
    /// The Commit has no hash.
    #[error("Commit: {0}")]
    Commit(#[from] DecodeError),
    /// A patch that does not apply to the staged table.
    #[error("patch of {record}: {error}")]
    Patch {
        /// The record's namespace, Service and port.
        record: String,
        /// Reason.
        error: PatchError,
    },
    /// Compressed records that cannot be read.
    #[error(transparent)]
    Compressed(#[from] InflateError),
    /// A record or key among compressed ones that cannot be read.
    #[error("compressed records: {0}")]
    Unreadable(#[from] prost::DecodeError),
    /// An impossible number of buckets, or two numbers in one transition.
    #[error("bucket_count: {0} cannot be, or buckets beyond it")]
    Buckets(u32),
}

impl Staging {
    /// No table yet.
    #[must_use]
    pub fn new(cluster: &str, node: &str) -> Self {
        Self {
            cluster: cluster.into(),
            name: node.into(),
            table: Arc::default(),
            records: TablePart::default(),
            lists: TablePart::default(),
            node: Node::default(),
            staged_node: None,
            epoch: 0,
            position: None,
            source_versions: Vec::new(),
        }
    }

    /// Begins a stream: drops frames of the last one that no Commit followed. Adds the state of the
    /// table to Hello.
    pub fn begin(&mut self, hello: v1::Hello) -> v1::Hello {
        self.drop_staged();
        // Also without a good table: no controller may be older.
        let hello = v1::Hello {
            source_versions: self.source_versions.clone(),
            ..hello
        };
        let Some((epoch, revision)) = self.position else {
            return hello;
        };
        v1::Hello {
            epoch,
            revision,
            records_hash: self.records.hash().to_bytes().into(),
            own_hash: self.own_hash().to_bytes().into(),
            ..hello
        }
    }

    /// Forgets the source versions of the last controller, whose source has been restored to an
    /// earlier state. Returns whether there were any.
    pub fn forget_source_versions(&mut self) -> bool {
        !std::mem::take(&mut self.source_versions).is_empty()
    }

    /// Takes the next frame.
    ///
    /// # Errors
    /// If it is a Commit that does not fit the frames before it, or a change of something that is
    /// missing. A new stream must be begun.
    pub fn take_frame(&mut self, frame: v1::Frame) -> Result<Taken, StagingError> {
        let result = self.stage(frame);
        if result.is_err() {
            self.position = None;
            self.drop_staged();
        }
        result
    }

    fn stage(&mut self, frame: v1::Frame) -> Result<Taken, StagingError> {
        match frame.frame {
            None => return Ok(Taken::Unknown),
            Some(Frame::Welcome(welcome)) => {
                self.epoch = welcome.epoch;
                return Ok(Taken::Welcome(welcome));
            }
            Some(Frame::Goaway(goaway)) => return Ok(Taken::Goaway(goaway)),
            Some(Frame::AskBuckets(ask)) => return self.answer(ask).map(Taken::Asked),
            Some(Frame::Confirm(confirm)) => return Ok(Taken::Confirmed(confirm)),
            // For relays: another node's overlay, and the answer to their question.
            Some(Frame::Own(own)) if !own.of_node.is_empty() => return Ok(Taken::Unknown),
            Some(Frame::Versions(_)) => return Ok(Taken::Unknown),
            Some(Frame::Records(records)) => self.stage_records(records)?,
            Some(Frame::Compressed(compressed)) => self.stage_compressed(&compressed)?,
            Some(Frame::Own(own)) => self.stage_own(own),
            Some(Frame::Commit(commit)) => return self.commit(commit).map(Taken::Committed),
        }
        Ok(Taken::Staged)
    }

    fn answer(&self, ask: v1::AskBuckets) -> Result<v1::Buckets, StagingError> {
        if !is_bucket_count(ask.count) {
            return Err(StagingError::Buckets(ask.count));
        }
        let hashes = bucket_hashes(self.records.hashes(), ask.count);
        Ok(v1::Buckets { hashes })
    }

    fn stage_records(&mut self, records: v1::Records) -> Result<(), StagingError> {
        for message in records.put {
            self.stage_record(message);
        }
        for key in records.delete {
            self.records.delete(key);
        }
        self.replace_buckets(&records.replace_buckets, records.bucket_count)?;
        records.patch.iter().try_for_each(|p| self.stage_patch(p))
    }

    fn stage_compressed(&mut self, compressed: &[u8]) -> Result<(), StagingError> {
        let records = inflate(compressed)?;
        for bytes in records.put {
            self.stage_record(v1::Record::decode(bytes)?);
        }
        for bytes in records.delete {
            let key = v1::RecordKey::decode(bytes)?;
            self.records.delete(key);
        }
        self.replace_buckets(&records.replace_buckets, records.bucket_count)?;
        for bytes in records.patch {
            self.stage_patch(&v1::RecordPatch::decode(bytes)?)?;
        }
        Ok(())
    }

    fn replace_buckets(&mut self, buckets: &[u32], count: u32) -> Result<(), StagingError> {
        let known = self.records.replace_buckets(buckets, count);
        known.then_some(()).ok_or(StagingError::Buckets(count))
    }

    fn stage_record(&mut self, message: v1::Record) {
        let decoded = decode_record(&message, &self.cluster).map(|decoded| Decoded {
            key: decoded.record.key.clone(),
            value: Arc::new(decoded.record),
            left_out: decoded.left_out.join("; "),
        });
        self.records.put(message.key, &message.hash, decoded);
    }

    fn stage_patch(&mut self, patch: &v1::RecordPatch) -> Result<(), StagingError> {
        let records = &mut self.records;
        let patched = records.patch(patch, &self.table.records, &self.cluster);
        patched.map_err(|error| {
            let key = patch.key.clone().unwrap_or_default();
            StagingError::Patch {
                record: format!("{}/{}:{}", key.namespace, key.service, key.port),
                error,
            }
        })
    }

    fn stage_own(&mut self, own: v1::Own) {
        if own.replace {
            self.lists.replace_all();
            self.staged_node.get_or_insert_default();
        }
        for message in own.put {
            let decoded = decode_lists(&message, &self.cluster).map(|decoded| Decoded {
                key: decoded.key,
                value: Arc::new(decoded.lists),
                left_out: String::new(),
            });
            self.lists.put(message.key, &message.hash, decoded);
        }
        for key in own.delete {
            self.lists.delete(key);
        }
        if let Some(node) = own.node {
            self.staged_node = Some(StagedNode::new(&node, &self.name));
        }
    }

    fn drop_staged(&mut self) {
        self.records.drop_staged();
        self.lists.drop_staged();
        self.staged_node = None;
    }

    fn own_hash(&self) -> SetHash {
        own_hash(self.lists.hash(), self.node.hash)
    }
}

fn own_hash(mut lists: SetHash, node: ContentHash) -> SetHash {
    lists.insert(node);
    lists
}

#[cfg(test)]
mod tests;
