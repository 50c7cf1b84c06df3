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

/// As [`hash`], for many lists of parts that begin alike: the beginning is hashed once.
#[derive(Debug)]
pub(crate) struct Beginning {
    hasher: blake3::Hasher,
    /// The parts that follow, which are hashed at once: each update of a hasher costs as much as a few
    /// hundred bytes.
    more: Vec<u8>,
}

impl Beginning {
    pub(crate) fn new<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Self {
        let mut beginning = Self {
            hasher: blake3::Hasher::new_keyed(KEY),
            more: Vec::with_capacity(256),
        };
        extend(&mut beginning.more, parts);
        beginning.hasher.update(&beginning.more);
        beginning
    }

    /// The hash of these parts and more. They stay as they were.
    pub(crate) fn hash_with<'p>(&mut self, more: impl IntoIterator<Item = &'p [u8]>) -> u64 {
        self.more.clear();
        extend(&mut self.more, more);
        let mut hasher = self.hasher.clone();
        hasher.update(&self.more);
        first(hasher.finalize())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_makes_the_same_hashes() {
        // Below, at and beyond the size of a block.
        for length in [0, 1, 47, 48, 49, 1_007, 1_008, 1_009] {
            let begin = vec![7; length];
            let mut beginning = Beginning::new([b"begin".as_slice(), &begin]);
            for end in [b"".as_slice(), b"one", &[1; 64], &[2; 2_000]] {
                let whole = hash([b"begin".as_slice(), &begin, end, b"end"]);
                assert_eq!(beginning.hash_with([end, b"end"]), whole, "{length}");
            }
        }
    }
}
