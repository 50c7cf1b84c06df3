//! Frames to tables: stages what comes, and swaps at a Commit whose hashes fit.
//!
//! Pure: no I/O, no clock. The hashes are the controller's: they tell whether all that was sent has
//! arrived, also of what this version could not take.

mod part;

use std::sync::Arc;

use portolan_model::{NodeInfo, NodeLists, NodeTable, Record, SetHash};
use portolan_proto::convert::{
    DecodeError, decode_lists, decode_node, decode_record, decode_set_hash,
};
use portolan_proto::v1;
use portolan_proto::v1::frame::Frame;

use part::{Decoded, Part};

/// A node's table, and what is to become of it.
#[derive(Debug)]
pub struct Staging {
    cluster: Arc<str>,
    table: Arc<NodeTable>,
    records: Part<Record>,
    lists: Part<NodeLists>,
    staged_node: Option<v1::NodeInfo>,
    /// Of the stream that frames come from.
    epoch: u64,
    /// The epoch and revision of the last good Commit; `None` if the next must be a snapshot.
    position: Option<(u64, u64)>,
}

/// What a frame was.
#[derive(Debug)]
pub enum Taken {
    /// The stream's first frame.
    Welcome,
    /// Part of a transition.
    Staged,
    /// The end of one.
    Committed(Committed),
    /// The controller is about to stop.
    Goaway(v1::Goaway),
    /// A kind that this version does not know; ignored.
    Unknown,
}

/// A table that is whole.
#[derive(Debug, Clone)]
pub struct Committed {
    /// The epoch of the controller that sent it.
    pub epoch: u64,
    /// Its revision.
    pub revision: u64,
    /// Whether it was sent whole.
    pub snapshot: bool,
    /// The table; the same `Arc` as before if nothing changed.
    pub table: Arc<NodeTable>,
    /// The hash of its records as the controller has them.
    pub records_hash: SetHash,
    /// The hash of what is the node's own, as the controller has it.
    pub own_hash: SetHash,
    /// All that could not be taken, of this Commit and earlier ones, in order of the keys.
    pub refused: Vec<v1::Refusal>,
}

/// Why a Commit was dropped. The table stays as it was, and the next must come whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StagingError {
    /// What was staged is not what was sent.
    #[error("{part} of revision {revision} have hash {got}, not {stated}")]
    Mismatch {
        /// Which part of the table.
        part: &'static str,
        /// The Commit's revision.
        revision: u64,
        /// What the Commit says.
        stated: SetHash,
        /// What we have.
        got: SetHash,
    },
    /// The Commit has no hash.
    #[error("Commit: {0}")]
    Commit(#[from] DecodeError),
}

impl Staging {
    /// No table yet.
    #[must_use]
    pub fn new(cluster: &str) -> Self {
        Self {
            cluster: cluster.into(),
            table: Arc::default(),
            records: Part::default(),
            lists: Part::default(),
            staged_node: None,
            epoch: 0,
            position: None,
        }
    }

    /// Begins a stream: drops what the last one left without a Commit, and says what to say in
    /// Hello of what there is.
    pub fn begin(&mut self, hello: v1::Hello) -> v1::Hello {
        self.drop_staged();
        let Some((epoch, revision)) = self.position else {
            return hello;
        };
        v1::Hello {
            epoch,
            revision,
            records_hash: self.records.hash().to_bytes().into(),
            own_hash: own_hash(self.lists.hash(), &self.table.node)
                .to_bytes()
                .into(),
            ..hello
        }
    }

    /// Takes the next frame.
    ///
    /// # Errors
    /// If it is a Commit that does not fit what came before it. A new stream must be begun.
    pub fn take(&mut self, frame: v1::Frame) -> Result<Taken, StagingError> {
        match frame.frame {
            None | Some(Frame::Compressed(_) | Frame::AskBuckets(_) | Frame::Confirm(_)) => {
                return Ok(Taken::Unknown);
            }
            Some(Frame::Welcome(welcome)) => {
                self.epoch = welcome.epoch;
                return Ok(Taken::Welcome);
            }
            Some(Frame::Goaway(goaway)) => return Ok(Taken::Goaway(goaway)),
            Some(Frame::Records(records)) => self.stage_records(records),
            Some(Frame::Own(own)) => self.stage_own(own),
            Some(Frame::Commit(commit)) => {
                let result = self.commit(&commit);
                if result.is_err() {
                    self.position = None;
                }
                self.drop_staged();
                return result.map(Taken::Committed);
            }
        }
        Ok(Taken::Staged)
    }

    fn stage_records(&mut self, records: v1::Records) {
        for message in records.put {
            let decoded = decode_record(&message, &self.cluster).map(|decoded| Decoded {
                key: decoded.record.key.clone(),
                value: Arc::new(decoded.record),
                left_out: decoded.left_out,
            });
            self.records.put(message.key, &message.hash, decoded);
        }
        for key in records.delete {
            self.records.delete(key);
        }
    }

    fn stage_own(&mut self, own: v1::Own) {
        for message in own.put {
            let decoded = decode_lists(&message, &self.cluster).map(|decoded| Decoded {
                key: decoded.key,
                value: Arc::new(decoded.lists),
                left_out: Vec::new(),
            });
            self.lists.put(message.key, &message.hash, decoded);
        }
        for key in own.delete {
            self.lists.delete(key);
        }
        if let Some(node) = own.node {
            self.staged_node = Some(node);
        }
    }

    fn drop_staged(&mut self) {
        self.records.drop_staged();
        self.lists.drop_staged();
        self.staged_node = None;
    }

    fn commit(&mut self, commit: &v1::Commit) -> Result<Committed, StagingError> {
        let snapshot = commit.snapshot;
        let node = match &self.staged_node {
            Some(node) => decode_node(node)?,
            None if snapshot => NodeInfo::default(),
            None => self.table.node.clone(),
        };
        let records_hash = decode_set_hash("records_hash", &commit.records_hash)?;
        let own_stated = decode_set_hash("own_hash", &commit.own_hash)?;
        let revision = commit.revision;
        let fits = |part, stated, got| {
            (stated == got).then_some(()).ok_or(StagingError::Mismatch {
                part,
                revision,
                stated,
                got,
            })
        };
        fits("records", records_hash, self.records.hash_after(snapshot))?;
        let own_got = own_hash(self.lists.hash_after(snapshot), &node);
        fits("the node's own", own_stated, own_got)?;
        if snapshot || self.has_staged() {
            self.swap(snapshot, node);
        }
        self.position = Some((self.epoch, revision));
        Ok(Committed {
            epoch: self.epoch,
            revision,
            snapshot,
            table: Arc::clone(&self.table),
            records_hash,
            own_hash: own_stated,
            refused: self.refused(),
        })
    }

    fn has_staged(&self) -> bool {
        self.records.has_staged() || self.lists.has_staged() || self.staged_node.is_some()
    }

    fn swap(&mut self, snapshot: bool, node: NodeInfo) {
        // Clones the maps, not what is in them, while someone else has the last table.
        let table = Arc::make_mut(&mut self.table);
        table.node = node;
        self.records
            .commit(snapshot, &mut table.records, &self.cluster);
        self.lists.commit(snapshot, &mut table.lists, &self.cluster);
    }

    fn refused(&self) -> Vec<v1::Refusal> {
        let records = self.records.problems().map(|(key, why)| (key, why.clone()));
        let lists = self.lists.problems();
        let lists = lists.map(|(key, why)| (key, format!("the node's own lists: {why}")));
        records
            .chain(lists)
            .map(|(key, reason)| v1::Refusal {
                key: Some(key.clone()),
                reason,
            })
            .collect()
    }
}

fn own_hash(mut lists: SetHash, node: &NodeInfo) -> SetHash {
    lists.insert(node.content_hash());
    lists
}

#[cfg(test)]
mod tests;
