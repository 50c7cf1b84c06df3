// SPDX-License-Identifier: Apache-2.0

//! The bytes of one transition for one agent.

use std::sync::Arc;

use portolan_model::SetHash;
use portolan_proto::v1;
use prost::bytes::Bytes;

use crate::log::{OwnChanges, TableHashes};
use crate::wire::{Chunks, Writer};

/// The most bytes of a shared chunk without a Commit that is copied to the front of a node's own
/// chunk: a separate write costs more than the copy.
const SMALL_BYTES: usize = 16 * 1024;

/// One transition of one node's table: the shared part by reference, then the own part.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The revision of the node's table after the transition.
    pub revision: u64,
    shared: Arc<Chunks>,
    /// The number of chunks of `shared` that are sent by reference.
    whole: usize,
    own: Vec<Bytes>,
    own_items: usize,
    /// The index of the next chunk, over `whole` and `own`.
    next: usize,
}

impl Delivery {
    /// A delivery without an own part; `shared` ends with the Commit.
    pub(crate) fn shared(revision: u64, shared: Arc<Chunks>) -> Self {
        Self {
            revision,
            whole: shared.chunks.len(),
            shared,
            own: Vec::new(),
            own_items: 0,
            next: 0,
        }
    }

    /// A delivery with an own part. `commit` replaces the shared Commit.
    pub(crate) fn with_own(
        shared: &Arc<Chunks>,
        own: OwnChanges,
        replace: bool,
        commit: v1::Commit,
    ) -> Self {
        let revision = commit.revision;
        let own = Writer::default().own(own, replace).commit(commit).finish();
        Self::with_rest(shared, own, revision)
    }

    /// A delivery with `own` in place of the shared Commit.
    pub(crate) fn with_rest(shared: &Arc<Chunks>, own: Chunks, revision: u64) -> Self {
        let chunks = &shared.chunks;
        let (whole, last) = match chunks.split_last() {
            Some((last, _)) if shared.commit_at < last.len() || last.len() <= SMALL_BYTES => {
                (chunks.len() - 1, &last[..shared.commit_at])
            }
            _ => (chunks.len(), &[][..]),
        };
        let (own_items, own) = (own.items, joined(last, own.chunks));
        Self {
            revision,
            shared: Arc::clone(shared),
            whole,
            own,
            own_items,
            next: 0,
        }
    }

    /// The next chunk to send; `None` after the last.
    pub fn next_chunk(&mut self) -> Option<Bytes> {
        let whole = &self.shared.chunks[..self.whole];
        let chunk = whole
            .get(self.next)
            .or_else(|| self.own.get(self.next - self.whole))?;
        self.next += 1;
        Some(chunk.clone())
    }

    /// Returns `true` if all chunks were returned.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.next == self.whole + self.own.len()
    }

    /// The approximate number of messages.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.shared.frames + self.own.len()
    }

    /// Returns `true` if both have the same shared part, by reference.
    #[cfg(test)]
    pub(crate) fn shares(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The number of records, lists, patches and deletions.
    #[must_use]
    pub fn items(&self) -> usize {
        self.shared.items + self.own_items
    }
}

/// Joins `first` with the first chunk, so that a small transition is one write.
fn joined(first: &[u8], mut chunks: Vec<Bytes>) -> Vec<Bytes> {
    if first.is_empty() {
        return chunks;
    }
    match chunks.first_mut() {
        Some(chunk) => *chunk = [first, chunk].concat().into(),
        None => chunks.push(Bytes::copy_from_slice(first)),
    }
    chunks
}

/// The Commit of a transition; `own` is absent if no own part changes.
pub(crate) fn commit(
    revision: u64,
    records: SetHash,
    own: Option<SetHash>,
    source_versions: &[u64],
) -> v1::Commit {
    v1::Commit {
        revision,
        records_hash: records.to_bytes().into(),
        own_hash: own.map(|own| own.to_bytes().into()).unwrap_or_default(),
        source_versions: source_versions.to_vec(),
        ..v1::Commit::default()
    }
}

/// A [`commit`] with both hashes.
pub(crate) fn full_commit(
    revision: u64,
    hashes: TableHashes,
    source_versions: &[u64],
) -> v1::Commit {
    commit(revision, hashes.records, Some(hashes.own), source_versions)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shared chunks of these sizes in bytes, without a Commit, and all chunks that are sent with
    /// one own chunk.
    fn delivery(shared: &[usize]) -> (Vec<Bytes>, Vec<Bytes>) {
        let chunks: Vec<_> = shared.iter().map(|&size| vec![b's'; size].into()).collect();
        let shared = Arc::new(Chunks {
            commit_at: chunks.last().map_or(0, Bytes::len),
            chunks: chunks.clone(),
            ..Chunks::default()
        });
        let own = Writer::default().commit(v1::Commit::default()).finish();
        let mut delivery = Delivery::with_rest(&shared, own, 1);
        let sent = std::iter::from_fn(|| delivery.next_chunk()).collect();
        assert!(delivery.is_done());
        (chunks, sent)
    }

    #[test]
    fn large_frames_are_sent_by_reference() {
        let (shared, sent) = delivery(&[SMALL_BYTES + 1]);
        assert_eq!(sent.len(), 2);
        assert_eq!(sent[0].as_ptr(), shared[0].as_ptr());
    }

    #[test]
    fn small_frames_go_with_the_commit() {
        let (shared, sent) = delivery(&[SMALL_BYTES, SMALL_BYTES]);
        assert_eq!(sent.len(), 2);
        assert_eq!(sent[0].as_ptr(), shared[0].as_ptr());
        assert!(sent[1].starts_with(&shared[1]));
        assert!(sent[1].len() > shared[1].len());
        let (_, sent) = delivery(&[]);
        assert_eq!(sent.len(), 1);
    }
}
