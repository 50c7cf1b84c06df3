// SPDX-License-Identifier: Apache-2.0

//! A controller that is scripted by tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan_model::{ContentHash, NodeInfo, SetHash};
use portolan_proto::convert::{encode_key, encode_record};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::v1::frame::Frame;
use portolan_proto::v1::tables_server::{Tables, TablesServer};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Server, Uri};
use tonic::{Request, Response, Status, Streaming};

use super::super::{Endpoints, SubscribeConfig};
use super::support::{Agent, impatient, patiently, record, services};

type Frames = mpsc::Sender<Result<v1::Frame, Status>>;

/// Hands each stream to the test.
struct Fake(mpsc::Sender<(Streaming<v1::AgentMessage>, Frames)>);

#[tonic::async_trait]
impl Tables for Fake {
    type SyncStream = ReceiverStream<Result<v1::Frame, Status>>;

    async fn sync(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::SyncStream>, Status> {
        let (frames, receiver) = mpsc::channel(16);
        let stream = (request.into_inner(), frames);
        self.0
            .send(stream)
            .await
            .map_err(|_| Status::internal("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

pub(super) struct Controller {
    pub(super) address: SocketAddr,
    streams: mpsc::Receiver<(Streaming<v1::AgentMessage>, Frames)>,
}

/// One stream, from the controller's side.
pub(super) struct Stream {
    pub(super) hello: v1::Hello,
    pub(super) messages: Streaming<v1::AgentMessage>,
    frames: Frames,
}

impl Controller {
    pub(super) async fn start() -> Self {
        let (sender, streams) = mpsc::channel(1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = Server::builder().add_service(TablesServer::new(Fake(sender)));
        tokio::spawn(server.serve_with_incoming(incoming));
        Self { address, streams }
    }

    /// The agent's next stream, welcomed.
    pub(super) async fn accept(&mut self) -> Stream {
        let (mut messages, frames) = patiently(self.streams.recv()).await.unwrap();
        let hello = match next(&mut messages).await {
            Message::Hello(hello) => hello,
            other => panic!("{other:?}"),
        };
        let stream = Stream {
            hello,
            messages,
            frames,
        };
        stream
            .send(Frame::Welcome(v1::Welcome {
                version: 1,
                epoch: 5,
                ..v1::Welcome::default()
            }))
            .await;
        stream
    }
}

pub(super) async fn next(messages: &mut Streaming<v1::AgentMessage>) -> Message {
    let message = patiently(messages.message()).await.unwrap();
    message.unwrap().message.unwrap()
}

impl Stream {
    pub(super) async fn send(&self, frame: Frame) {
        self.send_raw(Some(frame)).await;
    }

    /// Ends the stream.
    pub(super) async fn fail(self, status: Status) {
        patiently(self.frames.send(Err(status))).await.unwrap();
    }

    async fn send_raw(&self, frame: Option<Frame>) {
        patiently(self.frames.send(Ok(v1::Frame { frame })))
            .await
            .unwrap();
    }

    pub(super) async fn put(&self, records: &[v1::Record]) {
        let put = records.to_vec();
        let delete = vec![];
        self.send(Frame::Records(v1::Records {
            put,
            delete,
            ..v1::Records::default()
        }))
        .await;
    }

    pub(super) async fn delete(&self, service: &str) {
        let key = encode_key(&record(service).key);
        self.send(Frame::Records(v1::Records {
            delete: vec![key],
            ..v1::Records::default()
        }))
        .await;
    }

    /// A Commit whose hashes are those of these records.
    pub(super) async fn commit(&self, revision: u64, snapshot: bool, records: &[v1::Record]) {
        let commit = v1::Commit {
            snapshot,
            ..commit(revision, records)
        };
        self.send(Frame::Commit(commit)).await;
    }

    /// A snapshot's Commit of these source versions.
    pub(super) async fn commit_at(
        &self,
        revision: u64,
        records: &[v1::Record],
        source_versions: Vec<u64>,
    ) {
        let commit = v1::Commit {
            snapshot: true,
            source_versions,
            ..commit(revision, records)
        };
        self.send(Frame::Commit(commit)).await;
    }

    pub(super) async fn received(&mut self) -> v1::Received {
        match next(&mut self.messages).await {
            Message::Received(received) => received,
            other => panic!("{other:?}"),
        }
    }
}

fn commit(revision: u64, records: &[v1::Record]) -> v1::Commit {
    let hashes = records.iter();
    let hashes = hashes.map(|r| ContentHash::from_bytes(&r.hash).unwrap());
    let records: SetHash = hashes.collect();
    let own: SetHash = [NodeInfo::default().content_hash()].into_iter().collect();
    v1::Commit {
        revision,
        records_hash: records.to_bytes().into(),
        own_hash: own.to_bytes().into(),
        ..v1::Commit::default()
    }
}

pub(super) fn encoded(service: &str) -> v1::Record {
    let record = record(service);
    encode_record(&record, record.content_hash())
}

#[tokio::test]
async fn unusable_records_are_refused_and_the_rest_applies() {
    let mut controller = Controller::start().await;
    let mut agent = Agent::start(&[controller.address]);
    let mut stream = controller.accept().await;
    assert_eq!((stream.hello.epoch, stream.hello.node.as_str()), (0, "a"));
    let (x, y) = (encoded("x"), encoded("y"));
    stream.put(&[x.clone(), y.clone()]).await;
    stream.commit(1, true, &[x.clone(), y.clone()]).await;
    assert_eq!(
        stream.received().await,
        v1::Received {
            revision: 1,
            ..v1::Received::default()
        }
    );
    let good = agent.table(|table| table.revision == 1).await;
    let (mut odd, mut bad) = (encoded("odd"), encoded("x"));
    odd.key.as_mut().unwrap().protocol = 99;
    bad.hash = vec![3; 16];
    bad.destinations.as_mut().unwrap().ports = vec![70_000];
    let z = encoded("z");
    stream.put(&[odd.clone(), bad.clone(), z.clone()]).await;
    stream.commit(2, false, &[odd.clone(), bad, y, z]).await;
    let received = stream.received().await;
    assert_eq!((received.revision, received.refused_total), (2, 2));
    let keys: Vec<_> = received
        .refused
        .iter()
        .map(|refusal| refusal.key.clone())
        .collect();
    assert_eq!(keys, [odd.key, x.key]);
    let table = agent.table(|table| table.revision == 2).await;
    assert_eq!(services(&table), ["x", "y", "z"]);
    let key = record("x").key;
    assert_eq!(table.table.records[&key], good.table.records[&key]);
    assert_eq!(agent.stats.refused_records.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn an_unknown_frame_is_ignored() {
    let mut controller = Controller::start().await;
    let mut agent = Agent::start(&[controller.address]);
    let stream = controller.accept().await;
    stream.send_raw(None).await;
    stream.put(&[encoded("x")]).await;
    stream.send_raw(None).await;
    stream.commit(1, true, &[encoded("x")]).await;
    agent.table(|table| services(table) == ["x"]).await;
    assert_eq!(agent.stats.stream.unknown_frames.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_table_that_does_not_fit_is_asked_for_again() {
    let mut controller = Controller::start().await;
    let mut agent = Agent::start(&[controller.address]);
    let stream = controller.accept().await;
    stream.put(&[encoded("x")]).await;
    stream.commit(1, true, &[encoded("x")]).await;
    let good = agent.table(|_| true).await;
    stream.put(&[encoded("y")]).await;
    stream.commit(2, false, &[encoded("y")]).await;
    let stream = controller.accept().await;
    assert_eq!((stream.hello.epoch, stream.hello.revision), (0, 0));
    assert!(stream.hello.records_hash.is_empty());
    assert_eq!(
        agent.stats.stream.hash_mismatches.load(Ordering::Relaxed),
        1
    );
    assert_eq!(agent.tables.borrow().as_ref(), Some(&good));
    stream.put(&[encoded("y")]).await;
    stream.commit(2, true, &[encoded("y")]).await;
    agent.table(|table| services(table) == ["y"]).await;
}

#[tokio::test]
async fn a_broken_stream_is_taken_up_with_what_there_is() {
    let mut controller = Controller::start().await;
    let mut agent = Agent::start(&[controller.address]);
    let stream = controller.accept().await;
    stream.put(&[encoded("x")]).await;
    stream.commit(7, true, &[encoded("x")]).await;
    let first = agent.table(|_| true).await;
    stream.put(&[encoded("never committed")]).await;
    drop(stream);
    let stream = controller.accept().await;
    assert_eq!((stream.hello.epoch, stream.hello.revision), (5, 7));
    let hash = first.table.records_hash().to_bytes();
    assert_eq!(stream.hello.records_hash, hash);
    stream.commit(8, false, &[encoded("x")]).await;
    let second = agent.table(|table| table.revision == 8).await;
    assert!(Arc::ptr_eq(&first.table, &second.table));
    assert_eq!(agent.stats.stream.streams.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_goaway_is_followed_by_a_new_stream() {
    let mut controller = Controller::start().await;
    let agent = Agent::start(&[controller.address]);
    let stream = controller.accept().await;
    stream
        .send(Frame::Goaway(v1::Goaway { spread_ms: 1 }))
        .await;
    controller.accept().await;
    agent.until(|stats| &stats.stream.streams, 2).await;
}

#[tokio::test]
async fn until_it_leaves_an_agent_takes_what_comes() {
    let mut controller = Controller::start().await;
    let mut agent = Agent::start(&[controller.address]);
    let stream = controller.accept().await;
    let long = v1::Goaway {
        spread_ms: 3_600_000,
    };
    stream.send(Frame::Goaway(long)).await;
    stream.put(&[encoded("x")]).await;
    stream.commit(1, true, &[encoded("x")]).await;
    agent.table(|table| services(table) == ["x"]).await;
    assert_eq!(agent.stats.stream.streams.load(Ordering::Relaxed), 1);
    // It ends before.
    drop(stream);
    controller.accept().await;
    agent.until(|stats| &stats.stream.streams, 2).await;
}

#[tokio::test]
async fn a_controller_that_says_nonsense_is_left_for_another() {
    let mut mad = Controller::start().await;
    let mut other = Controller::start().await;
    let mut agent = Agent::start(&[mad.address, other.address]);
    // The one that is connected first sends a Commit that does not fit.
    let (stream, mut other) = tokio::select! {
        stream = mad.accept() => (stream, other),
        stream = other.accept() => (stream, mad),
    };
    stream.commit(1, true, &[encoded("x")]).await;
    let stream = other.accept().await;
    stream.commit(1, true, &[]).await;
    agent.table(|table| table.revision == 1).await;
    assert_eq!(
        agent.stats.stream.hash_mismatches.load(Ordering::Relaxed),
        1
    );
}

#[tokio::test]
async fn a_silent_controller_is_left_for_another() {
    let mut silent = Controller::start().await;
    let mut other = Controller::start().await;
    let addresses = [silent.address, other.address];
    let uris = addresses.map(|address| format!("http://{address}").parse().unwrap());
    let mut agent = Agent::start_as(SubscribeConfig {
        endpoints: uris.to_vec().into(),
        ..impatient()
    });
    // The one that is connected first stays silent.
    let (held, stream) = tokio::select! {
        held = silent.accept() => (held, other.accept().await),
        held = other.accept() => (held, silent.accept().await),
    };
    stream.commit(1, true, &[]).await;
    agent.table(|table| table.revision == 1).await;
    drop(held);
}

/// The other one was not there yet when the agent connected.
#[tokio::test]
async fn a_silent_controller_is_left_for_another_that_was_listed_later() {
    let mut silent = Controller::start().await;
    let mut other = Controller::start().await;
    let list = |controller: &Controller| -> Arc<Vec<Uri>> {
        let uri = format!("http://{}", controller.address).parse();
        Arc::new(vec![uri.unwrap()])
    };
    let (lists, followed) = watch::channel(list(&silent));
    let mut agent = Agent::start_as(SubscribeConfig {
        endpoints: Endpoints::Followed(followed),
        ..impatient()
    });
    let held = silent.accept().await;
    lists.send_replace(list(&other));
    let stream = other.accept().await;
    stream.commit(1, true, &[]).await;
    agent.table(|table| table.revision == 1).await;
    drop(held);
}
