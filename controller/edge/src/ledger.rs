// SPDX-License-Identifier: Apache-2.0

//! Encoded objects with their hashes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::{ContentHash, SetHash};
use portolan_proto::buckets::{bucket_count, is_bucket_count, short};
use portolan_proto::v1;
use prost::bytes::Bytes;

/// The most objects of a bucket, on average, up to the greatest number of buckets. A stream that begins again costs 8 bytes for each bucket, and all objects of a
/// bucket for each one that differs.
const OBJECTS_PER_BUCKET: usize = 16;

/// Keep these hashes apart from each other, and from any other use of BLAKE3.
const OBJECT_KEY: &[u8; 32] = b"portolan.v1 cluster object (key)";
const BUCKET_KEY: &[u8; 32] = b"portolan.v1 object bucket (keyed";

/// Hashes of buckets whose number is not a power of two, or too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("welcome.bucket_hashes: {0} bytes are no power of two of buckets")]
pub struct BadHashes(usize);

/// The id of an object, or of a plan.
pub(crate) trait Id: prost::Message + Ord + Clone {}

impl Id for v1::ObjectId {}
impl Id for v1::PlanId {}

/// Objects by their ids. Ledgers that have the same objects share them.
#[derive(Debug, Clone)]
pub(crate) struct Ledger<I = v1::ObjectId> {
    objects: BTreeMap<Arc<I>, Arc<Entry>>,
    total: SetHash,
    bytes: usize,
    endpoints: usize,
}

impl<I> Default for Ledger<I> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            total: SetHash::default(),
            bytes: 0,
            endpoints: 0,
        }
    }
}

/// An object as it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) bytes: Bytes,
    pub(crate) hash: ContentHash,
    /// Number of its endpoints.
    pub(crate) endpoints: usize,
}

impl Entry {
    pub(crate) fn new(bytes: Bytes, endpoints: usize) -> Self {
        Self::keyed(OBJECT_KEY, bytes, endpoints)
    }

    /// An entry with a hash of another use.
    pub(crate) fn keyed(key: &[u8; 32], bytes: Bytes, endpoints: usize) -> Self {
        let hash = blake3::keyed_hash(key, &bytes);
        let mut first = [0; 16];
        let (half, _) = hash.as_bytes().split_at(16);
        first.copy_from_slice(half);
        Self {
            bytes,
            hash: ContentHash(u128::from_be_bytes(first)),
            endpoints,
        }
    }
}

/// The sums of a ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) objects: usize,
    pub(crate) bytes: usize,
    pub(crate) endpoints: usize,
    pub(crate) hash: SetHash,
}

impl<I: Id> Ledger<I> {
    /// The sums of all objects after changes, `None` for an object that is gone.
    pub(crate) fn sums_with<'e>(
        &self,
        changes: impl Iterator<Item = (&'e I, Option<&'e Entry>)>,
    ) -> Sums
    where
        I: 'e,
    {
        let mut sums = Sums {
            objects: self.objects.len(),
            bytes: self.bytes,
            endpoints: self.endpoints,
            hash: self.total,
        };
        for (id, entry) in changes {
            if let Some(old) = self.get(id) {
                sums.objects -= 1;
                sums.bytes -= old.bytes.len();
                sums.endpoints -= old.endpoints;
                sums.hash.remove(old.hash);
            }
            if let Some(entry) = entry {
                sums.objects += 1;
                sums.bytes += entry.bytes.len();
                sums.endpoints += entry.endpoints;
                sums.hash.insert(entry.hash);
            }
        }
        sums
    }

    pub(crate) fn get(&self, id: &I) -> Option<&Entry> {
        self.objects.get(id).map(|entry| &**entry)
    }

    /// Puts an object. Returns whether that changed anything.
    pub(crate) fn put(&mut self, id: impl Into<Arc<I>>, entry: impl Into<Arc<Entry>>) -> bool {
        let (id, entry) = (id.into(), entry.into());
        let hash = entry.hash;
        self.endpoints += entry.endpoints;
        self.bytes += entry.bytes.len();
        let old = self.objects.insert(id, entry);
        if let Some(old) = &old {
            self.total.remove(old.hash);
            self.endpoints -= old.endpoints;
            self.bytes -= old.bytes.len();
        }
        self.total.insert(hash);
        old.is_none_or(|old| old.hash != hash)
    }

    pub(crate) fn remove(&mut self, id: &I) -> bool {
        let Some(old) = self.objects.remove(id) else {
            return false;
        };
        self.total.remove(old.hash);
        self.endpoints -= old.endpoints;
        self.bytes -= old.bytes.len();
        true
    }

    /// The hash of all objects.
    pub(crate) fn total(&self) -> SetHash {
        self.total
    }

    /// The number of objects, and of their endpoints.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.objects.len(), self.endpoints)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&I, &Entry)> {
        self.objects.iter().map(|(id, entry)| (&**id, &**entry))
    }

    /// The ids, to be kept.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &Arc<I>> {
        self.objects.keys()
    }

    /// The ids from one to another, both included, to be kept.
    pub(crate) fn ids_between(&self, first: &I, last: &I) -> Vec<Arc<I>> {
        let ids = self.objects.range::<I, _>(first..=last);
        ids.map(|(id, _)| Arc::clone(id)).collect()
    }

    /// The number of buckets for the objects.
    pub(crate) fn bucket_count(&self) -> u32 {
        bucket_count(self.objects.len().div_ceil(OBJECTS_PER_BUCKET))
    }

    /// The ids in some of `count` buckets. Most transitions replace no bucket: they cost no hash of each id.
    pub(crate) fn in_buckets(&self, buckets: &BTreeSet<u32>, count: u32) -> Vec<I> {
        if buckets.is_empty() {
            return Vec::new();
        }
        let ids = self.objects.keys().map(|id| &**id);
        let ids = ids.filter(|id| buckets.contains(&bucket_of(*id, count)));
        ids.cloned().collect()
    }

    /// The hashes of `count` buckets, 8 bytes each.
    pub(crate) fn bucket_hashes(&self, count: u32) -> Vec<u8> {
        let mut sums = vec![SetHash::default(); count as usize];
        for (id, entry) in &self.objects {
            if let Some(sum) = sums.get_mut(bucket_of(&**id, count) as usize) {
                sum.insert(entry.hash);
            }
        }
        sums.into_iter().flat_map(short).collect()
    }

    /// The number of buckets of the other side, and those whose hashes differ from its own.
    pub(crate) fn differing(&self, theirs: &[u8]) -> Result<(u32, BTreeSet<u32>), BadHashes> {
        let bad = BadHashes(theirs.len());
        let count = u32::try_from(theirs.len() / 8).map_err(|_| bad)?;
        if !theirs.len().is_multiple_of(8) || !is_bucket_count(count) {
            return Err(bad);
        }
        let ours = self.bucket_hashes(count);
        let pairs = (0..count).zip(ours.chunks(8).zip(theirs.chunks(8)));
        let differing = pairs.filter(|(_, (ours, theirs))| ours != theirs);
        Ok((count, differing.map(|(bucket, _)| bucket).collect()))
    }
}

#[cfg(test)]
thread_local! {
    /// The number of ids that this thread has hashed.
    pub(crate) static HASHED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The bucket of an object.
pub(crate) fn bucket_of<I: Id>(id: &I, count: u32) -> u32 {
    #[cfg(test)]
    HASHED.set(HASHED.get() + 1);
    let hash = blake3::keyed_hash(BUCKET_KEY, &id.encode_to_vec());
    let [first, second, ..] = *hash.as_bytes();
    u32::from(u16::from_be_bytes([first, second])) % count.max(1)
}
