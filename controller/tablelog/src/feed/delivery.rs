//! What one agent is sent in one transition.

use std::sync::Arc;

use portolan_model::SetHash;
use portolan_proto::v1;
use prost::bytes::Bytes;

use crate::log::{OwnChanges, TableHashes};
use crate::wire::{Chunks, Writer};

/// A shared chunk of at most this is copied to go with what is a node's own, in bytes: to write
/// it by itself costs more.
const SMALL_BYTES: usize = 16 * 1024;

/// One transition of one node's table: what it shares with others, by reference, then what is its
/// own.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The revision that the node's table then has.
    pub revision: u64,
    shared: Arc<Chunks>,
    /// How many chunks of `shared` are sent as they are.
    whole: usize,
    own: Vec<Bytes>,
    own_items: usize,
    /// The next chunk.
    next: usize,
}

impl Delivery {
    /// To a node with nothing of its own in this transition; `shared` ends with the Commit.
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

    /// To a node with something of its own: its Commit takes the place of the shared one.
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

    /// To whoever is sent this in place of the shared Commit.
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

    /// The next chunk to send.
    pub fn next_chunk(&mut self) -> Option<Bytes> {
        let whole = &self.shared.chunks[..self.whole];
        let chunk = whole
            .get(self.next)
            .or_else(|| self.own.get(self.next - self.whole))?;
        self.next += 1;
        Some(chunk.clone())
    }

    /// Whether all of it was sent.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.next == self.whole + self.own.len()
    }

    /// How many messages there are, about.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.shared.frames + self.own.len()
    }

    /// Whether both were made from the same.
    #[cfg(test)]
    pub(crate) fn shares(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// How many records, lists and deletions are in it.
    #[must_use]
    pub fn items(&self) -> usize {
        self.shared.items + self.own_items
    }
}

/// One chunk of both, as a small transition is one write.
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

/// The end of a transition; `own` is absent of one that changes nothing of a node's own.
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

/// As [`commit`], with all hashes.
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

    /// Shared chunks of so many bytes, without a Commit, and one that is a node's own.
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
    fn what_is_large_is_sent_by_reference() {
        let (shared, sent) = delivery(&[SMALL_BYTES + 1]);
        assert_eq!(sent.len(), 2);
        assert_eq!(sent[0].as_ptr(), shared[0].as_ptr());
    }

    #[test]
    fn what_is_small_goes_with_the_commit() {
        let (shared, sent) = delivery(&[SMALL_BYTES, SMALL_BYTES]);
        assert_eq!(sent.len(), 2);
        assert_eq!(sent[0].as_ptr(), shared[0].as_ptr());
        assert!(sent[1].starts_with(&shared[1]));
        assert!(sent[1].len() > shared[1].len());
        let (_, sent) = delivery(&[]);
        assert_eq!(sent.len(), 1);
    }
}
