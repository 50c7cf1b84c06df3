// SPDX-License-Identifier: Apache-2.0

//! With the real controller's half.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_model::{Destination, NodeKey, Record};
use portolan_select::TableDelta;
use portolan_serve::{Registry, ServeConfig, TablesServer};
use portolan_tablelog::{Publisher, Retention, TableReader};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server as TonicServer;
use tonic::transport::server::TcpIncoming;

use super::super::{Report, SubscribeConfig};
use super::support::{Agent, config, patiently, record, services};

pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) publisher: Publisher,
    pub(super) tables: TableReader,
    pub(super) registry: Arc<Registry>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(address: SocketAddr, services: &[&str]) -> Self {
        let mut server = Self::empty(address).await;
        server.publisher.publish(&puts(services));
        server.publisher.set_synced(&"".into());
        server
    }

    /// A controller that has published nothing yet.
    pub(super) async fn empty(address: SocketAddr) -> Self {
        let (publisher, tables) = Publisher::new(Retention::default());
        let registry = Arc::new(Registry::default());
        let shutdown = CancellationToken::new();
        let config = ServeConfig {
            goaway_spread: Duration::ZERO,
            ..ServeConfig::default()
        };
        let (t, r, s) = (tables.clone(), Arc::clone(&registry), shutdown.clone());
        let server = TonicServer::builder().add_service(TablesServer::new(t, r, config, s));
        let listener = listen(address);
        let address = listener.local_addr().unwrap();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let stop = shutdown.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            server
                .serve_with_incoming_shutdown(incoming, stop)
                .await
                .unwrap();
        });
        Self {
            address,
            publisher,
            tables,
            registry,
            shutdown,
            task,
        }
    }

    pub(super) async fn stop(self) {
        self.shutdown.cancel();
        patiently(self.task).await.unwrap();
    }
}

/// Also at an address that was in use a moment ago.
fn listen(address: SocketAddr) -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket.listen(16).unwrap()
}

pub(super) fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn puts(services: &[&str]) -> TableDelta {
    let records = services.iter().map(|service| record(service));
    TableDelta {
        records: records
            .map(|record| (record.key.clone(), Some(Arc::new(record))))
            .collect(),
        ..TableDelta::default()
    }
}

fn node() -> NodeKey {
    NodeKey {
        cluster: "".into(),
        name: "a".into(),
    }
}

#[tokio::test]
async fn the_agents_table_is_the_controllers() {
    let mut server = Server::start(any_port(), &["x", "y"]).await;
    let mut agent = Agent::start(&[server.address]);
    let first = agent.table(|table| table.revision == 1).await;
    assert_eq!(*first.table, server.tables.table(&node()));
    assert_eq!(first.epoch, server.tables.epoch());
    server.publisher.publish(&puts(&["z"]));
    let second = agent.table(|table| table.revision == 2).await;
    assert_eq!(*second.table, server.tables.table(&node()));
    assert_eq!(server.registry.counters().items, 3);
}

#[tokio::test]
async fn programmed_revisions_are_seen_at_the_controller() {
    let server = Server::start(any_port(), &["x"]).await;
    let mut agent = Agent::start(&[server.address]);
    let table = agent.table(|_| true).await;
    let report = Report {
        epoch: table.epoch,
        revision: table.revision,
        duration: Duration::from_micros(1_234),
        errors: vec![(Some(record("x").key), "no such scheduler".to_owned())],
        checked: 0,
    };
    agent.reports.send_replace(Some(report));
    let status = patiently(async {
        loop {
            let status = server.registry.snapshot().pop();
            match status.filter(|status| status.programmed.is_some()) {
                Some(status) => return status,
                None => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert_eq!((status.received, status.programmed), (Some(1), Some(1)));
    assert_eq!(status.programmed_duration_us, Some(1_234));
    assert_eq!(status.records_hash, Some(table.table.records_hash()));
    assert_eq!(status.own_hash, Some(table.table.own_hash()));
    assert_eq!(status.errors[0].record.as_deref(), Some("ns/x/TCP"));
}

#[tokio::test]
async fn a_restarted_controller_with_the_same_content_sends_nothing() {
    let first = Server::start(any_port(), &["x", "y"]).await;
    let address = first.address;
    let mut agent = Agent::start(&[address]);
    let before = agent.table(|_| true).await;
    first.stop().await;
    // The table stays in force without any controller.
    assert_eq!(agent.tables.borrow().as_ref(), Some(&before));
    let mut second = Server::start(address, &["x", "y"]).await;
    let epoch = second.tables.epoch();
    let after = agent.table(|table| table.epoch == epoch).await;
    assert!(Arc::ptr_eq(&after.table, &before.table));
    let counters = second.registry.counters();
    assert_eq!((counters.items, counters.resumed_equal), (0, 1));
    second.publisher.publish(&puts(&["z"]));
    let table = agent.table(|table| table.revision == 2).await;
    assert_eq!(services(&table), ["x", "y", "z"]);
}

/// The stream is ended by another one of the same node, the only end that leaves the controller.
#[tokio::test]
async fn a_stream_is_resumed_with_what_changed() {
    let mut server = Server::start(any_port(), &["x", "y"]).await;
    let mut agent = Agent::start(&[server.address]);
    agent.table(|_| true).await;
    let mut twin = Agent::start(&[server.address]);
    twin.table(|_| true).await;
    drop(twin);
    let items = server.registry.counters().items;
    assert_eq!(items, 4);
    server.publisher.publish(&puts(&["z"]));
    let table = agent.table(|table| table.revision == 2).await;
    assert_eq!(services(&table), ["x", "y", "z"]);
    let counters = server.registry.counters();
    assert_eq!(counters.snapshots, 2);
    assert!(counters.resumed + counters.resumed_equal >= 1);
}

#[tokio::test]
async fn an_agent_goes_where_there_is_a_controller() {
    // Of an IP address at which no other test takes the port.
    let gone = listen(([127, 0, 0, 2], 0).into()).local_addr().unwrap();
    let first = Server::start(any_port(), &["x"]).await;
    let second = Server::start(any_port(), &["x", "y"]).await;
    let mut agent = Agent::start(&[gone, first.address, second.address]);
    let table = agent.table(|_| true).await;
    let (used, other) = if table.epoch == first.tables.epoch() {
        (first, second)
    } else {
        (second, first)
    };
    used.stop().await;
    let epoch = other.tables.epoch();
    let table = agent.table(|table| table.epoch == epoch).await;
    assert_eq!(*table.table, other.tables.table(&node()));
}

#[tokio::test]
async fn another_replica_sends_only_the_buckets_that_differ() {
    let names: Vec<String> = (0..1000).map(|i| format!("s{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let first = Server::start(any_port(), &names[1..]).await;
    let second = Server::start(any_port(), &names).await;
    let mut agent = Agent::start(&[first.address, second.address]);
    let table = agent.table(|_| true).await;
    let (used, other) = if table.epoch == first.tables.epoch() {
        (first, second)
    } else {
        (second, first)
    };
    assert_eq!(*table.table, used.tables.table(&node()));
    used.stop().await;
    let epoch = other.tables.epoch();
    let table = agent.table(|table| table.epoch == epoch).await;
    assert_eq!(*table.table, other.tables.table(&node()));
    let counters = other.registry.counters();
    assert_eq!((counters.resumed_buckets, counters.snapshots), (1, 0));
    assert!(counters.items < 200, "{}", counters.items);
}

#[tokio::test]
async fn a_restarted_agent_resumes_with_the_table_on_its_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(any_port(), &["x", "y"]).await;
    let config = SubscribeConfig {
        endpoints: vec![format!("http://{}", server.address).parse().unwrap()].into(),
        state_dir: Some(dir.path().to_owned()),
        ..config()
    };
    let mut agent = Agent::start_as(config.clone());
    agent.table(|table| table.revision == 1).await;
    agent.stop().await;
    server.publisher.publish(&puts(&["z"]));
    let mut agent = Agent::start_as(config);
    let table = agent.table(|table| table.revision == 2).await;
    assert_eq!(*table.table, server.tables.table(&node()));
    let counters = server.registry.counters();
    assert_eq!((counters.snapshots, counters.resumed), (1, 1));
}

/// Whatever the controller makes of it: whole records, or patches of large ones.
#[tokio::test]
async fn a_large_record_is_followed_through_its_changes() {
    let mut server = Server::start(any_port(), &["x"]).await;
    let mut agent = Agent::start(&[server.address]);
    agent.table(|table| table.revision == 1).await;
    let wide = |ports: std::ops::Range<u16>| {
        let addresses = ports.map(|port| ([10, 0, 0, 1], port).into());
        Record {
            destinations: addresses.map(Destination::new).collect(),
            ..record("wide")
        }
    };
    for (revision, ports) in [
        (2, 1..100),
        (3, 1..101),
        (4, 5..101),
        (5, 5..6),
        (6, 1..400),
    ] {
        let record = wide(ports);
        server.publisher.publish(&TableDelta {
            records: [(record.key.clone(), Some(Arc::new(record)))].into(),
            ..TableDelta::default()
        });
        let table = agent.table(|table| table.revision == revision).await;
        assert_eq!(*table.table, server.tables.table(&node()));
    }
    assert_eq!(agent.stats.stream.streams.load(Ordering::Relaxed), 1);
}
