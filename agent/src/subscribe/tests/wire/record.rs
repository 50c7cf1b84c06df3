// SPDX-License-Identifier: Apache-2.0

//! Recordings of the messages between the halves of this version.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portolan_proto::v1;
use portolan_proto::v1::tables_server::{Tables, TablesServer};
use prost::Message;
use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use super::{Entry, Recording, scenario};
use crate::subscribe::Report;
use crate::subscribe::tests::support::{self, config};
use crate::subscribe::{GuardConfig, SubscribeConfig};

/// A proxy between agents and controllers that records their messages.
#[derive(Clone, Default)]
struct Tap(Arc<Shared>);

#[derive(Default)]
struct Shared {
    controller: Mutex<Option<SocketAddr>>,
    streams: AtomicU32,
    entries: Mutex<Vec<Entry>>,
}

impl Tap {
    fn note(&self, stream: u32, from_agent: bool, message: &impl Message) {
        self.0.entries.lock().unwrap().push(Entry {
            stream,
            from_agent,
            bytes: message.encode_to_vec(),
        });
    }
}

type Frames = Box<dyn Stream<Item = Result<v1::Frame, Status>> + Send + Unpin>;

#[tonic::async_trait]
impl Tables for Tap {
    type SyncStream = Frames;

    async fn sync(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::SyncStream>, Status> {
        let controller = *self.0.controller.lock().unwrap();
        let controller = controller.ok_or_else(|| Status::unavailable("none yet"))?;
        let mut client = scenario::client(controller);
        let stream = self.0.streams.fetch_add(1, Ordering::Relaxed);
        let (sender, messages) = tokio::sync::mpsc::channel(16);
        let (tap, mut from_agent) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(message)) = from_agent.message().await {
                tap.note(stream, true, &message);
                if sender.send(message).await.is_err() {
                    return;
                }
            }
        });
        let frames = client.sync(ReceiverStream::new(messages)).await?;
        let tap = self.clone();
        let frames = frames
            .into_inner()
            .map(move |frame| frame.inspect(|frame| tap.note(stream, false, frame)));
        Ok(Response::new(Box::new(frames)))
    }
}

/// The agent of this version.
struct Recorded {
    tap: Tap,
    address: SocketAddr,
    agent: support::Agent,
}

impl Recorded {
    async fn start() -> Self {
        let tap = Tap::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server =
            tonic::transport::Server::builder().add_service(TablesServer::new(tap.clone()));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        let agent = support::Agent::start_as(SubscribeConfig {
            endpoints: vec![format!("http://{address}").parse().unwrap()].into(),
            guard: GuardConfig {
                least: 0,
                ..GuardConfig::default()
            },
            ..config()
        });
        Self {
            tap,
            address,
            agent,
        }
    }

    async fn program(&mut self, epoch: u64, revision: u64) {
        let is_it = |table: &crate::subscribe::Subscribed| {
            (table.epoch, table.revision) == (epoch, revision)
        };
        self.agent.table(is_it).await;
        let key = super::tables::refused().key;
        self.agent.reports.send_replace(Some(Report {
            epoch,
            revision,
            duration: Duration::from_micros(1_234),
            errors: vec![
                (Some(key), "no such scheduler".to_owned()),
                (None, "a set is full".to_owned()),
            ],
            checked: 0,
        }));
    }
}

impl scenario::Agent for Recorded {
    async fn controller_at(&mut self, address: SocketAddr) -> SocketAddr {
        *self.tap.0.controller.lock().unwrap() = Some(address);
        self.address
    }

    async fn receive(&mut self, epoch: u64, revision: u64, held: bool) {
        if held {
            self.agent
                .until(|stats| &stats.stream.guard.tables_held, 1)
                .await;
        } else {
            self.program(epoch, revision).await;
        }
    }

    async fn confirmed(&mut self, epoch: u64, revision: u64) {
        self.program(epoch, revision).await;
    }

    fn relay_hello(&self) -> v1::Hello {
        v1::Hello {
            version: portolan_proto::VERSION,
            node: "relay".to_owned(),
            agent_version: "test".to_owned(),
            want: v1::hello::Want::AllNodes.into(),
            ..v1::Hello::default()
        }
    }
}

/// Makes a recording of this version.
#[tokio::test]
#[ignore = "writes a file, once for a version"]
async fn record() {
    let file: PathBuf = std::env::var_os("PORTOLAN_WIRE_RECORDING").unwrap().into();
    let mut agent = Recorded::start().await;
    scenario::play(&mut agent).await;
    let entries = agent.tap.0.entries.lock().unwrap().clone();
    let recording = Recording { entries };
    std::fs::write(file, recording.encode_to_vec()).unwrap();
}
