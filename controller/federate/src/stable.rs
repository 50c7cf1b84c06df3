// SPDX-License-Identifier: Apache-2.0

//! Hashes for stable choices.

/// Keeps these hashes apart from any other use of BLAKE3.
const KEY: &[u8; 32] = b"portolan federate stable choices";

/// 64 bits of keyed BLAKE3 over the parts, each after its length in 8 bytes, big-endian. Equal on all
/// replicas and in all versions.
pub(crate) fn hash<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> u64 {
    let mut all = Vec::with_capacity(256);
    extend(&mut all, parts);
    first(blake3::keyed_hash(KEY, &all))
}

fn extend<'p>(all: &mut Vec<u8>, parts: impl IntoIterator<Item = &'p [u8]>) {
    for part in parts {
        all.extend_from_slice(&(part.len() as u64).to_be_bytes());
        all.extend_from_slice(part);
    }
}

fn first(hash: blake3::Hash) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_be_bytes(first)
}
