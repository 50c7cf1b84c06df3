// SPDX-License-Identifier: Apache-2.0

//! A fixed-size header that may arrive in pieces.

/// A header of `N` bytes.
#[derive(Debug)]
pub(super) struct Head<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Head<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }
}

impl<const N: usize> Head<N> {
    /// Takes the missing bytes from `bytes`. Returns the header once it is complete.
    pub(super) fn fill(&mut self, bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (now, later) = bytes.split_at(bytes.len().min(N - self.len));
        self.bytes[self.len..][..now.len()].copy_from_slice(now);
        self.len += now.len();
        *bytes = later;
        (self.len == N).then_some(self.bytes)
    }

    /// Begins the next header.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }
}
