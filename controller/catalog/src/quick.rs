// SPDX-License-Identifier: Apache-2.0

//! Maps and sets for lookups: names are short, and most of the time of a lookup in a sorted map is for comparing them.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

/// A map without order, with a quick hash. Names come from tenants: the seed is random in each process, so that names
/// that collide cannot be computed beforehand.
pub type QuickMap<K, V> = HashMap<K, V, RandomState>;

/// A set of the same kind.
pub(crate) type QuickSet<T> = HashSet<T, RandomState>;
