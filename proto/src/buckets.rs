// SPDX-License-Identifier: Apache-2.0

//! Buckets of records, whose hashes locate the differences of two tables.
//!
//! An agent that comes from another controller has most of the table already. It sends one short
//! hash for each bucket, and is sent the buckets that differ.

use portolan_model::{ContentHash, SetHash};
use prost::Message;

use crate::v1;

/// Maximum number of buckets.
pub const MAX_BUCKETS: u32 = 4_096;

/// Keeps these hashes apart from any other use of BLAKE3.
const KEY: &[u8; 32] = b"portolan.v1 record bucket (keyed";

/// The bucket of a key: the first two bytes of its hash, modulo the number of buckets.
#[must_use]
pub fn bucket_of(key: &v1::RecordKey, count: u32) -> u32 {
    let hash = blake3::keyed_hash(KEY, &key.encode_to_vec());
    let [first, second, ..] = *hash.as_bytes();
    u32::from(u16::from_be_bytes([first, second])) % count.max(1)
}

/// Returns `true` if a number of buckets is valid: a power of two, at most [`MAX_BUCKETS`].
#[must_use]
pub fn is_bucket_count(count: u32) -> bool {
    count.is_power_of_two() && count <= MAX_BUCKETS
}

/// The number of buckets for a wanted number: the next valid one, or [`MAX_BUCKETS`].
#[must_use]
pub fn bucket_count(wanted: usize) -> u32 {
    let wanted = u32::try_from(wanted).unwrap_or(MAX_BUCKETS);
    wanted.min(MAX_BUCKETS).next_power_of_two()
}

/// The hashes of `count` buckets of records, 8 bytes each.
#[must_use]
pub fn bucket_hashes<'a>(
    records: impl IntoIterator<Item = (&'a v1::RecordKey, ContentHash)>,
    count: u32,
) -> Vec<u8> {
    let mut sums = vec![SetHash::default(); count as usize];
    for (key, hash) in records {
        if let Some(sum) = sums.get_mut(bucket_of(key, count) as usize) {
            sum.insert(hash);
        }
    }
    sums.into_iter().flat_map(short).collect()
}

/// The short form of a bucket's hash: the low half, big-endian.
#[must_use]
pub fn short(hash: SetHash) -> [u8; 8] {
    let [.., a, b, c, d, e, f, g, h] = hash.to_bytes();
    [a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(service: usize) -> v1::RecordKey {
        v1::RecordKey {
            namespace: "ns".to_owned(),
            service: format!("service-{service}"),
            ..v1::RecordKey::default()
        }
    }

    #[test]
    fn a_record_is_in_one_bucket_and_they_are_of_like_size() {
        let mut sizes = [0; 16];
        for service in 0..1600 {
            let bucket = bucket_of(&key(service), 16);
            assert_eq!(bucket, bucket_of(&key(service), 4096) % 16);
            sizes[bucket as usize] += 1;
        }
        assert!(
            sizes.iter().all(|size| (50..150).contains(size)),
            "{sizes:?}"
        );
    }

    #[test]
    fn a_changed_record_changes_its_bucket_alone_whatever_the_order() {
        let keys: Vec<_> = (0..100).map(key).collect();
        let hashes = |seventh: u128, backwards: bool| {
            let mut all: Vec<_> = keys.iter().enumerate().collect();
            if backwards {
                all.reverse();
            }
            let of = |i| ContentHash(if i == 7 { seventh } else { i as u128 });
            bucket_hashes(all.into_iter().map(|(i, key)| (key, of(i))), 64)
        };
        let before = hashes(7, false);
        assert_eq!(before.len(), 64 * 8);
        assert_eq!(before, hashes(7, true));
        let after = hashes(1 << 40, false);
        let differing = before.chunks(8).zip(after.chunks(8)).enumerate();
        let differing: Vec<_> = differing
            .filter(|(_, (a, b))| a != b)
            .map(|(i, _)| i)
            .collect();
        assert_eq!(differing, [bucket_of(&keys[7], 64) as usize]);
    }

    #[test]
    fn some_counts_are_none() {
        for (count, good) in [
            (0, false),
            (1, true),
            (3, false),
            (1024, true),
            (8192, false),
        ] {
            assert_eq!(is_bucket_count(count), good, "{count}");
        }
    }

    #[test]
    fn a_wanted_number_becomes_a_valid_one() {
        let counts = [
            (0, 1),
            (1, 1),
            (3, 4),
            (4_096, 4_096),
            (4_097, 4_096),
            (usize::MAX, 4_096),
        ];
        for (wanted, count) in counts {
            assert_eq!(bucket_count(wanted), count, "{wanted}");
            assert!(is_bucket_count(count));
        }
    }
}
