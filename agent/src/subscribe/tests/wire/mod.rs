// SPDX-License-Identifier: Apache-2.0

//! Compatibility with older versions: their messages, replayed.
//!
//! A recording holds all messages of both directions between a controller, an agent and a relay of
//! one version, over the streams of [`scenario`]. Recordings are never changed. A new one is made
//! by `PORTOLAN_WIRE_RECORDING=FILE cargo test -p portolan-agent --lib -- --ignored wire::record`.

mod record;
mod replay;
mod scenario;
mod tables;

use std::collections::BTreeMap;

use portolan_proto::v1;
use prost::Message;

/// The recordings by the commit that they were made with.
const RECORDINGS: [(&str, &[u8]); 1] = [("0ceedf7", include_bytes!("0ceedf7.bin"))];

/// All messages of some streams, in the order in which they passed.
#[derive(Clone, PartialEq, Message)]
struct Recording {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

/// One message.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    /// The index of its stream, from 0 in the order of Hellos.
    #[prost(uint32, tag = "1")]
    stream: u32,
    /// Whether the agent or relay sent it, as an `AgentMessage`. Otherwise it is a `Frame`.
    #[prost(bool, tag = "2")]
    from_agent: bool,
    #[prost(bytes = "vec", tag = "3")]
    bytes: Vec<u8>,
}

/// One recorded stream.
#[derive(Debug, Default)]
struct Stream {
    messages: Vec<v1::AgentMessage>,
    frames: Vec<v1::Frame>,
    /// The frames as they were sent.
    raw_frames: Vec<Vec<u8>>,
}

impl Stream {
    fn hello(&self) -> &v1::Hello {
        match self.messages.first().map(|first| &first.message) {
            Some(Some(v1::agent_message::Message::Hello(hello))) => hello,
            other => panic!("no Hello but {other:?}"),
        }
    }

    fn is_relays(&self) -> bool {
        self.hello().want() == v1::hello::Want::AllNodes
    }
}

/// The streams of a recording, in order.
fn streams(recording: &[u8]) -> Vec<Stream> {
    let recording = Recording::decode(recording).unwrap();
    let mut streams: BTreeMap<u32, Stream> = BTreeMap::new();
    for entry in recording.entries {
        let stream = streams.entry(entry.stream).or_default();
        if entry.from_agent {
            let message = v1::AgentMessage::decode(entry.bytes.as_slice());
            stream.messages.push(message.unwrap());
        } else {
            let frame = v1::Frame::decode(entry.bytes.as_slice());
            stream.frames.push(frame.unwrap());
            stream.raw_frames.push(entry.bytes);
        }
    }
    streams.into_values().collect()
}
