// SPDX-License-Identifier: Apache-2.0

//! Test support: a server on a free port, and a bare client.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_model::{Destination, NodeInfo, NodeKey, NodeOverlay, Protocol, Record, RecordKey};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::v1::frame::Frame;
use portolan_proto::v1::tables_client::TablesClient;
use portolan_select::TableDelta;
use rustls::ServerConfig as TlsConfig;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use crate::{Registry, ServeConfig, TablesServer};
use portolan_listener::Limits;
use portolan_tablelog::testing::inflate;
use portolan_tablelog::{Publisher, Retention, TableReader};

/// Time after which a waiting test fails.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn patiently<F: Future>(future: F) -> F::Output {
    timeout(PATIENCE, future).await.expect("in time")
}

pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) publisher: Publisher,
    pub(super) tables: TableReader,
    pub(super) registry: Arc<Registry>,
    pub(super) shutdown: CancellationToken,
}

impl Server {
    /// Starts a server that is not synced.
    pub(super) async fn start() -> Self {
        Self::with(ServeConfig::default(), None, Limits::default()).await
    }

    /// Starts a server that is not synced, with shortened `goaway_spread` and `hello_timeout`.
    pub(super) async fn with(
        config: ServeConfig,
        tls: Option<watch::Receiver<Arc<TlsConfig>>>,
        limits: Limits,
    ) -> Self {
        let registry = Arc::new(Registry::default());
        let (publisher, tables) = Publisher::new(Retention::default());
        let publisher = publisher.observed_by(registry.clone());
        let shutdown = CancellationToken::new();
        let config = ServeConfig {
            goaway_spread: Duration::from_millis(1_500),
            hello_timeout: Duration::from_millis(500),
            ..config
        };
        let (t, r, s) = (tables.clone(), Arc::clone(&registry), shutdown.clone());
        let service = TablesServer::new(t, r, config, s);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(service.serve(listener, tls, limits));
        Self {
            address,
            publisher,
            tables,
            registry,
            shutdown,
        }
    }

    pub(super) async fn synced(deltas: &[TableDelta]) -> Self {
        Self::synced_with(ServeConfig::default(), deltas).await
    }

    pub(super) async fn synced_with(config: ServeConfig, deltas: &[TableDelta]) -> Self {
        let mut server = Self::with(config, None, Limits::default()).await;
        for delta in deltas {
            server.publisher.publish(delta);
        }
        server.publisher.set_synced(&"".into());
        server
    }

    /// Connects a client that has sent Hello and received Welcome.
    pub(super) async fn connect(&self, hello: v1::Hello) -> Client {
        Client::open(self.address, Message::Hello(hello))
            .await
            .unwrap()
    }

    /// Waits until the registry meets a condition.
    pub(super) async fn until(&self, shown: impl Fn(&Registry) -> bool) {
        patiently(async {
            while !shown(&self.registry) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// A client that sends given messages and returns received frames.
pub(super) struct Client {
    pub(super) epoch: u64,
    /// The cluster's identity in Welcome.
    pub(super) cluster_id: String,
    messages: mpsc::Sender<v1::AgentMessage>,
    frames: Streaming<v1::Frame>,
}

/// The content of one transition.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Services of the records.
    pub(super) put: Vec<String>,
    pub(super) deleted: Vec<String>,
    /// Services of the node's own lists.
    pub(super) own: Vec<String>,
    pub(super) node: Option<v1::NodeInfo>,
    pub(super) commit: v1::Commit,
}

impl Client {
    pub(super) async fn open(address: SocketAddr, first: Message) -> Result<Self, Status> {
        Self::begin(channel(address).await, first, None).await
    }

    /// Begins a stream on a channel, with a token if given.
    pub(super) async fn begin(
        channel: Channel,
        first: Message,
        token: Option<&str>,
    ) -> Result<Self, Status> {
        let mut client = TablesClient::new(channel);
        let (messages, receiver) = mpsc::channel(16);
        messages.send(message(first)).await.unwrap();
        let mut request = Request::new(ReceiverStream::new(receiver));
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        let stream = client.sync(request);
        let mut this = Self {
            epoch: 0,
            cluster_id: String::new(),
            messages,
            frames: patiently(stream).await?.into_inner(),
        };
        match this.next().await? {
            Some(Frame::Welcome(welcome)) => {
                this.epoch = welcome.epoch;
                this.cluster_id = welcome.cluster_id;
            }
            other => panic!("no Welcome: {other:?}"),
        }
        Ok(this)
    }

    pub(super) async fn say(&self, said: Message) {
        self.try_say(said).await.unwrap();
    }

    /// Sends a message; fails after the end of the stream.
    pub(super) async fn try_say(&self, said: Message) -> Result<(), ()> {
        self.messages.send(message(said)).await.map_err(|_| ())
    }

    pub(super) async fn next(&mut self) -> Result<Option<Frame>, Status> {
        let frame = patiently(self.frames.message()).await?;
        Ok(frame.map(|frame| inflate(frame).frame.unwrap()))
    }

    pub(super) async fn batch(&mut self) -> Batch {
        let mut batch = Batch::default();
        loop {
            match self.next().await.unwrap() {
                Some(Frame::Records(records)) => {
                    batch
                        .put
                        .extend(records.put.into_iter().map(|r| service(r.key)));
                    let deleted = records.delete.into_iter().map(Some);
                    batch.deleted.extend(deleted.map(service));
                }
                Some(Frame::Own(own)) => {
                    batch
                        .own
                        .extend(own.put.into_iter().map(|lists| service(lists.key)));
                    batch.node = own.node.or(batch.node);
                }
                Some(Frame::Commit(commit)) => return Batch { commit, ..batch },
                other => panic!("{other:?} within a batch"),
            }
        }
    }

    /// The Hello of a client that reconnects with the table of `batch`.
    pub(super) fn again(&self, node: &str, batch: &Batch) -> v1::Hello {
        v1::Hello {
            epoch: self.epoch,
            revision: batch.commit.revision,
            records_hash: batch.commit.records_hash.clone(),
            own_hash: batch.commit.own_hash.clone(),
            ..hello(node)
        }
    }
}

/// A connection with small windows, so that little is in flight.
pub(super) async fn channel(address: SocketAddr) -> Channel {
    try_channel(address).await.unwrap()
}

/// Same as [`channel`], for connections that the server may refuse.
pub(super) async fn try_channel(address: SocketAddr) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535);
    patiently(endpoint.connect()).await
}

fn service(key: Option<v1::RecordKey>) -> String {
    key.unwrap().service
}

fn message(message: Message) -> v1::AgentMessage {
    v1::AgentMessage {
        message: Some(message),
    }
}

pub(super) fn hello(node: &str) -> v1::Hello {
    v1::Hello {
        version: 1,
        node: node.to_owned(),
        ..v1::Hello::default()
    }
}

pub(super) fn node(name: &str) -> NodeKey {
    NodeKey {
        cluster: "".into(),
        name: name.into(),
    }
}

fn key(service: &str) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: service.into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    }
}

/// Sets a record for each service, with `destinations` squared destinations whose port is
/// `version`.
pub(super) fn puts(services: &[&str], version: u16, destinations: u8) -> TableDelta {
    let record = |service: &&str| Record {
        destinations: (1..=destinations)
            .flat_map(|a| (1..=destinations).map(move |b| [10, 0, a, b]))
            .map(|ip| Destination::new((ip, version).into()))
            .collect(),
        ..Record::new(key(service))
    };
    TableDelta {
        records: services
            .iter()
            .map(|service| (key(service), Some(Arc::new(record(service)))))
            .collect(),
        ..TableDelta::default()
    }
}

pub(super) fn put(services: &[&str]) -> TableDelta {
    puts(services, 80, 1)
}

pub(super) fn delete(service: &str) -> TableDelta {
    TableDelta {
        records: BTreeMap::from([(key(service), None)]),
        ..TableDelta::default()
    }
}

/// Sets a node's zone and its lists for a service.
pub(super) fn own(name: &str, service: &str, zone: &str) -> TableDelta {
    let lists = NodeOverlay {
        own: vec![([10, 0, 1, 1], 80).into()],
        ..NodeOverlay::default()
    };
    let info = NodeInfo {
        zone: Some(zone.into()),
        ..NodeInfo::default()
    };
    TableDelta {
        lists: BTreeMap::from([(
            node(name),
            BTreeMap::from([(key(service), Some(Arc::new(lists)))]),
        )]),
        nodes: BTreeMap::from([(node(name), info)]),
        ..TableDelta::default()
    }
}
