// SPDX-License-Identifier: Apache-2.0

//! One part of a table, the shared records or the node's own lists, with its staged changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_model::{ByRecord, ContentHash, Record, RecordKey, SetHash};
use portolan_proto::convert::{DecodeError, apply_patch, decode_hash, decode_key};
use portolan_proto::v1;

use super::replaced::Replaced;

/// Hashes and problems by encoded key, as the key of a refused record may have no form in the
/// model. The values themselves are in the table.
#[derive(Debug, Clone)]
pub(super) struct TablePart<T> {
    hashes: BTreeMap<v1::RecordKey, ContentHash>,
    hash: SetHash,
    problems: BTreeMap<v1::RecordKey, ValueProblem>,
    /// The last staged change of each key; `None` deletes it.
    staged: BTreeMap<v1::RecordKey, Option<Put<T>>>,
    replaced: Replaced,
}

/// The part of a value that could not be taken.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum ValueProblem {
    /// Some of it.
    #[error("{0}")]
    LeftOut(String),
    /// All of it: the last good one is in force, if there was one.
    #[error("refused: {0}")]
    Refused(DecodeError),
}

/// A patch that cannot be staged.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// A hash or a field that cannot be read.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The record that the patch is for is another one, or missing.
    #[error("its base {0} is not in the table")]
    Base(ContentHash),
}

/// A decoded value.
#[derive(Debug, Clone)]
pub(super) struct Decoded<T> {
    pub(super) key: RecordKey,
    pub(super) value: Arc<T>,
    /// Description of omitted parts; empty if there are none.
    pub(super) left_out: String,
}

#[derive(Debug, Clone)]
struct Put<T> {
    hash: ContentHash,
    /// The value, or the reason of its refusal.
    decoded: Result<Decoded<T>, DecodeError>,
}

impl<T> Default for TablePart<T> {
    fn default() -> Self {
        Self {
            hashes: BTreeMap::new(),
            hash: SetHash::default(),
            problems: BTreeMap::new(),
            staged: BTreeMap::new(),
            replaced: Replaced::default(),
        }
    }
}

impl<T> TablePart<T> {
    /// Stages a value or its refusal. An invalid hash adds nothing to the sum, so the Commit will
    /// not fit.
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

    /// Stages the deletion of all values that are not staged.
    pub(super) fn replace_all(&mut self) {
        self.replaced = Replaced::All;
    }

    /// Stages the deletion of all values of some buckets that are not staged. Returns `false` for
    /// impossible buckets.
    pub(super) fn replace_buckets(&mut self, buckets: &[u32], count: u32) -> bool {
        self.replaced.add(buckets, count)
    }

    pub(super) fn drop_staged(&mut self) {
        self.staged.clear();
        self.replaced = Replaced::Nothing;
    }

    pub(super) fn has_staged(&self) -> bool {
        !self.staged.is_empty() || !matches!(self.replaced, Replaced::Nothing)
    }

    /// The sum of the hashes.
    pub(super) fn hash(&self) -> SetHash {
        self.hash
    }

    /// All keys with their hashes, as they were sent.
    pub(super) fn hashes(&self) -> impl Iterator<Item = (&v1::RecordKey, ContentHash)> {
        self.hashes.iter().map(|(key, hash)| (key, *hash))
    }

    /// The hash of a value that was taken whole.
    pub(super) fn hash_of(&self, key: &v1::RecordKey) -> Option<ContentHash> {
        let is_whole = !self.problems.contains_key(key);
        self.hashes.get(key).copied().filter(|_| is_whole)
    }

    /// The sum after a Commit.
    pub(super) fn hash_after(&self) -> SetHash {
        let mut hash = match &self.replaced {
            Replaced::All => SetHash::default(),
            Replaced::Nothing => self.hash,
            Replaced::Buckets { .. } => {
                let stay = self.hashes().filter(|(key, _)| !self.replaced.covers(key));
                stay.map(|(_, hash)| hash).collect()
            }
        };
        for (key, put) in &self.staged {
            if let Some(old) = self.hashes.get(key)
                && !self.replaced.covers(key)
            {
                hash.remove(*old);
            }
            if let Some(put) = put {
                hash.insert(put.hash);
            }
        }
        hash
    }

    /// Applies staged changes to the table. A refused value leaves the last good one in force, also
    /// where everything is replaced.
    pub(super) fn commit(&mut self, values: &mut ByRecord<T>, cluster: &Arc<str>) {
        self.hash = self.hash_after();
        let mut last = self.take_replaced(values, cluster);
        for (key, put) in std::mem::take(&mut self.staged) {
            let Some(put) = put else {
                self.forget(&key, values, cluster);
                continue;
            };
            self.hashes.insert(key.clone(), put.hash);
            let problem = match put.decoded {
                Ok(decoded) => {
                    values.insert(decoded.key, decoded.value);
                    let left_out = decoded.left_out;
                    (!left_out.is_empty()).then_some(ValueProblem::LeftOut(left_out))
                }
                Err(why) => {
                    let good = decode_key(&key, cluster).ok();
                    values.extend(good.and_then(|key| last.remove_with_key(&key)));
                    Some(ValueProblem::Refused(why))
                }
            };
            match problem {
                None => self.problems.remove(&key),
                Some(problem) => self.problems.insert(key, problem),
            };
        }
    }

    /// Removes replaced values, and returns them.
    fn take_replaced(&mut self, values: &mut ByRecord<T>, cluster: &Arc<str>) -> ByRecord<T> {
        let replaced = std::mem::take(&mut self.replaced);
        match replaced {
            Replaced::Nothing => ByRecord::new(),
            Replaced::All => {
                self.hashes.clear();
                self.problems.clear();
                std::mem::take(values)
            }
            Replaced::Buckets { .. } => {
                let keys = self.hashes.keys().filter(|key| replaced.covers(key));
                let keys: Vec<v1::RecordKey> = keys.cloned().collect();
                let gone = |key| self.forget(key, values, cluster);
                keys.iter().filter_map(gone).collect()
            }
        }
    }

    fn forget(
        &mut self,
        key: &v1::RecordKey,
        values: &mut ByRecord<T>,
        cluster: &Arc<str>,
    ) -> Option<(RecordKey, Arc<T>)> {
        self.hashes.remove(key);
        self.problems.remove(key);
        let key = decode_key(key, cluster).ok()?;
        values.remove_with_key(&key)
    }

    /// The refusals, in order of the keys.
    pub(super) fn problems(&self) -> impl Iterator<Item = (&v1::RecordKey, &ValueProblem)> {
        self.problems.iter()
    }
}

impl TablePart<Record> {
    /// Stages a patched record; an error if the base differs. A patch of a refused record is refused as
    /// well, for the same reason.
    pub(super) fn patch(
        &mut self,
        patch: &v1::RecordPatch,
        values: &ByRecord<Record>,
        cluster: &Arc<str>,
    ) -> Result<(), PatchError> {
        let key = patch.key.clone().unwrap_or_default();
        let (base, hash) = (decode_hash(&patch.base)?, decode_hash(&patch.hash)?);
        let decoded = match self.base(&key, base, values, cluster) {
            None => return Err(PatchError::Base(base)),
            Some(Base::Refused(why)) => Err(why),
            Some(Base::Taken(base, left_out)) => {
                let record = apply_patch(&base, patch)?;
                Ok(Decoded {
                    key: record.key.clone(),
                    value: Arc::new(record),
                    left_out,
                })
            }
        };
        self.staged.insert(key, Some(Put { hash, decoded }));
        Ok(())
    }

    /// The record of this hash, staged or in the table.
    fn base(
        &self,
        key: &v1::RecordKey,
        hash: ContentHash,
        values: &ByRecord<Record>,
        cluster: &Arc<str>,
    ) -> Option<Base> {
        if let Some(staged) = self.staged.get(key) {
            let put = staged.as_ref().filter(|put| put.hash == hash)?;
            return Some(match &put.decoded {
                Ok(decoded) => Base::Taken(Arc::clone(&decoded.value), decoded.left_out.clone()),
                Err(why) => Base::Refused(why.clone()),
            });
        }
        self.hashes.get(key).filter(|have| **have == hash)?;
        let left_out = match self.problems.get(key) {
            None => String::new(),
            Some(ValueProblem::LeftOut(what)) => what.clone(),
            Some(ValueProblem::Refused(why)) => return Some(Base::Refused(why.clone())),
        };
        let value = values.get(&decode_key(key, cluster).ok()?)?;
        Some(Base::Taken(Arc::clone(value), left_out))
    }
}

/// The base of a patch.
enum Base {
    /// A record, and a description of its omitted parts.
    Taken(Arc<Record>, String),
    /// A refused record, and the reason.
    Refused(DecodeError),
}
