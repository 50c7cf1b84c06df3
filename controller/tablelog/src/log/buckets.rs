// SPDX-License-Identifier: Apache-2.0

//! Hashes and sizes of the buckets of a cluster's records.

use portolan_model::{Record, SetHash};
use portolan_proto::buckets::{MAX_BUCKETS, short};
use portolan_proto::encoded::size_in_frame;

use super::prepared::Item;

/// The most buckets that agents are asked for: 32 KiB of hashes. Of many agents with the same
/// records only one sends them, and smaller buckets make the transition to all of them shorter.
pub(crate) const MOST_BUCKETS: u32 = MAX_BUCKETS;

/// Sums over the records of each of [`MOST_BUCKETS`] buckets, updated with each change. The sums
/// of fewer buckets follow from them, as all counts are powers of two.
#[derive(Debug)]
pub(crate) struct Buckets(Vec<Sum>);

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    hash: SetHash,
    /// The size of the bucket's records in frames, in bytes.
    bytes: usize,
}

impl Default for Buckets {
    fn default() -> Self {
        Self(vec![Sum::default(); MOST_BUCKETS as usize])
    }
}

impl Buckets {
    pub(super) fn insert(&mut self, item: &Item<Record>) {
        if let Some(sum) = self.0.get_mut(usize::from(item.bucket)) {
            sum.hash.insert(item.hash);
            sum.bytes += size_in_frame(&item.encoded);
        }
    }

    pub(super) fn remove(&mut self, item: &Item<Record>) {
        if let Some(sum) = self.0.get_mut(usize::from(item.bucket)) {
            sum.hash.remove(item.hash);
            sum.bytes -= size_in_frame(&item.encoded);
        }
    }

    /// The buckets whose hashes differ from `hashes`, in order, and the size of their records in
    /// frames, in bytes. There is one hash per bucket; their number is a power of two up to
    /// [`MOST_BUCKETS`].
    pub(crate) fn differing(&self, hashes: &[[u8; 8]]) -> (Vec<u32>, usize) {
        let folded;
        let sums = if hashes.len() == self.0.len() {
            &self.0
        } else {
            folded = self.folded(hashes.len());
            &folded
        };
        let differing = (0..).zip(sums.iter().zip(hashes));
        let differing = differing.filter(|(_, (sum, theirs))| short(sum.hash) != **theirs);
        differing.fold(
            (Vec::new(), 0),
            |(mut buckets, bytes), (bucket, (sum, _))| {
                buckets.push(bucket);
                (buckets, bytes + sum.bytes)
            },
        )
    }

    fn folded(&self, count: usize) -> Vec<Sum> {
        let mut sums = vec![Sum::default(); count];
        for (bucket, sum) in self.0.iter().enumerate() {
            let folded = &mut sums[bucket % count];
            folded.hash = SetHash(folded.hash.0.wrapping_add(sum.hash.0));
            folded.bytes += sum.bytes;
        }
        sums
    }
}
