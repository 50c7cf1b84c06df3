// SPDX-License-Identifier: Apache-2.0

//! The watches against a scripted API server.

mod deletions;
mod events;
mod malformed;
mod names;
mod pods;
mod recovery;
mod resources;
mod server;
mod shared;
mod streamed;
mod versions;

use std::time::Duration;

use portolan_catalog::ObjectChange;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

use super::*;
use crate::{Event, HeldDeletions};
use server::Server;

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/pods";

const GUARD: GuardConfig = GuardConfig {
    doubts_emptiness: false,
    listing_percent: 20,
    watch_percent: 80,
    least: 50,
    hold: Some(Duration::from_secs(1800)),
};
const PAGED: Options = Options {
    pods: false,
    paged: true,
    guard: GUARD,
    proxy: None,
    most_objects: None,
};
const PAGED_WITH_PODS: Options = Options {
    pods: true,
    paged: true,
    guard: GUARD,
    proxy: None,
    most_objects: None,
};

/// A source and the server that it watches.
struct Rig {
    server: Server,
    events: Receiver<Event>,
    stats: Arc<Stats>,
    token: CancellationToken,
}

impl Rig {
    fn start() -> Self {
        Self::watching(PAGED)
    }

    fn watching(options: Options) -> Self {
        Self::after(&Arc::default(), options)
    }

    /// A source that goes on from what an earlier one has left.
    fn after(holds: &Arc<HeldDeletions>, options: Options) -> Self {
        let (client, server) = server::start();
        let (sink, events) = Sink::channel(1024);
        let stats = Arc::new(Stats::holding(holds));
        let token = CancellationToken::new();
        tokio::spawn(watch(
            client,
            Arc::from("c"),
            options,
            sink,
            Arc::clone(&stats),
            token.clone(),
        ));
        Self {
            server,
            events,
            stats,
            token,
        }
    }

    /// A source whose slices and nodes are listed and silent; their watches stay open until the
    /// returned value is dropped.
    async fn with_services(items: &[Value]) -> (Self, [server::Stream; 3]) {
        let mut rig = Self::start();
        rig.server.list(SLICES, &[], "1").await;
        rig.server.list(NODES, &[], "1").await;
        rig.server.list(SERVICES, items, "10").await;
        let streams = [
            rig.server.watch(SERVICES).await,
            rig.server.watch(SLICES).await,
            rig.server.watch(NODES).await,
        ];
        (rig, streams)
    }

    /// Ends the source.
    async fn end(mut self) {
        self.token.cancel();
        while self.events.recv().await.is_some() {}
    }

    async fn next(&mut self) -> Event {
        let event = tokio::time::timeout(Duration::from_secs(3600), self.events.recv());
        event
            .await
            .expect("an event in time")
            .expect("a source that runs")
    }

    /// The changes until and with the next batch that has one that starts so; without how far the
    /// source is then.
    async fn until(&mut self, start: &str) -> Vec<String> {
        let mut all = self.changes_until(start).await;
        all.retain(|told| !told.starts_with("reach"));
        all
    }

    /// Everything until and with the next batch that has something that starts so.
    async fn changes_until(&mut self, start: &str) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        while !all.iter().any(|told| told.starts_with(start)) {
            match self.next().await {
                Event::Changes(changes) => all.extend(changes.iter().map(describe)),
                other => all.push(format!("{other:?}")),
            }
        }
        all
    }
}

fn describe(change: &ObjectChange) -> String {
    match change {
        ObjectChange::Put { object, .. } => format!("put {}", object.reference()),
        ObjectChange::Refused { object, problems } => format!("refuse {object}: {}", problems[0]),
        ObjectChange::Delete(object) => format!("delete {object}"),
        ObjectChange::Retain {
            kind,
            cluster,
            keep,
        } => {
            let keep: Vec<_> = keep.iter().map(ToString::to_string).collect();
            format!("retain {kind} {cluster}: {}", keep.join(" "))
        }
        ObjectChange::Reached {
            kind,
            cluster,
            version,
        } => format!("reach {kind} {cluster} {version}"),
        ObjectChange::LoadBalancers { .. } | ObjectChange::Problems { .. } => {
            panic!("an API server has none")
        }
    }
}

/// A Service whose port is this.
fn service(name: &str, version: &str, port: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "prod", "resourceVersion": version},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": port}]},
    })
}

#[tokio::test(start_paused = true)]
async fn three_listings_precede_one_synced() {
    let mut rig = Rig::start();
    let node = json!({"metadata": {"name": "n1", "resourceVersion": "1"}});
    rig.server.list(NODES, &[node], "1").await;
    assert_eq!(
        rig.until("retain").await,
        ["put Node c/n1", "retain Node c: c/n1"]
    );
    let slice = json!({
        "metadata": {
            "name": "web-1",
            "namespace": "prod",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "endpoints": null,
    });
    rig.server.list(SLICES, &[slice], "1").await;
    let told = [
        "put EndpointSlice c/prod/web-1",
        "retain EndpointSlice c: c/prod/web-1",
    ];
    assert_eq!(rig.until("retain").await, told);
    rig.server
        .list(SERVICES, &[service("web", "5", json!(80))], "5")
        .await;
    let told = [
        "put Service c/prod/web",
        "retain Service c: c/prod/web",
        "Synced",
    ];
    assert_eq!(rig.until("Synced").await, told);

    // Another listing does not repeat it.
    let mut services = rig.server.watch(SERVICES).await;
    services.gone().await;
    rig.server
        .list(SERVICES, &[service("web", "7", json!(80))], "7")
        .await;
    let told = ["put Service c/prod/web", "retain Service c: c/prod/web"];
    assert_eq!(rig.until("retain").await, told);
    let mut services = rig.server.watch(SERVICES).await;
    services
        .send("DELETED", service("web", "8", json!(80)))
        .await;
    assert_eq!(rig.until("delete").await, ["delete Service c/prod/web"]);
    assert_eq!(rig.stats.of(Kind::Service).listings(), 2);

    rig.token.cancel();
    assert_eq!(rig.events.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn only_needed_objects_are_requested() {
    let mut rig = Rig::watching(PAGED_WITH_PODS);
    let ours = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
                %2C%21service.kubernetes.io%2Fheadless";
    for (path, is_selected, is_metadata) in [
        (SERVICES, true, false),
        (SLICES, true, false),
        (NODES, false, false),
        (PODS, false, true),
    ] {
        let request = rig.server.next(path).await;
        assert_eq!(
            request.query().contains(ours),
            is_selected,
            "{}",
            request.query()
        );
        assert!(request.query().contains("limit=500"), "{}", request.query());
        assert_eq!(
            request.accept().contains("PartialObjectMetadata"),
            is_metadata
        );
        request.answer_list(&[], "1", None);
        let request = rig.server.next(path).await;
        assert_eq!(
            request.query().contains(ours),
            is_selected,
            "{}",
            request.query()
        );
        assert!(
            request.query().contains("allowWatchBookmarks=true"),
            "{}",
            request.query()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_named_proxy_requests_the_objects_with_its_label() {
    let mut rig = Rig::watching(Options {
        proxy: Some("portolan".parse().unwrap()),
        ..PAGED
    });
    let ours = "labelSelector=service.kubernetes.io%2Fservice-proxy-name%3Dportolan\
                %2C%21service.kubernetes.io%2Fheadless";
    for path in [SERVICES, SLICES] {
        let request = rig.server.next(path).await;
        assert!(request.query().contains(ours), "{}", request.query());
        request.answer_list(&[], "1", None);
        let request = rig.server.next(path).await;
        assert!(request.query().contains(ours), "{}", request.query());
    }
}

#[tokio::test(start_paused = true)]
async fn pages_are_one_listing_and_go_out_in_batches() {
    let mut rig = Rig::start();
    let services: Vec<_> = (0..750)
        .map(|i| service(&format!("s{i}"), "1", json!(80)))
        .collect();
    let (first, second) = services.split_at(500);
    rig.server
        .next(SERVICES)
        .await
        .answer_list(first, "1", Some("more"));
    let request = rig.server.next(SERVICES).await;
    assert!(
        request.query().contains("continue=more"),
        "{}",
        request.query()
    );
    request.answer_list(second, "1", None);
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 752 {
        if let Event::Changes(changes) = rig.next().await {
            sizes.push(changes.len());
        }
    }
    assert_eq!(sizes, [500, 252]);
}

#[tokio::test(start_paused = true)]
async fn events_change_and_delete() {
    let (mut rig, [mut services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    services.send("ADDED", service("a", "11", json!(1))).await;
    assert_eq!(rig.until("put").await, ["put Service c/prod/a"]);
    let mut headless = service("a", "12", json!(1));
    headless["spec"]["clusterIP"] = json!("None");
    services.send("MODIFIED", headless).await;
    assert_eq!(rig.until("delete").await, ["delete Service c/prod/a"]);
    services.bookmark("20").await;
    services.send("ADDED", service("b", "21", json!(1))).await;
    assert_eq!(rig.until("put").await, ["put Service c/prod/b"]);
    services.send("DELETED", service("b", "22", json!(1))).await;
    assert_eq!(rig.until("delete").await, ["delete Service c/prod/b"]);
}

#[tokio::test(start_paused = true)]
async fn the_source_ends_with_its_reader() {
    let (client, mut server) = server::start();
    let (sink, events) = Sink::channel(1);
    drop(events);
    let stats = Arc::new(Stats::default());
    let source = tokio::spawn(watch(
        client,
        Arc::from(""),
        PAGED,
        sink,
        stats,
        CancellationToken::new(),
    ));
    server.list(NODES, &[], "1").await;
    source.await.unwrap();
}
