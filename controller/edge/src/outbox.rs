// SPDX-License-Identifier: Apache-2.0

//! Objects of the cluster for the replicas of the centre, and which of them each lacks.
//!
//! Its size is that of the cluster, however long a replica is away: an object that changes again replaces itself, and
//! nothing is kept for a replica without a stream.

use std::collections::{BTreeMap, BTreeSet};

use portolan_catalog::{Kind, ObjectChange, ObjectRef};
use portolan_proto::v1;
use prost::Message as _;
use prost::bytes::Bytes;

use crate::ledger::{BadHashes, Entry, Ledger, bucket_of};
use crate::split::Split;
use crate::wire;

/// The largest object that is sent, in bytes. A full `EndpointSlice` of Kubernetes, with 1,000 endpoints, has about a
/// tenth of it.
pub const MAX_OBJECT_BYTES: usize = 1 << 20;

/// An object that is too large to be sent. The centre keeps its last version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {bytes} bytes, and the centre takes {MAX_OBJECT_BYTES}")]
pub struct TooLarge {
    /// The object.
    pub object: ObjectRef,
    /// Its encoded size.
    pub bytes: usize,
}

/// The objects of a cluster.
#[derive(Debug, Default)]
pub struct Outbox {
    ledger: Ledger,
    versions: [u64; 3],
    streams: BTreeMap<StreamId, Cursor>,
    next: u64,
}

/// An open stream to a replica of the centre.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(u64);

impl StreamId {
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }
}

/// Changes that one stream has not been sent.
#[derive(Debug)]
struct Cursor {
    /// Objects that changed, or are gone, since the last transition.
    dirty: BTreeSet<v1::ObjectId>,
    /// Buckets that the next transition replaces; `None` if it is no listing.
    replaced: Option<BTreeSet<u32>>,
    number: u64,
}

/// Changes up to one commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// Encoded objects.
    pub put: Vec<Bytes>,
    /// Objects that are gone.
    pub delete: Vec<v1::ObjectId>,
    /// Buckets that lose what is not put.
    pub replace_buckets: Vec<u32>,
    /// The end.
    pub commit: v1::EdgeCommit,
}

impl Outbox {
    /// Takes in a change of the source. Problems are told by the edge itself; an object that cannot be read stays
    /// as it was.
    ///
    /// # Errors
    /// If an object is too large.
    pub fn apply(&mut self, change: &ObjectChange) -> Result<(), TooLarge> {
        match change {
            ObjectChange::Put { object, .. } => {
                let Some(message) = wire::encode(object) else {
                    return Ok(());
                };
                let Some(id) = message.id.clone() else {
                    return Ok(());
                };
                let bytes = message.encoded_len();
                if bytes > MAX_OBJECT_BYTES {
                    let object = object.reference();
                    return Err(TooLarge { object, bytes });
                }
                let entry = Entry::new(message.encode_to_vec().into(), 0);
                if self.ledger.put(id.clone(), entry) {
                    self.changed(&id);
                }
            }
            ObjectChange::Delete(object) => self.delete(object),
            ObjectChange::Retain { kind, keep, .. } => {
                let keys = keep.iter().map(|key| (&*key.namespace, &*key.name));
                let keep: BTreeSet<_> = keys.collect();
                self.retain(*kind, |id| keep.contains(&(&*id.namespace, &*id.name)));
            }
            ObjectChange::Reached { kind, version, .. } => {
                let place = match kind {
                    Kind::Service => 0,
                    Kind::EndpointSlice => 1,
                    Kind::Node => 2,
                    _ => return Ok(()),
                };
                if let Some(known) = self.versions.get_mut(place) {
                    *known = *version;
                }
            }
            ObjectChange::Refused { .. }
            | ObjectChange::Problems { .. }
            | ObjectChange::LoadBalancers { .. } => {}
        }
        Ok(())
    }

    fn delete(&mut self, object: &ObjectRef) {
        let Some(id) = wire::encode_id(object.kind, &object.key) else {
            return;
        };
        self.remove(&id);
    }

    fn remove(&mut self, id: &v1::ObjectId) {
        if self.ledger.remove(id) {
            self.changed(id);
        }
    }

    fn changed(&mut self, id: &v1::ObjectId) {
        for cursor in self.streams.values_mut() {
            cursor.dirty.insert(id.clone());
        }
    }

    fn retain(&mut self, kind: Kind, keeps: impl Fn(&v1::ObjectId) -> bool) {
        let Some(kind) = wire::encode_kind(kind) else {
            return;
        };
        let objects = self.ledger.iter().map(|(id, _)| id);
        let of_kind = objects.filter(|id| id.kind() == kind && !keeps(id));
        for id in of_kind.cloned().collect::<Vec<_>>() {
            self.remove(&id);
        }
    }

    /// Begins a stream, which is to be ended: its first transition makes the replica, which has buckets of these
    /// hashes, equal.
    ///
    /// # Errors
    /// If these are no hashes of buckets.
    pub fn begin(&mut self, bucket_hashes: &[u8]) -> Result<StreamId, BadHashes> {
        let (count, differing) = self.ledger.differing(bucket_hashes)?;
        let objects = self.ledger.iter().map(|(id, _)| id);
        let lacking = objects.filter(|id| differing.contains(&bucket_of(*id, count)));
        let cursor = Cursor {
            dirty: lacking.cloned().collect(),
            replaced: Some(differing),
            number: 0,
        };
        self.next += 1;
        let stream = StreamId(self.next);
        self.streams.insert(stream, cursor);
        Ok(stream)
    }

    /// Ends a stream.
    pub fn end(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    /// The hash of all objects.
    #[cfg(test)]
    pub(crate) fn total(&self) -> portolan_model::SetHash {
        self.ledger.total()
    }

    /// Number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ledger.size().0
    }

    /// Returns `true` if there are no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next transition of a stream; `None` if it has been sent all, or has ended.
    pub fn take(&mut self, stream: StreamId) -> Option<Transition> {
        let cursor = self.streams.get_mut(&stream)?;
        let listing = cursor.replaced.take();
        if cursor.dirty.is_empty() && listing.is_none() {
            return None;
        }
        cursor.number += 1;
        let commit = v1::EdgeCommit {
            number: cursor.number,
            listing: listing.is_some(),
            hash: self.ledger.total().to_bytes().into(),
            source_versions: match self.versions {
                [0, 0, 0] => Vec::new(),
                versions => versions.into(),
            },
        };
        let (mut put, mut delete) = (Vec::new(), Vec::new());
        for id in std::mem::take(&mut cursor.dirty) {
            match self.ledger.get(&id) {
                Some(entry) => put.push(entry.bytes.clone()),
                None => delete.push(id),
            }
        }
        Some(Transition {
            put,
            delete,
            replace_buckets: listing.into_iter().flatten().collect(),
            commit,
        })
    }
}

impl Transition {
    /// The parts of the transition, each with about `bytes` bytes of objects, in order.
    pub fn into_parts(self, bytes: usize) -> (Vec<v1::EdgeObjects>, v1::EdgeCommit) {
        let first = v1::EdgeObjects {
            replace_buckets: self.replace_buckets,
            ..v1::EdgeObjects::default()
        };
        let mut parts = Split::new(first, bytes);
        for object in self.put {
            parts.add(object.len(), |part| part.put.push(object));
        }
        for id in self.delete {
            parts.add(id.encoded_len(), |part| part.delete.push(id));
        }
        (parts.finish(), self.commit)
    }
}
