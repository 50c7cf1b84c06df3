// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser as _;
use portolan_listener::Limits;
use portolan_serve::{ServeConfig, TablesServer};
use portolan_tablelog::Retention;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;

use super::*;
use crate::args::Cli;

/// A controller with an empty table, or with none yet.
struct Upstream {
    address: SocketAddr,
    token: CancellationToken,
    task: JoinHandle<()>,
    /// Without it the tables end.
    _publisher: Publisher,
}

impl Upstream {
    fn start(address: SocketAddr, has_tables: bool) -> Self {
        let (mut publisher, tables) = Publisher::new(Retention::default());
        if has_tables {
            publisher.set_synced(&"".into());
        }
        let token = CancellationToken::new();
        let config = ServeConfig {
            goaway_spread: Duration::ZERO,
            ..ServeConfig::default()
        };
        let service = TablesServer::new(tables, Arc::default(), config, token.clone());
        let listener = listen(address);
        let address = listener.local_addr().unwrap();
        let serve = service.serve(listener, None, Limits::default());
        let task = tokio::spawn(async { serve.await.unwrap() });
        Self {
            address,
            token,
            task,
            _publisher: publisher,
        }
    }

    async fn stop(self) {
        self.token.cancel();
        self.task.await.unwrap();
    }
}

/// Also at an address that was in use a moment ago.
fn listen(address: SocketAddr) -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket.listen(16).unwrap()
}

/// Starts a relay. Returns its pending conditions.
fn start_relay(upstream: SocketAddr, vital: &Vital) -> Readiness {
    let upstream = format!("--upstream={upstream}");
    let args = Cli::try_parse_from([
        "x",
        "--plaintext",
        "--source=controller",
        &upstream,
        "--upstream-plaintext",
        "--source-timeout=1s",
    ]);
    let (publisher, tables) = Publisher::new(Retention::default());
    let readiness = Readiness::default();
    let mut registry = Registry::default();
    let parts = RelayParts {
        identity: publisher.identity(&"".into()),
        publisher,
        tables,
        sessions: Arc::default(),
        metrics: CatalogMetrics::register(&mut registry),
        unready: readiness.block("source"),
        liveness: Liveness::default(),
        readiness: readiness.clone(),
        cores: 1,
    };
    start(&args.unwrap().run, parts, &mut registry, vital).unwrap();
    readiness
}

async fn until(readiness: &Readiness, pending: &[&str]) {
    let wait = async {
        while readiness.pending() != pending {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(waited.is_ok(), "{:?}, not {pending:?}", readiness.pending());
}

#[tokio::test]
async fn a_relay_is_not_ready_while_no_controller_gives_it_tables() {
    // Of an IP address at which no other test takes the port meanwhile.
    let upstream = Upstream::start(([127, 0, 0, 2], 0).into(), true);
    let address = upstream.address;
    let (vital, _failures) = Vital::new(CancellationToken::new());
    let readiness = start_relay(address, &vital);
    until(&readiness, &[]).await;
    upstream.stop().await;
    until(&readiness, &["source contact"]).await;

    // A controller that holds the stream open without tables is no contact.
    let upstream = Upstream::start(address, false);
    let ready = tokio::time::timeout(Duration::from_secs(4), until(&readiness, &[])).await;
    assert!(ready.is_err());
    upstream.stop().await;
    let _upstream = Upstream::start(address, true);
    until(&readiness, &[]).await;
    vital.ending.cancel();
}
