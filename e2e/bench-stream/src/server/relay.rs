// SPDX-License-Identifier: Apache-2.0

//! A relay as the controller's program runs it, below another server.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use portolan_listener::Limits;
use portolan_relay::{Outlets, RelayConfig, Stats};
use portolan_select::TableDelta;
use portolan_serve::{Registry, ServeConfig, TablesServer};
use portolan_subscription::{GuardConfig, Security};
use portolan_tablelog::{Forwarder, Publisher, Retention, TableReader};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Target;

/// The time that the controller above may be silent before its first table.
const PATIENCE: Duration = Duration::from_secs(60);

/// A relay. What it publishes comes from above.
struct Relay {
    tables: TableReader,
    registry: Arc<Registry>,
}

/// Serves the tables of the server at a port of the loopback, once they are there.
pub(super) async fn start(listener: TcpListener, upstream: u16) -> Result<impl Target + use<>> {
    let (publisher, tables) = Publisher::new(Retention::default());
    let registry = Arc::new(Registry::default());
    let publisher = publisher.observed_by(registry.clone());
    let token = CancellationToken::new();
    let config = RelayConfig {
        upstreams: vec![format!("http://127.0.0.1:{upstream}").parse()?],
        security: Security::Plaintext,
        cluster: String::new(),
        name: format!("r{}", listener.local_addr()?.port()),
        version: "bench".to_owned(),
        guard: GuardConfig::default(),
        first_commit_timeout: PATIENCE,
        cores: 1,
    };
    let outlets = Outlets {
        identity: publisher.identity(&"".into()),
        doubts: publisher.source_doubts(&"".into()),
        forwarder: Forwarder::new("", publisher, tables.clone()),
        sessions: Arc::clone(&registry),
        stats: Arc::new(Stats::default()),
    };
    tokio::spawn(portolan_relay::run(
        config,
        outlets,
        |_, _| {},
        token.clone(),
    ));
    let mut published = tables.published();
    let synced = published.wait_for(|published| published.synced > 0);
    synced.await.context("the relay has ended")?;
    let serve = ServeConfig::default();
    let server = TablesServer::new(tables.clone(), Arc::clone(&registry), serve, token);
    tokio::spawn(server.serve(listener, None, Limits::default()));
    Ok(Relay { tables, registry })
}

impl Target for Relay {
    fn publish(&mut self, _delta: &TableDelta) -> u64 {
        self.tables.head("")
    }

    fn is_debounced(&self) -> bool {
        true
    }

    fn streams(&self) -> usize {
        self.registry.connected()
    }
}
