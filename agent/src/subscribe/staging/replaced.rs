// SPDX-License-Identifier: Apache-2.0

//! The parts of a table that a transition replaces as a whole.

use std::collections::BTreeSet;

use portolan_proto::buckets::{bucket_of, is_bucket_count};
use portolan_proto::v1;

/// Keys that are deleted unless the transition puts them.
#[derive(Debug, Clone, Default)]
pub(super) enum Replaced {
    /// None: only named keys change.
    #[default]
    Nothing,
    /// Some buckets of so many.
    Buckets { count: u32, buckets: BTreeSet<u32> },
    /// Everything.
    All,
}

impl Replaced {
    /// Adds buckets. Returns `false` for impossible buckets, or if others are of another number.
    pub(super) fn add(&mut self, added: &[u32], added_count: u32) -> bool {
        if added.is_empty() {
            return true;
        }
        let in_range = added.iter().all(|bucket| *bucket < added_count);
        if !is_bucket_count(added_count) || !in_range {
            return false;
        }
        match self {
            Self::All => true,
            Self::Nothing => {
                *self = Self::Buckets {
                    count: added_count,
                    buckets: added.iter().copied().collect(),
                };
                true
            }
            Self::Buckets { count, buckets } => {
                buckets.extend(added);
                *count == added_count
            }
        }
    }

    /// Returns `true` if a key is in a replaced part.
    pub(super) fn covers(&self, key: &v1::RecordKey) -> bool {
        match self {
            Self::Nothing => false,
            Self::All => true,
            Self::Buckets { count, buckets } => buckets.contains(&bucket_of(key, *count)),
        }
    }
}
