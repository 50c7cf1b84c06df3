//! A compacted log: each key once, at its newest value or as a tombstone, in order of change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use portolan_model::{ByRecord, RecordKey, SetHash};
use portolan_proto::convert::encode_key;
use portolan_proto::encoded::{encode, size_in_frame};
use prost::bytes::Bytes;

use super::Changes;
use super::prepared::Item;

/// Values by key, with what changed when.
#[derive(Debug)]
pub(crate) struct Journal<T> {
    live: BTreeMap<RecordKey, (u64, Item<T>)>,
    gone: BTreeMap<RecordKey, u64>,
    /// The keys of `live` and of `gone` by the revision that they last changed in.
    puts: ByRevision,
    deletes: ByRevision,
    /// Tombstones of this revision and older may be dropped already: who has an older revision
    /// cannot be told what is gone since.
    floor: u64,
    hash: SetHash,
    /// How long all values are in frames.
    bytes: usize,
}

impl<T> Journal<T> {
    /// An empty journal that knows nothing of what was before the revision `floor`.
    pub(super) fn new(floor: u64) -> Self {
        Self {
            live: BTreeMap::new(),
            gone: BTreeMap::new(),
            puts: ByRevision::default(),
            deletes: ByRevision::default(),
            floor,
            hash: SetHash::default(),
            bytes: 0,
        }
    }

    /// Sets or removes a value, and returns the one that was there before; `None` if that changed
    /// nothing. Revisions must not decrease.
    pub(super) fn put(
        &mut self,
        revision: u64,
        key: RecordKey,
        item: Option<Item<T>>,
    ) -> Option<Replaced<T>> {
        let old = self.live.get(&key).map(|(_, item)| item.hash);
        if old == item.as_ref().map(|item| item.hash) {
            return None;
        }
        let old = self.forget(&key);
        match item {
            Some(item) => {
                self.hash.insert(item.hash);
                self.bytes += size_in_frame(&item.encoded);
                self.puts.insert(revision, key.clone());
                self.live.insert(key, (revision, item));
            }
            None => {
                self.deletes.insert(revision, key.clone());
                self.gone.insert(key, revision);
            }
        }
        Some(Replaced(old))
    }

    fn forget(&mut self, key: &RecordKey) -> Option<Item<T>> {
        if let Some(revision) = self.gone.remove(key) {
            self.deletes.remove(revision, key);
        }
        let (revision, item) = self.live.remove(key)?;
        self.hash.remove(item.hash);
        self.bytes -= size_in_frame(&item.encoded);
        self.puts.remove(revision, key);
        Some(item)
    }

    /// Drops the oldest tombstones while there are more than `min` and more than live values:
    /// then a snapshot is no dearer than telling what is gone.
    pub(super) fn compact(&mut self, min: usize) {
        while self.gone.len() > min.max(self.live.len()) {
            let Some((revision, keys)) = self.deletes.0.pop_first() else {
                return;
            };
            self.floor = revision;
            for key in &keys {
                self.gone.remove(key);
            }
        }
    }

    /// What changed after `cursor`, each key once; `None` if that is not known any more.
    pub(crate) fn since(&self, cursor: u64) -> Option<Changes> {
        if cursor < self.floor {
            return None;
        }
        let put = self.puts.after(cursor).filter_map(|key| {
            let (_, item) = self.live.get(key)?;
            Some(item.encoded.clone())
        });
        Some(Changes {
            put: put.collect(),
            delete: self.deletes.after(cursor).map(encoded_key).collect(),
            patch: Vec::new(),
        })
    }

    /// The keys of what changed after `cursor`; `None` if that is not known any more.
    pub(crate) fn changed_since(&self, cursor: u64) -> Option<impl Iterator<Item = &RecordKey>> {
        let known = cursor >= self.floor;
        known.then(|| self.puts.after(cursor).chain(self.deletes.after(cursor)))
    }

    /// All values, in order of their keys.
    pub(crate) fn all(&self) -> Changes {
        Changes {
            put: self.iter().map(|(_, item)| item.encoded.clone()).collect(),
            ..Changes::default()
        }
    }

    /// All values with their keys, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RecordKey, &Item<T>)> {
        self.live.iter().map(|(key, (_, item))| (key, item))
    }

    /// The values from `first` on, before `end`, in order of their keys.
    pub(crate) fn range(
        &self,
        first: Bound<&RecordKey>,
        end: Bound<&RecordKey>,
    ) -> impl Iterator<Item = (&RecordKey, &Item<T>)> {
        let range = self.live.range::<RecordKey, _>((first, end));
        range.map(|(key, (_, item))| (key, item))
    }

    pub(crate) fn get(&self, key: &RecordKey) -> Option<&Item<T>> {
        self.live.get(key).map(|(_, item)| item)
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    /// How long all values are in frames, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn values(&self) -> ByRecord<T> {
        let live = self.live.iter();
        live.map(|(key, (_, item))| (key.clone(), Arc::clone(&item.value)))
            .collect()
    }

    /// The sum of the hashes of all values.
    pub(crate) fn hash(&self) -> SetHash {
        self.hash
    }

    /// Whether there are no values; there may be tombstones.
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    #[cfg(test)]
    pub(super) fn tombstones(&self) -> usize {
        self.gone.len()
    }
}

/// What was there before a change.
#[derive(Debug)]
pub(super) struct Replaced<T>(pub(super) Option<Item<T>>);

fn encoded_key(key: &RecordKey) -> Bytes {
    encode(&encode_key(key))
}

/// Keys by revision.
#[derive(Debug, Default)]
struct ByRevision(BTreeMap<u64, BTreeSet<RecordKey>>);

impl ByRevision {
    fn insert(&mut self, revision: u64, key: RecordKey) {
        self.0.entry(revision).or_default().insert(key);
    }

    fn remove(&mut self, revision: u64, key: &RecordKey) {
        if let Some(keys) = self.0.get_mut(&revision) {
            keys.remove(key);
            if keys.is_empty() {
                self.0.remove(&revision);
            }
        }
    }

    fn after(&self, cursor: u64) -> impl Iterator<Item = &RecordKey> {
        self.0
            .range((Bound::Excluded(cursor), Bound::Unbounded))
            .flat_map(|(_, keys)| keys)
    }
}
