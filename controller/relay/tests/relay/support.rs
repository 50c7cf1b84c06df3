// SPDX-License-Identifier: Apache-2.0

//! Controllers, relays and agents in one process, on loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use portolan_agent::subscribe::{self, ClusterPin, HeldView, Report, SubscribeConfig, Subscribed};
use portolan_listener::Limits;
use portolan_model::{
    Destination, NodeInfo, NodeKey, NodeOverlay, NodeTable, Protocol, Record, RecordKey,
};
use portolan_relay::{Outlets, RelayConfig, Stats};
use portolan_select::TableDelta;
use portolan_serve::{Registry, ServeConfig, TablesServer};
use portolan_subscription::{GuardConfig, Security};
use portolan_tablelog::{Forwarder, Publisher, Retention, TableReader};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Time for which a test waits before it fails.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn patiently<F: Future>(future: F) -> F::Output {
    timeout(PATIENCE, future).await.expect("in time")
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, wait).await.is_ok(), "{what}");
}

/// Any port of an IP address of its own, at which no other test takes it while its server restarts.
pub(crate) fn any_port() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    ([127, 0, 1, NEXT.fetch_add(1, Ordering::Relaxed)], 0).into()
}

/// The serving half of a controller or a relay.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) tables: TableReader,
    pub(crate) registry: Arc<Registry>,
    token: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    fn start(address: SocketAddr, tables: TableReader, registry: Arc<Registry>) -> Self {
        let token = CancellationToken::new();
        let config = ServeConfig {
            goaway_spread: Duration::ZERO,
            ..ServeConfig::default()
        };
        let (t, r) = (tables.clone(), Arc::clone(&registry));
        let service = TablesServer::new(t, r, config, token.clone());
        let listener = listen(address);
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            service
                .serve(listener, None, Limits::default())
                .await
                .unwrap();
        });
        Self {
            address,
            tables,
            registry,
            token,
            task,
        }
    }

    /// As a program stops.
    async fn stop(self) {
        self.token.cancel();
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

/// A controller whose tables are set by tests.
pub(crate) struct Root {
    pub(crate) publisher: Publisher,
    pub(crate) server: Server,
}

impl Root {
    pub(crate) fn start(address: SocketAddr, deltas: &[TableDelta]) -> Self {
        let (mut publisher, tables) = Publisher::new(Retention::default());
        for delta in deltas {
            publisher.publish(delta);
        }
        publisher.set_synced(&"".into());
        let server = Server::start(address, tables, Arc::default());
        Self { publisher, server }
    }

    pub(crate) fn table(&self, name: &str) -> NodeTable {
        self.server.tables.table(&node(name))
    }

    pub(crate) async fn stop(self) {
        self.server.stop().await;
    }
}

/// A relay as the program runs it.
pub(crate) struct Relay {
    pub(crate) server: Server,
    pub(crate) stats: Arc<Stats>,
    token: CancellationToken,
    task: JoinHandle<()>,
}

impl Relay {
    pub(crate) fn start(address: SocketAddr, upstreams: &[SocketAddr]) -> Self {
        Self::with(address, upstreams, GuardConfig::default())
    }

    pub(crate) fn with(address: SocketAddr, upstreams: &[SocketAddr], guard: GuardConfig) -> Self {
        let (publisher, tables) = Publisher::new(Retention::default());
        let server = Server::start(address, tables.clone(), Arc::default());
        let (stats, token) = (Arc::new(Stats::default()), CancellationToken::new());
        let config = RelayConfig {
            upstreams: uris(upstreams),
            security: Security::Plaintext,
            cluster: String::new(),
            name: "r".to_owned(),
            version: "test".to_owned(),
            guard,
            first_commit_timeout: Duration::from_secs(10),
            cores: 1,
        };
        let outlets = Outlets {
            identity: publisher.identity(&"".into()),
            doubts: publisher.source_doubts(&"".into()),
            forwarder: Forwarder::new("", publisher, tables),
            sessions: Arc::clone(&server.registry),
            stats: Arc::clone(&stats),
        };
        let task = tokio::spawn(portolan_relay::run(
            config,
            outlets,
            |_, _| {},
            token.clone(),
        ));
        Self {
            server,
            stats,
            token,
            task,
        }
    }

    pub(crate) async fn stop(self) {
        self.token.cancel();
        patiently(self.task).await.unwrap();
        self.server.stop().await;
    }
}

fn uris(addresses: &[SocketAddr]) -> Vec<tonic::transport::Uri> {
    let uris = addresses.iter().map(|a| format!("http://{a}").parse());
    uris.map(Result::unwrap).collect()
}

/// An agent's half of the stream.
pub(crate) struct Agent {
    tables: watch::Receiver<Option<Arc<Subscribed>>>,
    reports: watch::Sender<Option<Report>>,
    pub(crate) stats: Arc<subscribe::Stats>,
    token: CancellationToken,
}

impl Agent {
    pub(crate) fn start(node: &str, controllers: &[SocketAddr]) -> Self {
        let config = SubscribeConfig {
            endpoints: uris(controllers).into(),
            security: Security::Plaintext,
            cluster: String::new(),
            node: node.to_owned(),
            pin: ClusterPin::default(),
            agent_version: "test".to_owned(),
            state_dir: None,
            disk_patience: Duration::from_millis(50),
            guard: GuardConfig::default(),
            first_commit_timeout: Duration::from_secs(10),
            backends: None,
        };
        let (sender, tables) = watch::channel(None);
        let (reports, receiver) = watch::channel(None);
        let (stats, token) = (
            Arc::new(subscribe::Stats::default()),
            CancellationToken::new(),
        );
        let (s, t) = (Arc::clone(&stats), token.clone());
        tokio::spawn(subscribe::run(
            config,
            sender,
            receiver,
            s,
            HeldView::default(),
            t,
        ));
        Self {
            tables,
            reports,
            stats,
            token,
        }
    }

    /// Waits until its table is this one.
    pub(crate) async fn has(&mut self, wanted: &NodeTable) -> Arc<Subscribed> {
        let is_wanted =
            |table: &Option<Arc<Subscribed>>| table.as_deref().is_some_and(|t| *t.table == *wanted);
        let found = timeout(PATIENCE, self.tables.wait_for(is_wanted)).await;
        let found = found
            .unwrap_or_else(|_| panic!("never {wanted:?}"))
            .unwrap();
        found.clone().unwrap()
    }

    pub(crate) fn has_nothing(&self) -> bool {
        self.tables.borrow().is_none()
    }

    /// Says that its kernel has a table.
    pub(crate) fn program(&self, table: &Subscribed) {
        self.program_with(table, &[]);
    }

    /// Says that its kernel has a table, but for what it refused.
    pub(crate) fn program_with(&self, table: &Subscribed, errors: &[&str]) {
        let errors = errors.iter().map(|error| (None, (*error).to_owned()));
        self.reports.send_replace(Some(Report {
            epoch: table.epoch,
            revision: table.revision,
            duration: Duration::from_millis(1),
            errors: errors.collect(),
            checked: table.checked,
        }));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

pub(crate) fn node(name: &str) -> NodeKey {
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
        port: "http".into(),
        protocol: Protocol::Tcp,
    }
}

/// Sets records of so many destinations.
pub(crate) fn put(services: &[&str], destinations: u8) -> TableDelta {
    let record = |service: &str| Record {
        destinations: (1..=destinations)
            .map(|host| Destination::new(([10, 0, 0, host], 80).into()))
            .collect(),
        ..Record::new(key(service))
    };
    let records = services.iter();
    TableDelta {
        records: records
            .map(|service| (key(service), Some(Arc::new(record(service)))))
            .collect(),
        ..TableDelta::default()
    }
}

pub(crate) fn delete(service: &str) -> TableDelta {
    TableDelta {
        records: BTreeMap::from([(key(service), None)]),
        ..TableDelta::default()
    }
}

/// Gives a node a Director.
pub(crate) fn directed(name: &str) -> TableDelta {
    let director = format!(
        r#"{{"apiVersion":"portolan.dev/v1alpha1","kind":"Director","metadata":{{"name":"{name}"}},"spec":{{}}}}"#
    );
    let info = NodeInfo {
        director: Some(director.into()),
        ..NodeInfo::default()
    };
    TableDelta {
        nodes: BTreeMap::from([(node(name), info)]),
        ..TableDelta::default()
    }
}

/// Gives a node lists for a service, and a zone; or takes both.
pub(crate) fn own(name: &str, service: &str, zone: Option<&str>) -> TableDelta {
    let lists = zone.map(|_| {
        Arc::new(NodeOverlay {
            own: vec![([10, 0, 0, 1], 80).into()],
            ..NodeOverlay::default()
        })
    });
    let info = NodeInfo {
        zone: zone.map(Into::into),
        ..NodeInfo::default()
    };
    let lists = BTreeMap::from([(key(service), lists)]);
    TableDelta {
        lists: BTreeMap::from([(node(name), lists)]),
        nodes: BTreeMap::from([(node(name), info)]),
        ..TableDelta::default()
    }
}
