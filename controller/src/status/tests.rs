// SPDX-License-Identifier: Apache-2.0

//! The pages as a browser gets them, over the admin server's router.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use portolan_federate::state::{Phase, Status};
use portolan_model::{
    Destination, Frontend, FrontendAddress, FrontendKind, Lists, NodeInfo, NodeKey, NodeOverlay,
    Protocol, Record, RecordKey,
};
use portolan_runtime::{Admin, Peer};
use portolan_select::TableDelta;
use portolan_serve::{Registry, ServedClusters};
use portolan_tablelog::{Publisher, Retention, Update};
use tower::ServiceExt as _;

use super::*;
use crate::writer::{SharedTrouble, Trouble};

/// A controller with tables and problems, and no agent.
struct World {
    publisher: Publisher,
    pages: StatusPages,
    trouble: SharedTrouble,
}

impl World {
    fn new() -> Self {
        let sessions = Arc::new(Registry::default());
        let (publisher, tables) = Publisher::new(Retention::default());
        let publisher = publisher.observed_by(sessions.clone());
        let trouble = SharedTrouble::default();
        let debug = Debug {
            cluster: "".into(),
            clusters: ServedClusters::default(),
            sources: Arc::default(),
            states: Default::default(),
            tables,
            sessions,
            trouble: Arc::clone(&trouble),
            questions: None,
            holds: None,
        };
        let pages = StatusPages::new(debug, Readiness::default());
        Self {
            publisher,
            pages,
            trouble,
        }
    }

    /// Publishes Services `shop/web-N` with a destination each.
    fn publish(&mut self, numbers: std::ops::Range<u8>) {
        let records = numbers.map(|number| {
            let record = record(number);
            (record.key.clone(), Some(Arc::new(record)))
        });
        let node = NodeKey {
            cluster: "".into(),
            name: "node-a".into(),
        };
        let local = NodeOverlay {
            local: vec![destination(0)],
            ..NodeOverlay::default()
        };
        let lists = BTreeMap::from([(record(0).key, Some(Arc::new(local)))]);
        let info = NodeInfo {
            zone: Some("z".into()),
            ..NodeInfo::default()
        };
        let delta = TableDelta {
            records: records.collect(),
            lists: BTreeMap::from([(node.clone(), lists)]),
            nodes: BTreeMap::from([(node, info)]),
        };
        self.publisher.publish(Update::from(&delta));
    }

    async fn ask(&self, peer: &str, path: &str) -> (u16, HeaderMap, String) {
        let admin = Admin {
            pages: Some(self.pages.pages()),
            ..Admin::default()
        };
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        request
            .extensions_mut()
            .insert(Peer::Tcp(peer.parse().unwrap()));
        let response = admin.router().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = to_bytes(body, 1 << 22).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        (head.status.as_u16(), head.headers, body)
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.ask("127.0.0.1:1", path).await;
        (status, body)
    }
}

fn destination(number: u8) -> Destination {
    Destination::new(([10, 1, 0, number], 8080).into())
}

fn record(number: u8) -> Record {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "shop".into(),
        service: format!("web-{number:03}").into(),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let vip = FrontendAddress::Vip(IpAddr::from([10, 96, 0, number]));
    let external = FrontendAddress::Vip(IpAddr::from([192, 0, 2, number]));
    let external = Frontend {
        lists: Lists::Local,
        ..Frontend::new(FrontendKind::ExternalIp, external, 80)
    };
    Record {
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80), external],
        destinations: vec![destination(number)],
        ..Record::new(key)
    }
}

const PAGES: [&str; 7] = [
    "",
    "nodes",
    "services",
    "ask",
    "clusters",
    "problems",
    "style.css",
];

#[tokio::test]
async fn pages_have_headers_that_protect_them() {
    let world = World::new();
    for page in PAGES {
        let (status, headers, body) = world.ask("127.0.0.1:1", &format!("/status/{page}")).await;
        assert_eq!(status, 200, "{page}: {body}");
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["x-frame-options"], "DENY");
        assert_eq!(headers["cache-control"], "no-store");
    }
    let (status, headers, _) = world.ask("127.0.0.1:1", "/status").await;
    assert_eq!(
        (status, &headers["location"]),
        (308, &"/status/".parse().unwrap())
    );
}

#[tokio::test]
async fn strangers_get_the_hint_on_every_page() {
    let mut world = World::new();
    world.publish(0..3);
    for page in PAGES
        .into_iter()
        .chain(["events", "service?namespace=shop&name=web-000"])
    {
        let (status, _, body) = world.ask("10.0.0.9:1", &format!("/status/{page}")).await;
        assert_eq!(status, 403, "{page}");
        assert!(
            body.contains("port-forward") && !body.contains("web-0"),
            "{page}: {body}"
        );
    }
}

#[tokio::test]
async fn services_are_listed_filtered_and_shown_one_by_one() {
    let mut world = World::new();
    world.publish(0..250);
    let (_, page) = world.get("/status/services").await;
    assert!(
        page.contains("250 in all") && page.contains("Page 1 of 3"),
        "{page}"
    );
    assert!(
        page.contains("shop/web-000") && !page.contains("web-100"),
        "{page}"
    );
    let (_, page) = world.get("/status/services?order=descending&page=3").await;
    assert!(
        page.contains("shop/web-000") && !page.contains("web-100"),
        "{page}"
    );
    // By name, and by the address of a frontend.
    for filter in ["b-007", "10.96.0.7%3A80"] {
        let (_, page) = world.get(&format!("/status/services?q={filter}")).await;
        assert!(
            page.contains("1 of 250") && page.contains("shop/web-007"),
            "{filter}: {page}"
        );
    }
    assert!(page.contains("external Local"), "{page}");
    let of = "/status/service?namespace=shop&name=web-007";
    let (_, page) = world.get(of).await;
    for part in [
        "10.96.0.7:80",
        "192.0.2.7:80",
        "10.1.0.7:8080",
        "address=10.96.0.7%3A80",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    for (path, part) in [
        (
            "/status/service?namespace=shop&name=none",
            "Service shop/none: not in the tables",
        ),
        (
            "/status/service?namespace=shop&name=web-007&node=x",
            "node x: no Node",
        ),
        ("/status/services?cluster=x", "cluster x: not served"),
        ("/status/node?name=x", "node x: its agent has not connected"),
    ] {
        let (status, page) = world.get(path).await;
        assert!(status == 404 && page.contains(part), "{path}: {page}");
    }
    let (status, page) = world.get("/status/services?sort=age").await;
    assert!(
        status == 400 && page.contains("sort: &quot;age&quot;"),
        "{page}"
    );
}

#[tokio::test]
async fn the_destinations_of_a_node_are_its_own() {
    let mut world = World::new();
    world.publish(0..2);
    let of =
        |number: u8| format!("/status/service?namespace=shop&name=web-{number:03}&node=node-a");
    // The external frontend has local destinations alone: one of web-000, none of web-001.
    for (number, expected) in [(0, "<td>1</td><td><a"), (1, "<td>0</td><td><a")] {
        let (status, page) = world.get(&of(number)).await;
        assert!(status == 200 && page.contains(expected), "{page}");
    }
}

#[tokio::test]
async fn a_node_has_its_own_destinations_alone_by_the_policy_local() {
    let mut world = World::new();
    let mut local = record(0);
    local.frontends.truncate(1);
    local.frontends[0].lists = Lists::Local;
    local.destinations = (0..5).map(destination).collect();
    world.publish(0..1);
    let records = BTreeMap::from([(local.key.clone(), Some(Arc::new(local)))]);
    let delta = TableDelta {
        records,
        ..TableDelta::default()
    };
    world.publisher.publish(Update::from(&delta));
    let service = "/status/service?namespace=shop&name=web-000";
    let (_, page) = world.get(&format!("{service}&node=node-a")).await;
    assert!(page.contains("1 destination on node-a"), "{page}");
    let (_, page) = world.get(service).await;
    assert!(page.contains("5 destinations"), "{page}");
}

#[tokio::test]
async fn problems_have_object_field_message_and_age() {
    let world = World::new();
    let text = "Service a/<b>: spec.ports: a <i>bad</i> one".to_owned();
    *world.trouble.lock().unwrap() = Trouble {
        objects: vec![text],
        files: vec!["f.yaml:1:1: spec: expected a map".to_owned()],
    };
    let (_, page) = world.get("/status/problems").await;
    let row = "<th scope=\"row\">Service a/&lt;b&gt;</th><td>spec.ports</td>\
               <td>a &lt;i&gt;bad&lt;/i&gt; one</td><td>0 ms</td>";
    assert!(page.contains(row) && page.contains("2 in all"), "{page}");
    let (_, page) = world.get("/status/").await;
    assert!(page.contains("Show all (2)"), "{page}");
    let (_, page) = world.get("/status/problems?q=f.yaml").await;
    assert!(
        page.contains("1 of 2") && !page.contains("spec.ports"),
        "{page}"
    );
}

#[tokio::test]
async fn a_question_without_an_answer_says_why() {
    let world = World::new();
    let (status, page) = world.get("/status/ask").await;
    assert!(status == 200 && !page.contains("role=\"alert\""), "{page}");
    let (status, page) = world
        .get("/status/ask?address=10.0.0.1:80&protocol=TCP&node=a")
        .await;
    assert!(
        status == 404 && page.contains("a relay has no objects"),
        "{page}"
    );
    // The question stays in the form.
    assert!(page.contains("value=\"10.0.0.1:80\""), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_change_is_told_within_a_second_and_streams_end_by_themselves() {
    let mut world = World::new();
    let admin = Admin {
        pages: Some(world.pages.pages()),
        ..Admin::default()
    };
    let mut request = Request::get("/status/events").body(Body::empty()).unwrap();
    request.extensions_mut().insert(Peer::Unix(None));
    let response = admin.router().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut events = response.into_body().into_data_stream();
    let begun = tokio::time::Instant::now();
    let mut next = async || {
        let event = events.next().await?.unwrap();
        Some(String::from_utf8(event.to_vec()).unwrap())
    };
    let first = next().await.unwrap();
    assert!(
        first.contains("event: change") && first.contains("data: "),
        "{first}"
    );
    world.publish(0..1);
    let second = next().await.unwrap();
    assert!(
        second != first && begun.elapsed() < Duration::from_secs(1),
        "{second}"
    );
    assert_eq!(next().await, None);
    assert_eq!(begun.elapsed(), FOLLOW);
}

#[tokio::test]
async fn a_page_has_the_digest_that_the_stream_of_changes_begins_with() {
    let mut world = World::new();
    let digest = |page: &str| {
        let (_, rest) = page.split_once(" data-digest=\"").unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let (_, before) = world.get("/status/").await;
    world.publish(0..1);
    let (_, after) = world.get("/status/").await;
    assert_ne!(digest(&before), digest(&after));
    for page in ["nodes", "services", "ask", "clusters", "problems"] {
        let (_, page) = world.get(&format!("/status/{page}")).await;
        assert_eq!(digest(&page), digest(&after));
    }
    let admin = Admin {
        pages: Some(world.pages.pages()),
        ..Admin::default()
    };
    let mut request = Request::get("/status/events").body(Body::empty()).unwrap();
    request.extensions_mut().insert(Peer::Unix(None));
    let response = admin.router().oneshot(request).await.unwrap();
    let mut events = response.into_body().into_data_stream();
    let first = events.next().await.unwrap().unwrap();
    let first = String::from_utf8(first.to_vec()).unwrap();
    let told = format!("data: {}\n", digest(&after));
    assert!(first.contains(&told), "{first}: {told}");
}

#[tokio::test]
async fn the_digest_has_readiness_and_states_of_clusters() {
    let mut world = World::new();
    world.publish(0..1);
    let ready = world.pages.digest();
    let block = world.pages.readiness.block("the source");
    assert_ne!(world.pages.digest(), ready);
    drop(block);
    assert_eq!(world.pages.digest(), ready);
    let status = |step| Status {
        phase: Phase::Ready,
        step,
        reach_step: step,
        drain_step: step,
        drained: false,
        last_contact: None,
        stale_for: Duration::ZERO,
        recent_losses: Vec::new(),
        losses: 0,
    };
    let digest_at = |step| {
        let statuses = BTreeMap::from([("".into(), status(step))]);
        world.pages.debug.states.lock().statuses = statuses;
        world.pages.digest()
    };
    assert_ne!(digest_at(20), ready);
    assert_ne!(digest_at(7), digest_at(20));
}

#[tokio::test]
async fn followers_are_few() {
    let world = World::new();
    let held = world
        .pages
        .followers
        .clone()
        .acquire_many_owned(32)
        .await
        .unwrap();
    let (status, _) = world.get("/status/events").await;
    assert_eq!(status, 503);
    drop(held);
}
