//! Messages as they go to the connection: framed for gRPC, in chunks that are shared by reference.
//!
//! HTTP/2 writes each chunk by a system call of its own, so small messages are put together, and
//! a transition that fits is one chunk.

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

/// About how long a chunk is, in bytes. A message is never cut: a longer one is a chunk.
pub(crate) const CHUNK_BYTES: usize = 128 * 1024;

/// Before each message: whether gRPC compressed it (it never does), and its length.
const PREFIX_BYTES: usize = 5;

/// Framed messages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chunks {
    pub(crate) chunks: Vec<Bytes>,
    /// Where the Commit begins in the last chunk; its end if there is none.
    pub(crate) commit_at: usize,
    /// How many messages there are.
    pub(crate) frames: usize,
    /// How many records, lists and deletions are in them.
    pub(crate) items: usize,
}

impl Chunks {
    /// How long they are, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }
}

/// Puts messages together.
#[derive(Default)]
pub(crate) struct Writer {
    done: Chunks,
    chunk: Vec<u8>,
    commit_at: Option<usize>,
    compressor: Compressor,
}

impl Writer {
    /// Changes of shared records.
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

    /// All records of some buckets of so many.
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

    /// What is a node's own; `replace` if it is all of it.
    pub(crate) fn own(self, own: OwnChanges, replace: bool) -> Self {
        self.own_of("", own, replace)
    }

    /// What nodes have of their own, to a relay.
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

    /// The end of a transition.
    pub(crate) fn commit(mut self, commit: v1::Commit) -> Self {
        let frame = EncodedFrame::from(Frame::Commit(commit));
        self.room(PREFIX_BYTES + frame.encoded_len());
        self.commit_at = Some(self.chunk.len());
        self.message(&frame);
        self
    }

    /// Any message.
    pub(crate) fn frame(mut self, frame: Frame) -> Self {
        self.message(&frame.into());
        self
    }

    /// Messages that are framed already, which all go into one chunk; and where in which.
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

/// One message by itself.
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
    // A message that is longer than gRPC can say is longer than any memory that it is made in.
    chunk.put_u32(u32::try_from(frame.encoded_len()).unwrap_or(u32::MAX));
    // A vector has room for everything.
    let encoded = frame.encode(chunk);
    debug_assert!(encoded.is_ok());
}

#[cfg(test)]
mod tests;
