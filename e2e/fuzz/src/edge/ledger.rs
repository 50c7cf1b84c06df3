// SPDX-License-Identifier: Apache-2.0

//! Hashes of messages by their ids, as the protocol describes them.

use std::collections::{BTreeMap, BTreeSet};

use portolan_proto::v1;
use prost::Message;
use prost::bytes::Bytes;

/// Keys of hashes: of objects, of work and of plans.
pub(super) const OBJECT_KEY: &[u8; 32] = b"portolan.v1 cluster object (key)";
pub(super) const ITEM_KEY: &[u8; 32] = b"portolan.v1 work of an edge(key)";
pub(super) const PLAN_KEY: &[u8; 32] = b"portolan.v1 plan of import (key)";
const BUCKET_KEY: &[u8; 32] = b"portolan.v1 object bucket (keyed";

/// A message with an id.
pub(super) trait Named: Message + Default {
    /// The encoded id.
    fn id(&self) -> Option<Vec<u8>>;
}

macro_rules! named {
    ($($message:ty),*) => {$(
        impl Named for $message {
            fn id(&self) -> Option<Vec<u8>> {
                Some(self.id.as_ref()?.encode_to_vec())
            }
        }
    )*};
}

named!(v1::ClusterObject, v1::WorkItem, v1::PlanItem);

/// The hashes of what was taken in, and of what waits for its commit.
#[derive(Debug)]
pub(super) struct Ledger {
    key: &'static [u8; 32],
    hashes: BTreeMap<Vec<u8>, u128>,
    staged: BTreeMap<Vec<u8>, Option<u128>>,
    replaced: BTreeSet<u32>,
    /// Number of buckets of the stream.
    buckets: u32,
}

impl Ledger {
    pub(super) fn new(key: &'static [u8; 32]) -> Self {
        Self {
            key,
            hashes: BTreeMap::new(),
            staged: BTreeMap::new(),
            replaced: BTreeSet::new(),
            buckets: 1,
        }
    }

    /// Begins a stream with hashes of buckets.
    pub(super) fn begin(&mut self, bucket_hashes: &[u8]) {
        self.drop_staged();
        self.buckets = u32::try_from(bucket_hashes.len() / 8).expect("some thousands");
    }

    /// Stages messages; those without an id end the stream.
    pub(super) fn stage<M: Named>(&mut self, put: &[Bytes]) {
        for bytes in put {
            let message = M::decode(&**bytes).ok();
            if let Some(id) = message.and_then(|message| message.id()) {
                self.staged.insert(id, Some(half(self.key, bytes)));
            }
        }
    }

    pub(super) fn delete(&mut self, ids: &[impl Message]) {
        for id in ids {
            self.staged.insert(id.encode_to_vec(), None);
        }
    }

    pub(super) fn replace(&mut self, buckets: &[u32]) {
        self.replaced.extend(buckets);
    }

    /// The sum of the hashes after the commit, as it is sent.
    pub(super) fn hash(&self) -> Vec<u8> {
        let after = self.after();
        let sum = after.values().copied().fold(0, u128::wrapping_add);
        sum.to_be_bytes().to_vec()
    }

    fn after(&self) -> BTreeMap<Vec<u8>, u128> {
        let mut after = self.hashes.clone();
        after.retain(|id, _| !self.replaced.contains(&self.bucket(id)));
        for (id, hash) in &self.staged {
            match hash {
                Some(hash) => _ = after.insert(id.clone(), *hash),
                None => _ = after.remove(id),
            }
        }
        after
    }

    fn bucket(&self, id: &[u8]) -> u32 {
        let hash = blake3::keyed_hash(BUCKET_KEY, id);
        let [first, second, ..] = *hash.as_bytes();
        u32::from(u16::from_be_bytes([first, second])) % self.buckets
    }

    pub(super) fn commit(&mut self) {
        self.hashes = self.after();
        self.drop_staged();
    }

    fn drop_staged(&mut self) {
        self.staged.clear();
        self.replaced.clear();
    }

    pub(super) fn clear(&mut self) {
        self.hashes.clear();
        self.drop_staged();
    }
}

/// The first half of a keyed hash.
fn half(key: &[u8; 32], bytes: &[u8]) -> u128 {
    let hash = blake3::keyed_hash(key, bytes);
    let mut first = [0; 16];
    first.copy_from_slice(&hash.as_bytes()[..16]);
    u128::from_be_bytes(first)
}
