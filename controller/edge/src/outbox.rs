// SPDX-License-Identifier: Apache-2.0

//! Objects of the cluster for the centre, and which of them it lacks.
//!
//! Its size is that of the cluster, however long the centre is away: an object that changes again replaces itself.

use std::collections::BTreeSet;

use portolan_catalog::{Kind, ObjectChange, ObjectRef};
use portolan_proto::v1;
use prost::Message as _;
use prost::bytes::Bytes;

use crate::ledger::{BadHashes, Entry, Ledger, bucket_of};
use crate::wire;

/// The objects of a cluster.
#[derive(Debug, Default)]
pub struct Outbox {
    ledger: Ledger,
    /// Objects that changed, or are gone, since the last transition.
    dirty: BTreeSet<v1::ObjectId>,
    /// Buckets that the next transition replaces; `None` if it is no listing.
    replaced: Option<BTreeSet<u32>>,
    versions: [u64; 3],
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
    pub fn apply(&mut self, change: &ObjectChange) {
        match change {
            ObjectChange::Put { object, .. } => {
                let Some(message) = wire::encode(object) else {
                    return;
                };
                let Some(id) = message.id.clone() else { return };
                let entry = Entry::new(message.encode_to_vec().into(), 0);
                if self.ledger.put(id.clone(), entry) {
                    self.dirty.insert(id);
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
                    _ => return,
                };
                if let Some(known) = self.versions.get_mut(place) {
                    *known = *version;
                }
            }
            ObjectChange::Refused { .. }
            | ObjectChange::Problems { .. }
            | ObjectChange::LoadBalancers { .. } => {}
        }
    }

    fn delete(&mut self, object: &ObjectRef) {
        let Some(id) = wire::encode_id(object.kind, &object.key) else {
            return;
        };
        if self.ledger.remove(&id) {
            self.dirty.insert(id);
        }
    }

    fn retain(&mut self, kind: Kind, keeps: impl Fn(&v1::ObjectId) -> bool) {
        let Some(kind) = wire::encode_kind(kind) else {
            return;
        };
        let objects = self.ledger.iter().map(|(id, _)| id);
        let of_kind = objects.filter(|id| id.kind() == kind && !keeps(id));
        for id in of_kind.cloned().collect::<Vec<_>>() {
            self.ledger.remove(&id);
            self.dirty.insert(id);
        }
    }

    /// Begins a stream: the next transition makes the centre, which has buckets of these hashes, equal.
    ///
    /// # Errors
    /// If these are no hashes of buckets.
    pub fn begin(&mut self, bucket_hashes: &[u8]) -> Result<(), BadHashes> {
        let (count, differing) = self.ledger.differing(bucket_hashes)?;
        let objects = self.ledger.iter().map(|(id, _)| id);
        let lacking = objects.filter(|id| differing.contains(&bucket_of(id, count)));
        self.dirty = lacking.cloned().collect();
        self.replaced = Some(differing);
        self.number = 0;
        Ok(())
    }

    /// The next transition; `None` if the centre has been sent all.
    pub fn take(&mut self) -> Option<Transition> {
        let listing = self.replaced.take();
        if self.dirty.is_empty() && listing.is_none() {
            return None;
        }
        self.number += 1;
        let commit = v1::EdgeCommit {
            number: self.number,
            listing: listing.is_some(),
            hash: self.ledger.total().to_bytes().into(),
            source_versions: match self.versions {
                [0, 0, 0] => Vec::new(),
                versions => versions.into(),
            },
        };
        let (mut put, mut delete) = (Vec::new(), Vec::new());
        for id in std::mem::take(&mut self.dirty) {
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
