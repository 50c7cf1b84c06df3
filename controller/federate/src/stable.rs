// SPDX-License-Identifier: Apache-2.0

//! Hashes for stable choices.

/// Keeps these hashes apart from any other use of BLAKE3.
const KEY: &[u8; 32] = b"portolan federate stable choices";

/// 64 bits of keyed BLAKE3 over the parts, each after its length in 8 bytes, big-endian. Equal on all
/// replicas and in all versions.
pub(crate) fn hash<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> u64 {
    Parts::new(parts).hash()
}

/// Parts as they are hashed. They are hashed at once: each update of a hasher costs as much as a few
/// hundred bytes.
#[derive(Debug)]
pub(crate) struct Parts(Vec<u8>);

impl Parts {
    pub(crate) fn new<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Self {
        let mut all = Self(Vec::with_capacity(256));
        all.extend(parts);
        all
    }

    /// The hash of these parts and more. They stay as they were.
    pub(crate) fn hash_with<'p>(&mut self, more: impl IntoIterator<Item = &'p [u8]>) -> u64 {
        let length = self.0.len();
        self.extend(more);
        let hash = self.hash();
        self.0.truncate(length);
        hash
    }

    fn extend<'p>(&mut self, parts: impl IntoIterator<Item = &'p [u8]>) {
        for part in parts {
            self.0.extend_from_slice(&(part.len() as u64).to_be_bytes());
            self.0.extend_from_slice(part);
        }
    }

    fn hash(&self) -> u64 {
        let hash = blake3::keyed_hash(KEY, &self.0);
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        u64::from_be_bytes(first)
    }
}
