// SPDX-License-Identifier: Apache-2.0

//! An agent's half of the stream.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use portolan_model::{Destination, Protocol, Record, RecordKey};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::{
    ClusterPin, GuardConfig, HeldView, Report, Security, Stats, SubscribeConfig, Subscribed, run,
};

/// Time that a test waits before it fails.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn patiently<F: Future>(future: F) -> F::Output {
    timeout(PATIENCE, future).await.expect("in time")
}

pub(super) struct Agent {
    pub(super) tables: watch::Receiver<Option<Arc<Subscribed>>>,
    pub(super) reports: watch::Sender<Option<Report>>,
    pub(super) stats: Arc<Stats>,
    pub(super) held: HeldView,
    task: JoinHandle<()>,
    token: CancellationToken,
}

impl Agent {
    /// An agent of node `a`.
    pub(super) fn start(endpoints: &[SocketAddr]) -> Self {
        Self::start_with(endpoints, Security::Plaintext)
    }

    pub(super) fn start_with(endpoints: &[SocketAddr], security: Security) -> Self {
        let endpoints = endpoints.iter().map(|a| format!("http://{a}").parse());
        Self::start_as(SubscribeConfig {
            endpoints: endpoints.map(Result::unwrap).collect::<Vec<_>>().into(),
            security,
            ..config()
        })
    }

    pub(super) fn start_as(config: SubscribeConfig) -> Self {
        let (tables_sender, tables) = watch::channel(None);
        let (reports, reports_receiver) = watch::channel(None);
        let (stats, held) = (Arc::new(Stats::default()), HeldView::default());
        let token = CancellationToken::new();
        let task = tokio::spawn(run(
            config,
            tables_sender,
            reports_receiver,
            Arc::clone(&stats),
            held.clone(),
            token.clone(),
        ));
        Self {
            tables,
            reports,
            stats,
            held,
            task,
            token,
        }
    }

    /// Stops as the program does.
    pub(super) async fn stop(mut self) {
        self.token.cancel();
        patiently(&mut self.task).await.unwrap();
    }

    /// The first table from now on that is as asked for.
    pub(super) async fn table(&mut self, wanted: impl Fn(&Subscribed) -> bool) -> Arc<Subscribed> {
        let wanted = |table: &Option<Arc<Subscribed>>| table.as_deref().is_some_and(&wanted);
        let table = patiently(self.tables.wait_for(wanted)).await.unwrap();
        table.clone().unwrap()
    }

    /// Waits until a counter has reached a value.
    pub(super) async fn until(&self, counter: impl Fn(&Stats) -> &AtomicU64, value: u64) {
        patiently(async {
            while counter(&self.stats).load(Ordering::Relaxed) < value {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

/// The services of a table.
pub(super) fn services(table: &Subscribed) -> Vec<String> {
    let keys = table.table.records.keys();
    keys.map(|key| key.service.to_string()).collect()
}

/// For node `a`, which gives a silent controller 10 s, more than a busy machine takes to send a table, and keeps
/// nothing.
pub(crate) fn config() -> SubscribeConfig {
    SubscribeConfig {
        endpoints: vec![].into(),
        security: Security::Plaintext,
        cluster: String::new(),
        node: "a".to_owned(),
        pin: ClusterPin::default(),
        agent_version: "test".to_owned(),
        state_dir: None,
        disk_patience: Duration::from_millis(50),
        guard: GuardConfig::default(),
        first_commit_timeout: Duration::from_secs(10),
        backends: None,
    }
}

/// The same that gives a silent controller half a second.
pub(super) fn impatient() -> SubscribeConfig {
    SubscribeConfig {
        first_commit_timeout: Duration::from_millis(500),
        ..config()
    }
}

pub(crate) fn record(service: &str) -> Record {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: service.into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    Record {
        destinations: vec![Destination::new(([10, 0, 0, 1], 80).into())],
        ..Record::new(key)
    }
}
