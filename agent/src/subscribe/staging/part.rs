//! One part of a table, the shared records or the node's own lists, with what is staged for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_model::{ContentHash, RecordKey, SetHash};
use portolan_proto::convert::{DecodeError, decode_hash, decode_key};
use portolan_proto::v1;

/// Hashes and problems by the key as it was sent: a refused record's key may be one that the model
/// has no word for. The values themselves are in the table.
#[derive(Debug)]
pub(super) struct Part<T> {
    hashes: BTreeMap<v1::RecordKey, ContentHash>,
    hash: SetHash,
    problems: BTreeMap<v1::RecordKey, String>,
    /// The last word on each key; `None` deletes it.
    staged: BTreeMap<v1::RecordKey, Option<Put<T>>>,
}

/// A value as it was understood.
#[derive(Debug)]
pub(super) struct Decoded<T> {
    pub(super) key: RecordKey,
    pub(super) value: Arc<T>,
    pub(super) left_out: Vec<String>,
}

#[derive(Debug)]
struct Put<T> {
    hash: ContentHash,
    decoded: Result<Decoded<T>, DecodeError>,
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Self {
            hashes: BTreeMap::new(),
            hash: SetHash::default(),
            problems: BTreeMap::new(),
            staged: BTreeMap::new(),
        }
    }
}

impl<T> Part<T> {
    /// Stages a value, or that it was refused. A hash that is none adds nothing to the sum, so
    /// that the Commit will not fit.
    pub(super) fn put(
        &mut self,
        key: Option<v1::RecordKey>,
        hash: &[u8],
        decoded: Result<Decoded<T>, DecodeError>,
    ) {
        let hash = decode_hash(hash).unwrap_or(ContentHash(0));
        let put = Put { hash, decoded };
        self.staged.insert(key.unwrap_or_default(), Some(put));
    }

    pub(super) fn delete(&mut self, key: v1::RecordKey) {
        self.staged.insert(key, None);
    }

    pub(super) fn drop_staged(&mut self) {
        self.staged.clear();
    }

    pub(super) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// The sum of the hashes.
    pub(super) fn hash(&self) -> SetHash {
        self.hash
    }

    /// What the sum will be after a Commit.
    pub(super) fn hash_after(&self, snapshot: bool) -> SetHash {
        let mut hash = if snapshot {
            SetHash::default()
        } else {
            self.hash
        };
        for (key, put) in &self.staged {
            if !snapshot && let Some(old) = self.hashes.get(key) {
                hash.remove(*old);
            }
            if let Some(put) = put {
                hash.insert(put.hash);
            }
        }
        hash
    }

    /// Makes what is staged the table's. A refused value leaves the last good one in force, also
    /// in a snapshot.
    pub(super) fn commit(
        &mut self,
        snapshot: bool,
        values: &mut BTreeMap<RecordKey, Arc<T>>,
        cluster: &Arc<str>,
    ) {
        self.hash = self.hash_after(snapshot);
        let mut last = BTreeMap::new();
        if snapshot {
            last = std::mem::take(values);
            self.hashes.clear();
            self.problems.clear();
        }
        for (key, put) in std::mem::take(&mut self.staged) {
            let Some(put) = put else {
                self.hashes.remove(&key);
                self.problems.remove(&key);
                if let Ok(key) = decode_key(&key, cluster) {
                    values.remove(&key);
                }
                continue;
            };
            self.hashes.insert(key.clone(), put.hash);
            let problem = match put.decoded {
                Ok(decoded) => {
                    values.insert(decoded.key, decoded.value);
                    decoded.left_out.join("; ")
                }
                Err(error) => {
                    let good = decode_key(&key, cluster).ok();
                    values.extend(good.and_then(|key| last.remove_entry(&key)));
                    format!("refused: {error}")
                }
            };
            if problem.is_empty() {
                self.problems.remove(&key);
            } else {
                self.problems.insert(key, problem);
            }
        }
    }

    /// What could not be taken, in order of the keys.
    pub(super) fn problems(&self) -> impl Iterator<Item = (&v1::RecordKey, &String)> {
        self.problems.iter()
    }
}
