// SPDX-License-Identifier: Apache-2.0

//! Frames with encoded records, so that a record is encoded once, not once per agent.
//!
//! On the wire a message in a field looks like bytes in a field; these types are [`v1::Frame`](crate::v1::Frame) and
//! its parts with bytes in place of shared messages. A test holds the two equal.

use prost::Message;
use prost::bytes::Bytes;

pub use encoded_frame::Frame;

/// A [`crate::v1::Frame`].
#[derive(Clone, PartialEq, Message)]
pub struct EncodedFrame {
    /// The content of the frame.
    #[prost(oneof = "encoded_frame::Frame", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    pub frame: Option<Frame>,
}

/// The cases of [`EncodedFrame`].
pub mod encoded_frame {
    use crate::v1;

    /// The content of a frame; as in [`crate::v1::frame::Frame`].
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Frame {
        /// The first frame of a stream.
        #[prost(message, tag = "1")]
        Welcome(v1::Welcome),
        /// Shared records.
        #[prost(message, tag = "2")]
        Records(super::EncodedRecords),
        /// Data of this node alone.
        #[prost(message, tag = "3")]
        Own(super::EncodedOwn),
        /// Ends a transition.
        #[prost(message, tag = "4")]
        Commit(v1::Commit),
        /// The controller is about to stop.
        #[prost(message, tag = "5")]
        Goaway(v1::Goaway),
        /// An [`EncodedRecords`](super::EncodedRecords), compressed.
        #[prost(bytes = "bytes", tag = "6")]
        Compressed(super::Bytes),
        /// Request for the hashes of the agent's buckets.
        #[prost(message, tag = "7")]
        AskBuckets(v1::AskBuckets),
        /// Confirmation of a held table.
        #[prost(message, tag = "8")]
        Confirm(v1::Confirm),
        /// The newest versions of the sources, to a relay that asked.
        #[prost(message, tag = "9")]
        Versions(v1::Versions),
    }
}

/// [`crate::v1::Records`].
#[derive(Clone, PartialEq, Message)]
pub struct EncodedRecords {
    /// Each one a [`crate::v1::Record`].
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub put: Vec<Bytes>,
    /// Each one a [`crate::v1::RecordKey`].
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub delete: Vec<Bytes>,
    /// Buckets whose records are deleted unless they are put.
    #[prost(uint32, repeated, tag = "3")]
    pub replace_buckets: Vec<u32>,
    /// Number of buckets; 0 without any.
    #[prost(uint32, tag = "4")]
    pub bucket_count: u32,
    /// Each one a [`crate::v1::RecordPatch`].
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub patch: Vec<Bytes>,
}

/// [`crate::v1::Own`].
#[derive(Clone, PartialEq, Message)]
pub struct EncodedOwn {
    /// Each one a [`crate::v1::NodeLists`].
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub put: Vec<Bytes>,
    /// Each one a [`crate::v1::RecordKey`].
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub delete: Vec<Bytes>,
    /// A [`crate::v1::NodeInfo`]; `None` if this frame does not change it.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub node: Option<Bytes>,
    /// Whether everything is deleted that is not put.
    #[prost(bool, tag = "4")]
    pub replace: bool,
    /// Name of the node, to a relay.
    #[prost(string, tag = "5")]
    pub of_node: String,
}

impl From<Frame> for EncodedFrame {
    fn from(frame: Frame) -> Self {
        Self { frame: Some(frame) }
    }
}

/// The bytes of a message, to be shared.
pub fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// Number of bytes that an item adds to the frame that repeats it, with its tag and length.
#[must_use]
pub fn size_in_frame(item: &Bytes) -> usize {
    1 + prost::length_delimiter_len(item.len()) + item.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    fn key(service: &str) -> v1::RecordKey {
        v1::RecordKey {
            namespace: "ns".to_owned(),
            service: service.to_owned(),
            port: String::new(),
            protocol: 1,
        }
    }

    fn same_bytes(encoded: Frame, plain: v1::frame::Frame) {
        let plain = v1::Frame { frame: Some(plain) };
        assert_eq!(
            EncodedFrame::from(encoded).encode_to_vec(),
            plain.encode_to_vec()
        );
    }

    #[test]
    fn records_look_the_same_on_the_wire() {
        let record = v1::Record {
            key: Some(key("a")),
            hash: vec![7; 16],
            ..v1::Record::default()
        };
        let patch = v1::RecordPatch {
            key: Some(key("a")),
            ..v1::RecordPatch::default()
        };
        same_bytes(
            Frame::Records(EncodedRecords {
                put: vec![encode(&record), Bytes::new()],
                delete: vec![encode(&key("b")), encode(&key("c"))],
                replace_buckets: vec![1, 300],
                bucket_count: 1024,
                patch: vec![encode(&patch)],
            }),
            v1::frame::Frame::Records(v1::Records {
                put: vec![record, v1::Record::default()],
                delete: vec![key("b"), key("c")],
                replace_buckets: vec![1, 300],
                bucket_count: 1024,
                patch: vec![patch],
            }),
        );
    }

    #[test]
    fn own_lists_look_the_same_on_the_wire() {
        let lists = v1::NodeLists {
            key: Some(key("a")),
            ..v1::NodeLists::default()
        };
        let node = |zone: &str| v1::NodeInfo {
            zone: zone.to_owned(),
            ..v1::NodeInfo::default()
        };
        for node in [None, Some(node("")), Some(node("a"))] {
            same_bytes(
                Frame::Own(EncodedOwn {
                    put: vec![encode(&lists)],
                    delete: vec![encode(&key("b"))],
                    node: node.as_ref().map(encode),
                    replace: true,
                    of_node: "a".to_owned(),
                }),
                v1::frame::Frame::Own(v1::Own {
                    put: vec![lists.clone()],
                    delete: vec![key("b")],
                    node,
                    replace: true,
                    of_node: "a".to_owned(),
                }),
            );
        }
    }

    #[test]
    fn the_other_frames_look_the_same_on_the_wire() {
        let (welcome, commit, goaway) = (
            v1::Welcome {
                version: 1,
                epoch: 7,
                cluster_id: "id".to_owned(),
            },
            v1::Commit {
                revision: 1,
                snapshot: true,
                records_hash: vec![1; 16],
                own_hash: vec![2; 16],
                source_versions: vec![3, 4, 5],
                trigger_times_ms: vec![6],
            },
            v1::Goaway { spread_ms: 3 },
        );
        same_bytes(
            Frame::Welcome(welcome.clone()),
            v1::frame::Frame::Welcome(welcome),
        );
        same_bytes(
            Frame::Commit(commit.clone()),
            v1::frame::Frame::Commit(commit),
        );
        same_bytes(Frame::Goaway(goaway), v1::frame::Frame::Goaway(goaway));
        let ask = v1::AskBuckets { count: 64 };
        same_bytes(Frame::AskBuckets(ask), v1::frame::Frame::AskBuckets(ask));
        let confirm = v1::Confirm { revision: 7 };
        same_bytes(Frame::Confirm(confirm), v1::frame::Frame::Confirm(confirm));
        let versions = v1::Versions { newest: vec![7, 8] };
        let plain = v1::frame::Frame::Versions(versions.clone());
        same_bytes(Frame::Versions(versions), plain);
        same_bytes(
            Frame::Compressed(Bytes::from_static(b"zstd")),
            v1::frame::Frame::Compressed(b"zstd".to_vec()),
        );
    }
}
