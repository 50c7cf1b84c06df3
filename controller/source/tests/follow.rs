// SPDX-License-Identifier: Apache-2.0

//! The watches on a real API server.

#![cfg(feature = "kubernetes")]

use std::sync::Arc;
use std::time::Duration;

use portolan_catalog::{Catalog, DirtySet, Kind, ObjectChange};
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::wait_for;
use portolan_source::kubernetes::{self, KindStats, Options, Stats};
use portolan_source::{Event, Sink};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(60);

/// Of listings that the API server streamed, by kind.
const STREAMED: &str = "apiserver_watch_list_duration_seconds_count";

const NODES: &str = r"
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: zone-a}}
---
apiVersion: v1
kind: Node
metadata: {name: node-b}
";

/// A catalog that follows the server.
struct Follower {
    catalog: Catalog,
    events: Receiver<Event>,
    stats: Arc<Stats>,
    token: CancellationToken,
}

impl Follower {
    async fn start(servers: &Servers, options: Options) -> Self {
        let client = kubernetes::client(Some(servers.kubeconfig()), None).await;
        let (sink, events) = Sink::channel(64);
        let (stats, token) = (Arc::new(Stats::default()), CancellationToken::new());
        let watch = kubernetes::watch(
            client.expect("a client"),
            "".into(),
            options,
            sink,
            Arc::clone(&stats),
            token.clone(),
        );
        tokio::spawn(watch);
        Self {
            catalog: Catalog::default(),
            events,
            stats,
            token,
        }
    }

    /// Takes events until something is so.
    async fn until(&mut self, mut is_so: impl FnMut(&Catalog, &Event) -> bool) {
        loop {
            let event = timeout(LONG, self.events.recv()).await;
            let event = event.expect("an event in time").expect("a source");
            if let Event::Changes(changes) = &event {
                for change in changes {
                    self.catalog.apply(change.clone(), &mut DirtySet::default());
                }
            }
            if is_so(&self.catalog, &event) {
                return;
            }
        }
    }

    fn counts(&self) -> [usize; 2] {
        [Kind::Service, Kind::Node].map(|kind| self.catalog.count(kind))
    }

    fn sum(&self, counter: fn(&KindStats) -> u64) -> u64 {
        let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node];
        kinds.map(|kind| counter(self.stats.of(kind))).iter().sum()
    }

    fn errors(&self) -> u64 {
        self.sum(KindStats::watch_errors)
    }

    fn streamed(&self) -> u64 {
        self.sum(KindStats::streamed_listings)
    }
}

/// Returns the number of listings of Nodes that the server has streamed.
fn streamed(servers: &Servers) -> u64 {
    let metrics = servers
        .kubectl(&["get", "--raw", "/metrics"])
        .expect("metrics");
    let of_nodes = |line: &&str| line.starts_with(STREAMED) && line.contains("\"nodes\"");
    let counts = metrics.lines().filter(of_nodes);
    counts
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[test]
fn listings_are_streamed_or_paged_and_say_how_far_the_server_is() {
    let dir = tempfile::tempdir().unwrap();
    let Some(servers) = Servers::start_or_skip("follow", dir.path()) else {
        return;
    };
    servers
        .kubectl_with_input(&["apply", "-f", "-"], NODES)
        .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(follow(&servers));
}

async fn follow(servers: &Servers) {
    let before = streamed(servers);
    let mut follower = Follower::start(servers, Options::default()).await;
    follower.until(|_, event| *event == Event::Synced).await;
    // The API server's own Service, and our nodes.
    assert_eq!(follower.counts(), [1, 2]);
    assert_eq!(follower.errors(), 0);
    // None was requested in pages, which the server's metrics confirm.
    assert_eq!(follower.streamed(), 3);
    // The server counts a listing after it has sent its end.
    let counted = || (streamed(servers) > before).then_some(());
    let waited = wait_for("the server's count", LONG, counted);
    assert!(waited.is_ok(), "{waited:?}");
    let versions = follower.catalog.source_versions()[""];
    assert!(versions.iter().all(|version| *version > 0), "{versions:?}");

    servers
        .kubectl(&["label", "node", "node-b", "a=b"])
        .expect("a label");
    let delete = ["delete", "node", "node-a", "--wait=false"];
    servers.kubectl(&delete).expect("a deletion");
    let is_node_gone =
        |change: &ObjectChange| matches!(change, ObjectChange::Delete(o) if o.kind == Kind::Node);
    let is_gone = |_: &Catalog, event: &Event| match event {
        Event::Changes(changes) => changes.iter().any(is_node_gone),
        Event::Synced
        | Event::FileProblems(_)
        | Event::Read(_)
        | Event::Director(_)
        | Event::Hooks(_) => false,
    };
    follower.until(is_gone).await;
    assert_eq!(follower.counts(), [1, 1]);
    let later = follower.catalog.source_versions()[""];
    // The label and the deletion, at least.
    assert!(later[2] >= versions[2] + 2, "{versions:?} {later:?}");
    follower.token.cancel();

    let paged = Options {
        paged: true,
        ..Options::default()
    };
    let mut follower = Follower::start(servers, paged).await;
    follower.until(|_, event| *event == Event::Synced).await;
    assert_eq!(follower.counts(), [1, 1]);
    assert_eq!(follower.streamed(), 0);
    assert!(follower.catalog.source_versions()[""][2] >= later[2]);
    follower.token.cancel();
}
