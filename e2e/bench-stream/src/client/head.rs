//! What goes before a piece of known length, and may itself come in pieces.

/// So many bytes.
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
    /// Takes from `bytes` what is missing; the head if nothing is missing then.
    pub(super) fn fill(&mut self, bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (now, later) = bytes.split_at(bytes.len().min(N - self.len));
        self.bytes[self.len..][..now.len()].copy_from_slice(now);
        self.len += now.len();
        *bytes = later;
        (self.len == N).then_some(self.bytes)
    }

    /// The next head begins.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }
}
