// SPDX-License-Identifier: Apache-2.0

//! One whole agent, as nodes run it, to check the correctness of the measured data.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use portolan_agent::subscribe::{
    ClusterPin, FIRST_COMMIT_TIMEOUT, GuardConfig, HeldView, Security, Stats, SubscribeConfig,
    Subscribed, TlsClient, run as subscribe,
};
use portolan_tls::issue::Authority;
use portolan_tls::{ClientFiles, NodeName};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::client::VALID;
use crate::world::{World, node_name};

/// The deadline for the expected table.
const PATIENCE: Duration = Duration::from_secs(60);

/// The agent, and a relay through which it reaches one server at a time, or none.
pub(super) struct Verifier {
    node: u32,
    runtime: Runtime,
    door: watch::Sender<Option<u16>>,
    tables: watch::Receiver<Option<Arc<Subscribed>>>,
    token: CancellationToken,
}

impl Verifier {
    /// Starts the agent of the last node of a cluster; with TLS if there is a directory of
    /// certificates.
    pub(super) fn start(world: &World, tls_dir: Option<&Path>) -> Result<Self> {
        let node = world.size().nodes - 1;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let (door, target) = watch::channel(None);
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let endpoint = format!("http://localhost:{}", listener.local_addr()?.port());
        runtime.spawn(keep_door(listener, target));
        let config = SubscribeConfig {
            endpoints: vec![endpoint.parse()?].into(),
            security: tls_dir.map_or(Ok(Security::Plaintext), |dir| security(dir, node))?,
            cluster: String::new(),
            node: node_name(node),
            pin: ClusterPin::default(),
            agent_version: "bench".to_owned(),
            state_dir: None,
            disk_patience: Duration::ZERO,
            guard: GuardConfig::default(),
            first_commit_timeout: FIRST_COMMIT_TIMEOUT,
            backends: None,
        };
        let (sender, tables) = watch::channel(None);
        let (_, reports) = watch::channel(None);
        let (stats, token) = (Arc::new(Stats::default()), CancellationToken::new());
        let held = HeldView::default();
        let run = subscribe(config, sender, reports, stats, held, token.clone());
        runtime.spawn(run);
        Ok(Self {
            node,
            runtime,
            door,
            tables,
            token,
        })
    }

    /// Connects the agent to a server on a port of the loopback. The agent keeps its table.
    pub(super) fn lead_to(&self, port: u16) {
        self.door.send_replace(Some(port));
    }

    /// Disconnects the agent.
    pub(super) fn cut_off(&self) {
        self.door.send_replace(None);
    }

    /// Waits until the agent has exactly its node's table at `revision`.
    ///
    /// # Errors
    /// If it does not within [`PATIENCE`].
    pub(super) fn check(&mut self, world: &World, revision: u64) -> Result<()> {
        let expected = world.table(self.node);
        let is_there = |seen: &Option<Arc<Subscribed>>| {
            let seen = seen.as_ref();
            seen.is_some_and(|s| s.revision == revision && *s.table == expected)
        };
        let seen = self.runtime.block_on(async {
            let seen = timeout(PATIENCE, self.tables.wait_for(is_there)).await;
            seen.is_ok_and(|seen| seen.is_ok())
        });
        let has = self.tables.borrow().clone();
        let has = has.context("the whole agent has no table")?;
        let records = has.table.records.values();
        let destinations: usize = records.map(|record| record.destinations.len()).sum();
        ensure!(
            seen,
            "the whole agent has {} records with {destinations} destinations at revision {}, \
             not what it must have at {revision}",
            has.table.records.len(),
            has.revision
        );
        Ok(())
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

/// Relays connections to the current port until it changes.
async fn keep_door(listener: TcpListener, target: watch::Receiver<Option<u16>>) {
    while let Ok((mut inner, _)) = listener.accept().await {
        let mut target = target.clone();
        let Some(port) = *target.borrow_and_update() else {
            continue;
        };
        tokio::spawn(async move {
            let Ok(mut outer) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else {
                return;
            };
            if inner.set_nodelay(true).is_ok() && outer.set_nodelay(true).is_ok() {
                tokio::select! {
                    // The agent detects the end of its connection itself.
                    _ = copy_bidirectional(&mut inner, &mut outer) => {}
                    _ = target.changed() => {}
                }
            }
        });
    }
}

fn security(dir: &Path, node: u32) -> Result<Security> {
    let read = |name| std::fs::read_to_string(dir.join(name)).context(name);
    let authority = Authority::load(&read("ca.crt")?, &read("ca.key")?)?;
    let now = SystemTime::now();
    let name = NodeName::new("", &node_name(node))?;
    let issued = authority.node(&name, now - VALID..now + VALID)?;
    let (cert, key) = (dir.join("node.crt"), dir.join("node.key"));
    std::fs::write(&cert, issued.cert)?;
    std::fs::write(&key, issued.key)?;
    let files = ClientFiles {
        ca: dir.join("ca.crt"),
        identity: Some((cert, key)),
    };
    Ok(Security::Tls(TlsClient {
        config: files.open_when_present("agent")?.subscribe(),
        server_name: None,
        token_file: None,
    }))
}
