// SPDX-License-Identifier: Apache-2.0

//! Messages framed for gRPC, in chunks that streams share by reference.
//!
//! HTTP/2 writes each chunk with a separate system call. Small messages are therefore joined, and a
//! transition that fits is one chunk.

mod compress;
mod pieces;

use std::ops::Range;

use portolan_proto::encoded::{EncodedFrame, EncodedOwn, EncodedRecords, Frame};
use portolan_proto::v1;
use prost::Message;
use prost::bytes::{BufMut, Bytes};

use crate::log::{Changes, NodeChanges, OwnChanges};
use compress::Compressor;
use pieces::pieces;

/// The most bytes of a chunk. A message is never cut: a longer one is a chunk by itself.
pub(crate) const CHUNK_BYTES: usize = 128 * 1024;

/// The size of gRPC's message prefix: the compression flag (always 0 here) and the length.
const PREFIX_BYTES: usize = 5;

/// Framed messages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chunks {
    pub(crate) chunks: Vec<Bytes>,
    /// The offset of the Commit in the last chunk; the chunk's length if there is none.
    pub(crate) commit_at: usize,
    /// The number of messages.
    pub(crate) frames: usize,
    /// The number of records, lists, patches and deletions in the messages.
    pub(crate) items: usize,
}

impl Chunks {
    /// The size of all chunks, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }
}

/// Joins messages to chunks.
#[derive(Default)]
pub(crate) struct Writer {
    done: Chunks,
    chunk: Vec<u8>,
    commit_at: Option<usize>,
    compressor: Compressor,
}

impl Writer {
    /// Adds changes of shared records.
    pub(crate) fn records(mut self, changes: Changes) -> Self {
        for Changes { put, delete, patch } in pieces(changes) {
            self.done.items += put.len() + delete.len() + patch.len();
            let records = EncodedRecords {
                put,
                delete,
                patch,
                ..EncodedRecords::default()
            };
            let frame = self.compressor.records(records);
            self = self.frame(frame);
        }
        self
    }

    /// Replaces the records of the buckets `replaced`, out of `count`, with `put`.
    pub(crate) fn buckets(self, replaced: Vec<u32>, count: u32, put: Vec<Bytes>) -> Self {
        let replace = EncodedRecords {
            replace_buckets: replaced,
            bucket_count: count,
            ..EncodedRecords::default()
        };
        let put = Changes {
            put,
            ..Changes::default()
        };
        self.frame(Frame::Records(replace)).records(put)
    }

    /// Adds changes of a node's own part; `replace` if `own` is the whole part.
    pub(crate) fn own(self, own: OwnChanges, replace: bool) -> Self {
        self.own_of("", own, replace)
    }

    /// Adds changes of the own parts of several nodes, for a relay.
    pub(crate) fn all(self, nodes: Vec<NodeChanges>) -> Self {
        nodes.into_iter().fold(self, |writer, change| {
            writer.own_of(&change.node, change.own, change.replace)
        })
    }

    fn own_of(mut self, node: &str, own: OwnChanges, replace: bool) -> Self {
        let nothing = EncodedOwn {
            of_node: node.to_owned(),
            ..EncodedOwn::default()
        };
        let mut next = EncodedOwn {
            node: own.info,
            replace,
            ..nothing.clone()
        };
        for Changes { put, delete, .. } in pieces(own.lists) {
            self.done.items += put.len() + delete.len();
            (next.put, next.delete) = (put, delete);
            self = self.frame(Frame::Own(std::mem::replace(&mut next, nothing.clone())));
        }
        if next == nothing {
            return self;
        }
        self.frame(Frame::Own(next))
    }

    /// Adds the Commit that ends a transition.
    pub(crate) fn commit(mut self, commit: v1::Commit) -> Self {
        let frame = EncodedFrame::from(Frame::Commit(commit));
        self.room(PREFIX_BYTES + frame.encoded_len());
        self.commit_at = Some(self.chunk.len());
        self.message(&frame);
        self
    }

    /// Adds any message.
    pub(crate) fn frame(mut self, frame: Frame) -> Self {
        self.message(&frame.into());
        self
    }

    /// Adds messages that are framed already, all to one chunk. Returns the index of that chunk and
    /// the range of the messages in it.
    pub(crate) fn framed(&mut self, framed: &Chunks) -> (usize, Range<usize>) {
        self.room(framed.bytes());
        let start = self.chunk.len();
        for chunk in &framed.chunks {
            self.chunk.extend_from_slice(chunk);
        }
        self.done.frames += framed.frames;
        self.done.items += framed.items;
        (self.done.chunks.len(), start..self.chunk.len())
    }

    pub(crate) fn finish(mut self) -> Chunks {
        self.done.commit_at = self.commit_at.unwrap_or(self.chunk.len());
        self.flush();
        self.done
    }

    fn message(&mut self, frame: &EncodedFrame) {
        self.room(PREFIX_BYTES + frame.encoded_len());
        put(&mut self.chunk, frame);
        self.done.frames += 1;
    }

    fn room(&mut self, bytes: usize) {
        if !self.chunk.is_empty() && self.chunk.len() + bytes > CHUNK_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.chunk.is_empty() {
            self.done
                .chunks
                .push(std::mem::take(&mut self.chunk).into());
        }
    }
}

/// One framed message.
#[must_use]
pub fn single(frame: Frame) -> Bytes {
    let frame = EncodedFrame::from(frame);
    let mut chunk = Vec::with_capacity(PREFIX_BYTES + frame.encoded_len());
    put(&mut chunk, &frame);
    chunk.into()
}

/// Frames a message for gRPC.
fn put(chunk: &mut Vec<u8>, frame: &EncodedFrame) {
    chunk.put_u8(0);
    // Messages are far below 4 GiB, the most that gRPC can frame.
    chunk.put_u32(u32::try_from(frame.encoded_len()).unwrap_or(u32::MAX));
    // A vector grows, so encoding cannot fail.
    let encoded = frame.encode(chunk);
    debug_assert!(encoded.is_ok());
}

#[cfg(test)]
mod tests;
