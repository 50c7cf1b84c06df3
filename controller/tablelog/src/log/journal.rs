// SPDX-License-Identifier: Apache-2.0

//! A compacted log: each key once, with its newest value or a tombstone, in order of change.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use portolan_model::{ByRecord, RecordKey, SetHash};
use portolan_proto::convert::encode_key;
use portolan_proto::encoded::{encode, size_in_frame};
use prost::bytes::Bytes;

use super::Changes;
use super::order::{At, Order};
use super::prepared::Item;

/// The position of a key's last change, and its value; a tombstone has none.
type JournalEntry<T> = (At, Option<Item<T>>);

/// Values by key, with the order of their changes.
#[derive(Debug)]
pub(crate) struct Journal<T> {
    /// Values and tombstones, in one tree: a node has so few tombstones that most of the memory of
    /// a separate tree would be unused.
    entries: BTreeMap<RecordKey, JournalEntry<T>>,
    /// The number of tombstones.
    gone: usize,
    /// The keys of values; `deletes` has those of tombstones.
    puts: Order,
    deletes: Order,
    last: At,
    /// Tombstones of this revision and older may be dropped already: the deletions since an older
    /// revision are not known.
    floor: u64,
    hash: SetHash,
    /// The size of all values in frames, in bytes.
    bytes: usize,
}

impl<T> Journal<T> {
    /// An empty journal in which the changes up to the revision `floor` are not known.
    pub(super) fn new(floor: u64) -> Self {
        Self {
            entries: BTreeMap::new(),
            gone: 0,
            puts: Order::default(),
            deletes: Order::default(),
            last: At::START,
            floor,
            hash: SetHash::default(),
            bytes: 0,
        }
    }

    /// Sets or removes a value, and returns the replaced one; `None` if nothing changed. Revisions
    /// must not decrease.
    pub(super) fn put(
        &mut self,
        revision: u64,
        key: RecordKey,
        item: Option<Item<T>>,
    ) -> Option<Replaced<T>> {
        let old = self.get(&key).map(|item| item.hash);
        if old == item.as_ref().map(|item| item.hash) {
            return None;
        }
        self.last = self.last.next(revision);
        match &item {
            Some(item) => {
                self.hash.insert(item.hash);
                self.bytes += size_in_frame(&item.encoded);
                self.puts.push(self.last, key.clone());
            }
            None => {
                self.gone += 1;
                self.deletes.push(self.last, key.clone());
            }
        }
        let old = self.entries.insert(key, (self.last, item));
        Some(Replaced(old.and_then(|(at, old)| self.forget(at, old))))
    }

    /// Removes a replaced entry from the sums and the orders; returns its value.
    fn forget(&mut self, at: At, old: Option<Item<T>>) -> Option<Item<T>> {
        match &old {
            Some(item) => {
                self.hash.remove(item.hash);
                self.bytes -= size_in_frame(&item.encoded);
                self.puts.remove(at);
            }
            None => {
                self.gone -= 1;
                self.deletes.remove(at);
            }
        }
        old
    }

    /// Drops the oldest tombstones until at most `most` are left.
    pub(super) fn compact(&mut self, most: usize) {
        while self.gone > most {
            let Some((at, key)) = self.deletes.pop_first() else {
                return;
            };
            self.floor = at.revision;
            self.entries.remove(&key);
            self.gone -= 1;
        }
    }

    /// The changes after `cursor`, each key once; `None` if some have been dropped.
    pub(crate) fn since(&self, cursor: u64) -> Option<Changes> {
        if cursor < self.floor {
            return None;
        }
        let put = self.puts.after(cursor).filter_map(|key| {
            let item = self.get(key)?;
            Some(item.encoded.clone())
        });
        Some(Changes {
            put: put.collect(),
            delete: self.deletes.after(cursor).map(encoded_key).collect(),
            patch: Vec::new(),
        })
    }

    /// The keys that changed after `cursor`; `None` if some have been dropped.
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
        self.entries.iter().filter_map(live)
    }

    /// The values from `first` on, before `end`, in order of their keys.
    pub(crate) fn range(
        &self,
        first: Bound<&RecordKey>,
        end: Bound<&RecordKey>,
    ) -> impl Iterator<Item = (&RecordKey, &Item<T>)> {
        let range = self.entries.range::<RecordKey, _>((first, end));
        range.filter_map(live)
    }

    pub(crate) fn get(&self, key: &RecordKey) -> Option<&Item<T>> {
        self.entries.get(key)?.1.as_ref()
    }

    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.gone
    }

    /// The size of all values in frames, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn values(&self) -> ByRecord<T> {
        self.iter()
            .map(|(key, item)| (key.clone(), Arc::clone(&item.value)))
            .collect()
    }

    /// The sum of the hashes of all values.
    pub(crate) fn hash(&self) -> SetHash {
        self.hash
    }

    /// Returns `true` if there are no values; there may be tombstones.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[cfg(test)]
    pub(super) fn tombstones(&self) -> usize {
        self.gone
    }
}

/// The value before a change, if there was one.
#[derive(Debug)]
pub(super) struct Replaced<T>(pub(super) Option<Item<T>>);

fn live<'a, T>(
    (key, (_, item)): (&'a RecordKey, &'a JournalEntry<T>),
) -> Option<(&'a RecordKey, &'a Item<T>)> {
    Some((key, item.as_ref()?))
}

fn encoded_key(key: &RecordKey) -> Bytes {
    encode(&encode_key(key))
}
