// SPDX-License-Identifier: Apache-2.0

//! Objects that the centre has received of a cluster. Those before a commit are staged; the commit takes them in, or
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{Object, ObjectRef};
use portolan_proto::v1;
use prost::Message as _;

use crate::ledger::{Entry, Ledger};
use crate::wire::{self, WireError};

/// Bounds of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Objects of all kinds, staged ones too.
    pub objects: usize,
    /// Endpoints of all slices.
    pub endpoints: usize,
    /// Encoded bytes of all objects.
    pub bytes: usize,
    /// Bytes of all staged objects.
    pub staged_bytes: usize,
}

/// Reason why a stream of an edge ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// An object has no readable id, so that nobody knows which one it is.
    #[error("objects.put: {0}")]
    Object(String),
    /// There is too much of something.
    #[error("{what}: more than {most}, the bound of this cluster")]
    TooMany {
        /// Things that are bounded, as the message names them.
        what: &'static str,
        /// The bound.
        most: usize,
    },
    /// The objects are not those that the edge has.
    #[error("commit.hash: not that of the objects; all of them are asked for")]
    Mismatch,
    /// A bucket that there is not.
    #[error("objects.replace_buckets: {0} is out of range")]
    Bucket(u32),
    /// The first transition of a stream is no listing, or a later one is.
    #[error("commit.listing: the first transition of a stream must be a listing, and no other one")]
    Listing,
}

impl PartitionError {
    /// A label of metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Object(_) => "object",
            Self::TooMany { .. } => "quota",
            Self::Mismatch => "mismatch",
            Self::Bucket(_) => "bucket",
            Self::Listing => "listing",
        }
    }
}

/// The transition that a commit ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Received {
    /// Whether it began a stream.
    pub listing: bool,
    /// Objects that were put.
    pub put: Vec<Object>,
    /// Objects that cannot be read. Their last versions stay.
    pub refused: Vec<(ObjectRef, WireError)>,
    /// Objects that are gone.
    pub delete: Vec<ObjectRef>,
    /// Versions of the source.
    pub source_versions: Vec<u64>,
}

/// The objects of one cluster.
#[derive(Debug)]
pub struct Partition {
    cluster: Arc<str>,
    limits: Limits,
    ledger: Ledger,
    staged: Staged,
    /// Number of buckets of this stream.
    buckets: u32,
    /// Whether this stream has brought a listing.
    is_listed: bool,
}

/// Objects before their commit.
#[derive(Debug, Default)]
struct Staged {
    /// Those that are put, and those that are deleted.
    objects: BTreeMap<v1::ObjectId, Option<Entry>>,
    replaced: BTreeSet<u32>,
    bytes: usize,
}

impl Partition {
    /// A cluster without objects.
    #[must_use]
    pub fn new(cluster: Arc<str>, limits: Limits) -> Self {
        Self {
            cluster,
            limits,
            ledger: Ledger::default(),
            staged: Staged::default(),
            buckets: 1,
            is_listed: false,
        }
    }

    /// Begins a stream: an unfinished transition of the last one is dropped. Returns the hashes of what there is.
    pub fn begin(&mut self) -> Vec<u8> {
        self.staged = Staged::default();
        self.is_listed = false;
        self.buckets = self.ledger.bucket_count();
        self.ledger.bucket_hashes(self.buckets)
    }

    /// All objects of known kinds; with the error, those that cannot be read.
    pub fn objects(&self) -> impl Iterator<Item = Result<Object, (ObjectRef, WireError)>> + '_ {
        self.ledger.iter().filter_map(|(id, entry)| {
            let named = wire::decode_id(id, &self.cluster).ok().flatten()?;
            let message = v1::ClusterObject::decode(&*entry.bytes).ok()?;
            match wire::decode(&message, &self.cluster) {
                Ok(object) => object.map(Ok),
                Err(error) => Some(Err((named, error))),
            }
        })
    }

    /// Stages a part of a transition.
    ///
    /// # Errors
    /// If an object has no id, or there is too much. The stream is to be ended; nothing has changed.
    pub fn stage(&mut self, part: v1::EdgeObjects) -> Result<(), PartitionError> {
        for bytes in part.put {
            self.staged.bytes += bytes.len();
            let message = v1::ClusterObject::decode(&*bytes);
            let message = message.map_err(|error| PartitionError::Object(error.to_string()))?;
            let endpoints = match &message.object {
                Some(v1::cluster_object::Object::Slice(slice)) => slice.endpoints.len(),
                _ => 0,
            };
            let missing = || PartitionError::Object("id: missing".to_owned());
            let id = message.id.ok_or_else(missing)?;
            self.check(&id)?;
            let entry = Entry::new(bytes, endpoints);
            self.staged.objects.insert(id, Some(entry));
        }
        for id in part.delete {
            self.check(&id)?;
            self.staged.bytes += id.encoded_len();
            self.staged.objects.insert(id, None);
        }
        for bucket in part.replace_buckets {
            if bucket >= self.buckets {
                return Err(PartitionError::Bucket(bucket));
            }
            self.staged.replaced.insert(bucket);
        }
        let staged = self.staged.objects.len();
        bound("objects", staged, self.limits.objects)?;
        bound(
            "bytes before a commit",
            self.staged.bytes,
            self.limits.staged_bytes,
        )
    }

    /// Whether an id can be kept.
    fn check(&self, id: &v1::ObjectId) -> Result<(), PartitionError> {
        let decoded = wire::decode_id(id, &self.cluster);
        match decoded {
            Ok(_) => Ok(()),
            Err(error) => Err(PartitionError::Object(error.to_string())),
        }
    }

    /// Takes in what is staged.
    ///
    /// # Errors
    /// If that is not what the edge has, or too much. The stream is to be ended; nothing has changed but that after
    /// a mismatch the next stream brings everything.
    pub fn commit(&mut self, commit: &v1::EdgeCommit) -> Result<Received, PartitionError> {
        if self.is_listed == commit.listing {
            return Err(PartitionError::Listing);
        }
        let mut staged = std::mem::take(&mut self.staged);
        for id in self.ledger.in_buckets(&staged.replaced, self.buckets) {
            staged.objects.entry(id).or_insert(None);
        }
        let changes = staged.objects.iter();
        let changes = changes.map(|(id, entry)| (id, entry.as_ref()));
        let sums = self.ledger.sums_with(changes);
        if sums.hash.to_bytes().as_slice() != commit.hash {
            // The listing of the next stream replaces every bucket.
            self.ledger = Ledger::default();
            return Err(PartitionError::Mismatch);
        }
        bound("objects", sums.objects, self.limits.objects)?;
        bound("endpoints", sums.endpoints, self.limits.endpoints)?;
        bound("bytes", sums.bytes, self.limits.bytes)?;
        self.is_listed = true;
        let mut received = Received {
            listing: commit.listing,
            source_versions: commit.source_versions.clone(),
            ..Received::default()
        };
        for (id, entry) in staged.objects {
            self.take(id, entry, &mut received);
        }
        Ok(received)
    }

    /// Puts or deletes an object, and notes that if it is of a known kind.
    fn take(&mut self, id: v1::ObjectId, entry: Option<Entry>, received: &mut Received) {
        let named = wire::decode_id(&id, &self.cluster).ok().flatten();
        let Some(entry) = entry else {
            if self.ledger.remove(&id) {
                received.delete.extend(named);
            }
            return;
        };
        let message = v1::ClusterObject::decode(&*entry.bytes);
        if !self.ledger.put(id, entry) {
            return;
        }
        let (Ok(message), Some(named)) = (message, named) else {
            return;
        };
        match wire::decode(&message, &self.cluster) {
            Ok(object) => received.put.extend(object),
            Err(error) => received.refused.push((named, error)),
        }
    }
}

fn bound(what: &'static str, count: usize, most: usize) -> Result<(), PartitionError> {
    match count > most {
        true => Err(PartitionError::TooMany { what, most }),
        false => Ok(()),
    }
}
