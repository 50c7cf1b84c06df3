// SPDX-License-Identifier: Apache-2.0

//! Maps and sets for lookups: names are short, and most of the time of a lookup in a sorted map is for comparing them.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, Hash};

use foldhash::fast::{FixedState, RandomState};

/// A map without order, with a quick hash. Names come from tenants: the seed is random in each process, so that names
/// that collide cannot be computed beforehand.
pub type QuickMap<K, V> = HashMap<K, V, RandomState>;

/// A set of the same kind.
pub(crate) type QuickSet<T> = HashSet<T, RandomState>;

/// A quick hash of a value, for comparing it with one that is in no cache: other hashes mean other values, equal ones
/// mean nothing.
pub fn quick_hash(value: &impl Hash) -> u64 {
    FixedState::default().hash_one(value)
}
