// SPDX-License-Identifier: Apache-2.0

//! The controller's server, the subject of the measurement.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use portolan_auth::Authentication;
use portolan_listener::Limits;
use portolan_select::TableDelta;
use portolan_serve::{Registry, ServeConfig, TablesServer};
use portolan_tablelog::{Publisher, Retention};
use portolan_tls::ServerFiles;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Target;
use crate::world::World;

/// A controller without a source of objects.
struct Ours {
    publisher: Publisher,
    registry: Arc<Registry>,
}

/// Serves the tables of a cluster.
pub(super) fn start(
    listener: TcpListener,
    world: &World,
    tls_dir: Option<&Path>,
) -> Result<impl Target + use<>> {
    let (mut publisher, tables) = Publisher::new(Retention::default());
    let registry = Arc::new(Registry::default());
    publisher.publish(&world.whole());
    publisher.set_synced(&"".into());
    let mut config = ServeConfig::default();
    let mut tls = None;
    if let Some(dir) = tls_dir {
        let files = ServerFiles {
            cert: dir.join("tls.crt"),
            key: dir.join("tls.key"),
            client_ca: Some(dir.join("ca.crt")),
            anonymous: false,
        };
        tls = Some(files.open("agents").context("certificates")?.subscribe());
        config.authentication = Authentication::Required(None);
    }
    let token = CancellationToken::new();
    let server = TablesServer::new(tables, Arc::clone(&registry), config, token);
    tokio::spawn(server.serve(listener, tls, Limits::default()));
    Ok(Ours {
        publisher,
        registry,
    })
}

impl Target for Ours {
    fn publish(&mut self, delta: &TableDelta) -> u64 {
        self.publisher.publish(delta).revision
    }

    fn is_debounced(&self) -> bool {
        true
    }

    fn streams(&self) -> usize {
        self.registry.connected()
    }
}
