// SPDX-License-Identifier: Apache-2.0

//! Hashes for stable choices.

/// Keeps these hashes apart from any other use of BLAKE3.
const KEY: &[u8; 32] = b"portolan federate stable choices";

/// 64 bits of keyed BLAKE3 over the parts, each after its length in 8 bytes, big-endian. Equal on all
/// replicas and in all versions.
pub(crate) fn hash<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> u64 {
    let mut hasher = blake3::Hasher::new_keyed(KEY);
    for part in parts {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_be_bytes(bytes)
}
