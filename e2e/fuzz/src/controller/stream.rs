// SPDX-License-Identifier: Apache-2.0

//! A stream, from the bytes of its request to the bytes of its answer.
//!
//! Invariants: nothing panics and nothing hangs. Frames are sent only after a valid Hello, and can
//! be decoded. An agent without a table is sent a whole table that it accepts. The registry's state
//! of another node stays unchanged.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use portolan_agent::subscribe::{Staging, Taken};
use portolan_proto::limits::MAX_AGENT_MESSAGE_BYTES;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message as Said;
use portolan_select::TableDelta;
use portolan_serve::{Registry, ServeConfig, TablesServer};
use portolan_tablelog::{Publisher, Retention};
use prost::Message;
use prost::bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;
use tonic::codegen::{Service, http};

use super::Outcome;
use crate::input::Pieces;
use crate::seeds;

/// The node whose state no input of another may change.
const VICTIM: &str = "victim";

static TABLE: LazyLock<TableDelta> = LazyLock::new(seeds::table);

/// A controller without a listener.
pub(super) struct Server {
    service: TablesServer,
    registry: Arc<Registry>,
    runtime: Runtime,
    // Keeps the stream open: without a publisher no more can come.
    _publisher: Publisher,
}

/// The answer to a stream.
pub(super) struct Answer {
    pub(super) frames: Vec<v1::Frame>,
}

/// Runs messages.
pub(super) fn messages(input: &[u8]) -> Outcome {
    body(&framed(Pieces(input)))
}

/// Runs the body of a request.
pub(super) fn body(input: &[u8]) -> Outcome {
    let mut server = Server::new(ServeConfig::default());
    let victim = v1::Hello {
        node: VICTIM.to_owned(),
        ..seeds::hello()
    };
    server.ask(&framed([&said(Said::Hello(victim))[..]].into_iter()), None);
    let before = server.victim();
    let answer = server.ask(input, None);
    let hello = first_hello(input);
    if answer.frames.is_empty() {
        return Outcome::default();
    }
    let hello = hello.expect("frames only after a good Hello");
    if hello.node != VICTIM {
        assert_eq!(server.victim(), before, "somebody else's message");
    }
    // Agents do not accept the frames for a relay.
    let has_table = hello.records_hash.len() == 16 && hello.own_hash.len() == 16;
    if hello.want() == v1::hello::Want::Node && !has_table {
        takes(&answer.frames);
    }
    Outcome {
        admitted: 1,
        frames: answer.frames.len(),
        ..Outcome::default()
    }
}

/// Checks that an agent without a table accepts all frames.
fn takes(frames: &[v1::Frame]) {
    let mut staging = Staging::new("", "node-1");
    for frame in frames {
        let taken = staging.take_frame(frame.clone());
        let Taken::Committed(committed) = taken.expect("the hashes fit") else {
            continue;
        };
        assert!(committed.refused.is_empty(), "{:?}", committed.refused);
        assert_eq!(committed.table.records.len(), TABLE.records.len());
    }
}

/// The Hello of a body, if it is valid by the protocol.
fn first_hello(body: &[u8]) -> Option<v1::Hello> {
    let (head, rest) = body.split_at_checked(5)?;
    let length = u32::from_be_bytes(head[1..].try_into().ok()?);
    let length = usize::try_from(length).ok()?;
    let fits = head[0] == 0 && length <= MAX_AGENT_MESSAGE_BYTES;
    let message = rest.get(..length).filter(|_| fits)?;
    let Some(Said::Hello(hello)) = v1::AgentMessage::decode(message).ok()?.message else {
        return None;
    };
    let named = (1..=253).contains(&hello.node.len());
    (hello.version > 0 && hello.cluster.is_empty() && named).then_some(hello)
}

/// Encodes a message.
pub(super) fn said(message: Said) -> Vec<u8> {
    let message = Some(message);
    v1::AgentMessage { message }.encode_to_vec()
}

/// The messages in gRPC's framing.
pub(super) fn framed<'a>(messages: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut body = Vec::new();
    for message in messages {
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        body.push(0);
        body.extend(length.to_be_bytes());
        body.extend(message);
    }
    body
}

impl Server {
    pub(super) fn new(config: ServeConfig) -> Self {
        let (mut publisher, tables) = Publisher::new(Retention::default());
        publisher.publish(&*TABLE);
        publisher.set_synced(&"".into());
        let registry = Arc::new(Registry::default());
        let shutdown = CancellationToken::new();
        let config = ServeConfig {
            hello_timeout: Duration::from_millis(200),
            ..config
        };
        let service = TablesServer::new(tables, Arc::clone(&registry), config, shutdown);
        let runtime = Builder::new_current_thread().enable_time().build();
        Self {
            service,
            registry,
            runtime: runtime.expect("a runtime"),
            _publisher: publisher,
        }
    }

    /// The registry's state of the victim, as text.
    fn victim(&self) -> String {
        let nodes = self.registry.snapshot();
        let victim = nodes.iter().find(|status| &*status.node == VICTIM);
        format!("{:?}", victim.expect("a node that was connected"))
    }

    /// Sends a body and reads the answer to its end.
    pub(super) fn ask(&mut self, body: &[u8], token: Option<&[u8]>) -> Answer {
        let mut request = http::Request::post("/portolan.v1.Tables/Sync")
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let body = Full::new(Bytes::copy_from_slice(body));
        // A token may have bytes that are not allowed in a header.
        let Ok(request) = request.body(body) else {
            return Answer { frames: Vec::new() };
        };
        let (service, registry) = (&mut self.service, &self.registry);
        let answered = self.runtime.block_on(async move {
            let response = service.call(request).await.expect("an answer");
            assert_eq!(response.status(), 200);
            let collected = response.into_body().collect().await;
            // The reading half ends after the writing half, in its own time.
            while registry.connected() > 0 {
                tokio::task::yield_now().await;
            }
            collected.expect("an answer's body").to_bytes()
        });
        Answer {
            frames: frames(&answered),
        }
    }
}

/// The frames of a body, which must be complete.
fn frames(mut body: &[u8]) -> Vec<v1::Frame> {
    let mut frames = Vec::new();
    while !body.is_empty() {
        let (head, rest) = body.split_at(5);
        assert_eq!(head[0], 0, "compressed by nobody's wish");
        let length = u32::from_be_bytes(head[1..].try_into().expect("four bytes"));
        let (frame, rest) = rest.split_at(usize::try_from(length).expect("a length"));
        frames.push(v1::Frame::decode(frame).expect("a frame"));
        body = rest;
    }
    frames
}
