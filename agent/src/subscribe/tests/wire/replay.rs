// SPDX-License-Identifier: Apache-2.0

//! Messages of older versions, replayed to this one.

use std::collections::VecDeque;
use std::net::SocketAddr;

use portolan_proto::encoded::{EncodedFrame, encoded_frame};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message as Said;
use portolan_tablelog::{Forwarder, Publisher, Retention};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::tables::{World, first, fourth, node, refused, second, third};
use super::{RECORDINGS, Stream, scenario, streams};
use crate::subscribe::tests::support::patiently;
use crate::subscribe::{Staging, Taken};

/// The agent's table after each Commit.
fn worlds() -> Vec<World> {
    let mut worlds: Vec<World> = first().into();
    worlds.push(second());
    worlds.extend(third());
    worlds.push(fourth());
    worlds
}

#[test]
fn frames_of_older_controllers_make_their_tables() {
    for (version, recording) in RECORDINGS {
        let mut staging = Staging::new("", "node-1");
        let mut expected = worlds().into_iter();
        let (mut compressed, mut asked, mut confirmed, mut goaways) = (0, 0, 0, 0);
        for stream in streams(recording).iter().filter(|s| !s.is_relays()) {
            let hello = staging.begin(v1::Hello {
                version: stream.hello().version,
                node: stream.hello().node.clone(),
                agent_version: stream.hello().agent_version.clone(),
                ..v1::Hello::default()
            });
            assert_eq!(hello, *stream.hello(), "{version}");
            for frame in &stream.frames {
                let is_compressed = matches!(frame.frame, Some(v1::frame::Frame::Compressed(_)));
                compressed += usize::from(is_compressed);
                match staging.take_frame(frame.clone()).unwrap() {
                    Taken::Committed(committed) => {
                        let world = expected.next().unwrap();
                        assert_eq!(*committed.table, world.taken("a"), "{version}");
                        let refused = world.records.contains_key(&refused().key);
                        assert_eq!(committed.refused.len(), usize::from(refused));
                    }
                    Taken::Asked(buckets) => {
                        let answer = said(stream, |message| match message {
                            Said::Buckets(said) => Some(said.clone()),
                            _ => None,
                        });
                        assert_eq!([buckets], *answer, "{version}");
                        asked += 1;
                    }
                    Taken::Confirmed(_) => confirmed += 1,
                    Taken::Goaway(_) => goaways += 1,
                    Taken::Welcome(_) | Taken::Staged => {}
                    Taken::Unknown => panic!("{version}: {frame:?}"),
                }
            }
        }
        assert_eq!(expected.count(), 0, "{version}");
        assert!(compressed > 0 && goaways > 0, "{version}");
        assert_eq!((asked, confirmed), (1, 1), "{version}");
    }
}

fn said<T>(stream: &Stream, wanted: impl Fn(&Said) -> Option<T>) -> Vec<T> {
    let messages = stream.messages.iter().filter_map(|m| m.message.as_ref());
    messages.filter_map(wanted).collect()
}

#[test]
fn frames_of_older_controllers_make_a_relays_tables() {
    for (version, recording) in RECORDINGS {
        let (publisher, tables) = Publisher::new(Retention::default());
        let mut forwarder = Forwarder::new("", publisher, tables.clone());
        let mut expected = first().into_iter();
        for stream in streams(recording).iter().filter(|s| s.is_relays()) {
            forwarder.begin(v1::Hello::default());
            for bytes in &stream.raw_frames {
                let frame = EncodedFrame::decode(bytes.as_slice()).unwrap();
                match frame.frame.unwrap() {
                    encoded_frame::Frame::Records(records) => {
                        forwarder.take_records(records).unwrap();
                    }
                    encoded_frame::Frame::Compressed(compressed) => {
                        let records = portolan_subscription::inflate(&compressed).unwrap();
                        forwarder.take_records(records).unwrap();
                    }
                    encoded_frame::Frame::Own(own) => forwarder.take_own(own).unwrap(),
                    encoded_frame::Frame::Commit(commit) => {
                        forwarder.commit(commit, 1).unwrap();
                        forwarder.publish(std::time::Instant::now()).unwrap();
                        let world = expected.next().unwrap();
                        for name in ["a", "b"] {
                            let mut table = tables.table(&node(name));
                            table.records.remove(&refused().key);
                            assert_eq!(table, world.taken(name), "{version}");
                        }
                    }
                    _ => {}
                }
            }
        }
        assert_eq!(expected.count(), 0, "{version}");
    }
}

/// A recorded agent, replayed to controllers of this version.
struct Replayed {
    version: &'static str,
    streams: VecDeque<Stream>,
    relay: Stream,
    staging: Staging,
    open: Option<Open>,
    expected: std::vec::IntoIter<World>,
}

/// Its stream.
struct Open {
    recorded: Stream,
    frames: Streaming<v1::Frame>,
    messages: mpsc::Sender<v1::AgentMessage>,
}

impl Replayed {
    fn new(version: &'static str, recording: &[u8]) -> Self {
        let all = streams(recording).into_iter();
        let (relays, agents): (Vec<_>, Vec<_>) = all.partition(Stream::is_relays);
        Self {
            version,
            streams: agents.into(),
            relay: relays.into_iter().next().unwrap(),
            staging: Staging::new("", "node-1"),
            open: None,
            expected: worlds().into_iter(),
        }
    }

    /// Sends the recorded messages about a revision, held or not.
    async fn acknowledge(&mut self, revision: u64, held: bool) {
        let open = self.open.as_ref().unwrap();
        let acks = said(&open.recorded, |message| match message {
            Said::Received(said) if said.revision == revision => {
                (said.held.is_some() == held).then(|| Said::Received(said.clone()))
            }
            Said::Programmed(said) if said.revision == revision && !held => {
                Some(Said::Programmed(said.clone()))
            }
            _ => None,
        });
        assert!(!acks.is_empty(), "{} {revision}", self.version);
        for message in acks {
            open.say(message).await;
        }
    }
}

impl Open {
    async fn say(&self, message: Said) {
        let message = v1::AgentMessage {
            message: Some(message),
        };
        self.messages.send(message).await.unwrap();
    }
}

impl scenario::Agent for Replayed {
    async fn controller_at(&mut self, address: SocketAddr) -> SocketAddr {
        let recorded = self.streams.pop_front().unwrap();
        let mut client = scenario::client(address);
        let (messages, receiver) = mpsc::channel(16);
        let hello = recorded.messages[0].clone();
        self.staging.begin(v1::Hello::default());
        messages.send(hello).await.unwrap();
        let frames = client.sync(ReceiverStream::new(receiver)).await.unwrap();
        self.open = Some(Open {
            recorded,
            frames: frames.into_inner(),
            messages,
        });
        address
    }

    async fn receive(&mut self, epoch: u64, revision: u64, held: bool) {
        loop {
            let open = self.open.as_mut().unwrap();
            let frame = patiently(open.frames.message()).await.unwrap().unwrap();
            match self.staging.take_frame(frame).unwrap() {
                Taken::Asked(_) => {
                    let buckets = said(&open.recorded, |message| match message {
                        Said::Buckets(_) => Some(message.clone()),
                        _ => None,
                    });
                    open.say(buckets[0].clone()).await;
                }
                Taken::Committed(committed) => {
                    assert_eq!((committed.epoch, committed.revision), (epoch, revision));
                    let world = self.expected.next().unwrap();
                    assert_eq!(*committed.table, world.taken("a"), "{}", self.version);
                    return self.acknowledge(revision, held).await;
                }
                _ => {}
            }
        }
    }

    async fn confirmed(&mut self, _: u64, revision: u64) {
        loop {
            let open = self.open.as_mut().unwrap();
            let frame = patiently(open.frames.message()).await.unwrap().unwrap();
            if let Taken::Confirmed(confirm) = self.staging.take_frame(frame).unwrap() {
                assert_eq!(confirm.revision, revision);
                return self.acknowledge(revision, false).await;
            }
        }
    }

    fn relay_hello(&self) -> v1::Hello {
        self.relay.hello().clone()
    }
}

#[tokio::test]
async fn older_agents_are_served() {
    for (version, recording) in RECORDINGS {
        let mut agent = Replayed::new(version, recording);
        scenario::play(&mut agent).await;
        assert_eq!(agent.expected.count(), 0, "{version}");
    }
}
