// SPDX-License-Identifier: Apache-2.0

//! Listings that are the beginning of a watch.

use super::*;

const STREAMED: Options = Options {
    guard: GUARD,
    pods: false,
    paged: false,
    proxy: None,
    most_objects: None,
};

/// The server's end of a watch that begins with a listing.
async fn listing(rig: &mut Rig, path: &str) -> server::Stream {
    let call = rig.server.next(path).await;
    let query = call.query();
    assert!(query.contains("sendInitialEvents=true"), "{query}");
    assert!(
        query.contains("resourceVersionMatch=NotOlderThan"),
        "{query}"
    );
    call.open()
}

async fn others(rig: &mut Rig) -> [server::Stream; 2] {
    let mut streams = [listing(rig, SLICES).await, listing(rig, NODES).await];
    for stream in &mut streams {
        stream.listed("1").await;
        rig.until("retain").await;
    }
    streams
}

#[tokio::test(start_paused = true)]
async fn one_stream_lists_and_goes_on() {
    let mut rig = Rig::watching(STREAMED);
    let _others = others(&mut rig).await;
    let mut services = listing(&mut rig, SERVICES).await;
    let ours = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name";
    services.send("ADDED", service("a", "5", json!(1))).await;
    services.send("ADDED", service("b", "3", json!(2))).await;
    services.bookmark("4").await;
    services.listed("9").await;
    let told = [
        "put Service c/prod/a",
        "put Service c/prod/b",
        "retain Service c: c/prod/a c/prod/b",
        "Synced",
    ];
    assert_eq!(rig.until("Synced").await, told);
    services
        .send("MODIFIED", service("b", "10", json!(2)))
        .await;
    assert_eq!(rig.until("put").await, ["put Service c/prod/b"]);
    drop(services);
    let call = rig.server.next(SERVICES).await;
    let query = call.query();
    assert!(query.contains("resourceVersion=10"), "{query}");
    assert!(query.contains(ours), "{query}");
    assert!(!query.contains("sendInitialEvents"), "{query}");
}

#[tokio::test(start_paused = true)]
async fn absent_objects_are_swept_at_the_end_of_the_listing() {
    let mut rig = Rig::watching(STREAMED);
    let _others = others(&mut rig).await;
    let mut services = listing(&mut rig, SERVICES).await;
    services.send("ADDED", service("a", "5", json!(1))).await;
    services.send("ADDED", service("b", "6", json!(2))).await;
    services.listed("9").await;
    rig.until("Synced").await;
    services.gone().await;

    let mut services = listing(&mut rig, SERVICES).await;
    services.send("ADDED", service("b", "6", json!(2))).await;
    assert_eq!(rig.until("put").await, ["put Service c/prod/b"]);
    // It breaks before its end: the other way is tried.
    drop(services);
    rig.server
        .list(SERVICES, &[service("a", "5", json!(1))], "12")
        .await;
    let told = ["put Service c/prod/a", "retain Service c: c/prod/a"];
    assert_eq!(rig.until("retain").await, told);
    // And the next time the first again.
    let mut services = rig.server.watch(SERVICES).await;
    services.gone().await;
    listing(&mut rig, SERVICES).await.listed("13").await;
    assert_eq!(rig.until("retain").await, ["retain Service c: "]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_stream_is_asked_for_pages_at_once_and_from_then_on() {
    let mut rig = Rig::watching(STREAMED);
    rig.server.next(SERVICES).await.fail(422);
    rig.server.list(SERVICES, &[], "5").await;
    assert_eq!(rig.until("retain").await, ["retain Service c: "]);
    let mut services = rig.server.watch(SERVICES).await;
    services.gone().await;
    rig.server.list(SERVICES, &[], "7").await;
    assert_eq!(rig.until("retain").await, ["retain Service c: "]);
    // The server's answer is no error; that it forgot is.
    assert_eq!(rig.stats.of(Kind::Service).watch_errors(), 1);
}

/// The answer of a server whose etcd does not report progress.
#[tokio::test(start_paused = true)]
async fn a_server_whose_storage_cannot_stream_fails_later() {
    let mut rig = Rig::watching(STREAMED);
    let mut services = listing(&mut rig, SERVICES).await;
    services.error(500).await;
    rig.server.list(SERVICES, &[], "5").await;
    assert_eq!(rig.until("retain").await, ["retain Service c: "]);
    assert_eq!(rig.stats.of(Kind::Service).watch_errors(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_listing_is_not_older_than_the_last_version() {
    let mut rig = Rig::watching(STREAMED);
    let call = rig.server.next(SERVICES).await;
    let query = call.query();
    assert!(query.ends_with("resourceVersion="), "{query}");
    let mut services = call.open();
    services.listed("9").await;
    services.bookmark("12").await;
    services.gone().await;
    let call = rig.server.next(SERVICES).await;
    let query = call.query();
    assert!(query.ends_with("resourceVersion=12"), "{query}");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_deleted_while_it_is_listed_is_not_kept() {
    let mut rig = Rig::watching(STREAMED);
    let mut services = listing(&mut rig, SERVICES).await;
    services.send("ADDED", service("a", "5", json!(1))).await;
    services.send("DELETED", service("a", "8", json!(1))).await;
    services.listed("9").await;
    let told = ["put Service c/prod/a", "retain Service c: "];
    assert_eq!(rig.until("retain").await, told);
}
