// SPDX-License-Identifier: Apache-2.0

//! Failures of the server and of the connection.

use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn objects_deleted_during_an_expired_watch_are_swept() {
    let items = [service("a", "1", json!(1)), service("b", "2", json!(2))];
    let (mut rig, [mut services, ..]) = Rig::with_services(&items).await;
    rig.until("Synced").await;
    services.gone().await;
    rig.server
        .list(SERVICES, &[service("b", "2", json!(2))], "30")
        .await;
    let told = ["put Service c/prod/b", "retain Service c: c/prod/b"];
    assert_eq!(rig.until("retain").await, told);
    assert_eq!(rig.stats.of(Kind::Service).watch_errors(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_with_410_leads_to_a_listing_too() {
    let (mut rig, [services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    drop(services);
    rig.server.next(SERVICES).await.fail(410);
    rig.server.list(SERVICES, &[], "30").await;
    assert_eq!(rig.until("retain").await, ["retain Service c: "]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_resumed_where_it_was() {
    let (mut rig, [mut services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    services.send("ADDED", service("a", "11", json!(1))).await;
    rig.until("put").await;
    drop(services);
    let call = rig.server.next(SERVICES).await;
    assert!(
        call.query().contains("resourceVersion=11"),
        "{}",
        call.query()
    );
    call.fail(500);
    let call = rig.server.next(SERVICES).await;
    assert!(
        call.query().contains("resourceVersion=11"),
        "{}",
        call.query()
    );
    let mut services = call.open();
    services.send("DELETED", service("a", "12", json!(1))).await;
    assert_eq!(rig.until("delete").await, ["delete Service c/prod/a"]);
    assert_eq!(rig.stats.of(Kind::Service).listings(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_deletes_nothing_and_starts_over() {
    let mut rig = Rig::start();
    let (a, b) = (service("a", "1", json!(1)), service("b", "1", json!(2)));
    rig.server
        .next(SERVICES)
        .await
        .answer_list(&[a], "1", Some("more"));
    rig.server.next(SERVICES).await.fail(410);
    rig.server.list(SERVICES, &[b], "2").await;
    let told = [
        "put Service c/prod/a",
        "put Service c/prod/b",
        "retain Service c: c/prod/b",
    ];
    assert_eq!(rig.until("retain").await, told);
}

#[tokio::test(start_paused = true)]
async fn attempts_to_list_are_spaced_further_and_further_apart() {
    let mut rig = Rig::start();
    let mut last = Instant::now();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        rig.server.next(SERVICES).await.fail(503);
        pauses.push(last.elapsed());
        last = Instant::now();
    }
    // 0.8 s, doubled up to 30 s, with as much again at random.
    assert!(pauses[7] > Duration::from_secs(15), "{pauses:?}");
    assert!(
        pauses[1..]
            .iter()
            .all(|pause| *pause <= Duration::from_secs(60)),
        "{pauses:?}"
    );
    assert_eq!(rig.stats.of(Kind::Service).watch_errors(), 7);
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_as_soon_as_they_begin_are_spaced_too() {
    let (mut rig, [services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    drop(services);
    let mut last = Instant::now();
    let mut pauses = Vec::new();
    for _ in 0..6 {
        drop(rig.server.watch(SERVICES).await);
        pauses.push(last.elapsed());
        last = Instant::now();
    }
    let far = Duration::from_millis(500);
    assert!(pauses[1..].iter().all(|pause| *pause > far), "{pauses:?}");
    assert!(pauses[5] > Duration::from_secs(5), "{pauses:?}");

    // One that brought something is worth another one at once.
    let mut services = rig.server.watch(SERVICES).await;
    services.send("ADDED", service("a", "11", json!(1))).await;
    drop(services);
    let last = Instant::now();
    rig.server.watch(SERVICES).await;
    assert_eq!(last.elapsed(), Duration::ZERO);
}

/// A listing that succeeds is no progress if nothing can be watched from it.
#[tokio::test(start_paused = true)]
async fn listings_that_lead_nowhere_are_spaced_too() {
    let mut rig = Rig::start();
    let start = Instant::now();
    for _ in 0..6 {
        rig.server.list(SERVICES, &[], "5").await;
        rig.server.next(SERVICES).await.fail(410);
    }
    let took = start.elapsed();
    assert!(took > Duration::from_secs(10), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_for_another_reason_is_mended_by_a_listing() {
    let (mut rig, [mut services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    services.error(500).await;
    // Not for one that passes.
    let mut services = rig.server.watch(SERVICES).await;
    services.error(400).await;
    rig.server.list(SERVICES, &[], "30").await;
    assert_eq!(rig.until("retain").await, ["retain Service c: "]);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_no_event_is_skipped() {
    let (mut rig, [mut services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    services.send_line("what?").await;
    services.send("ADDED", service("a", "11", json!(1))).await;
    assert_eq!(rig.until("put").await, ["put Service c/prod/a"]);
    assert_eq!(rig.stats.of(Kind::Service).watch_errors(), 1);
    // An unknown event may have been a change.
    services
        .send_line(r#"{"type": "WHAT", "object": {}}"#)
        .await;
    rig.server.list(SERVICES, &[], "12").await;
    assert_eq!(rig.until("retain").await, ["retain Service c: "]);
}

/// Not even a bookmark came, so the server's state is unknown.
#[tokio::test(start_paused = true)]
async fn after_a_watch_that_says_nothing_for_too_long_comes_a_listing() {
    let (mut rig, [services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    let start = Instant::now();
    rig.server.list(SERVICES, &[], "10").await;
    let waited = start.elapsed();
    assert!((295..300).contains(&waited.as_secs()), "{waited:?}");
    drop(services);
    // Also if the server ends it in time.
    let services = rig.server.watch(SERVICES).await;
    tokio::time::sleep(Duration::from_secs(290)).await;
    drop(services);
    rig.server.list(SERVICES, &[], "10").await;
    // A bookmark is enough.
    let mut services = rig.server.watch(SERVICES).await;
    tokio::time::sleep(Duration::from_secs(280)).await;
    services.bookmark("11").await;
    drop(services);
    rig.server.watch(SERVICES).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_went_back_is_noticed_while_a_watch_is_silent() {
    let (mut rig, [services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    let start = Instant::now();
    rig.server.set_newest(9);
    let call = rig.server.next(SERVICES).await;
    // A listing of the storage, at any version.
    assert!(
        !call.query().contains("resourceVersion"),
        "{}",
        call.query()
    );
    call.answer_list(&[service("a", "8", json!(1))], "9", None);
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{:?}",
        start.elapsed()
    );
    let told = ["put Service c/prod/a", "retain Service c: c/prod/a"];
    assert_eq!(rig.until("retain").await, told);
    drop(services);
    let call = rig.server.next(SERVICES).await;
    assert!(
        call.query().contains("resourceVersion=9"),
        "{}",
        call.query()
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_went_back_is_noticed_before_the_next_watch_and_by_events() {
    let (mut rig, [services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    rig.server.set_newest(9);
    drop(services);
    rig.server.list(SERVICES, &[], "9").await;
    assert_eq!(rig.until("retain").await, ["retain Service c: "]);
    let mut services = rig.server.watch(SERVICES).await;
    services.send("ADDED", service("a", "7", json!(1))).await;
    rig.server
        .list(SERVICES, &[service("a", "7", json!(1))], "9")
        .await;
    let told = ["put Service c/prod/a", "retain Service c: c/prod/a"];
    assert_eq!(rig.until("retain").await, told);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_left_and_its_last_contact_is_known() {
    let (mut rig, [services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    let silence = |rig: &Rig| rig.stats.of(Kind::Service).silence().unwrap();
    assert!(silence(&rig) < Duration::from_secs(1));
    rig.server.set_newest(0);
    let errors = rig.stats.of(Kind::Service).watch_errors();
    let start = Instant::now();
    while rig.stats.of(Kind::Service).watch_errors() == errors {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let took = start.elapsed();
    assert!((40..60).contains(&took.as_secs()), "{took:?}");
    assert!(
        silence(&rig) >= Duration::from_secs(40),
        "{:?}",
        silence(&rig)
    );
    rig.server.set_newest(20);
    drop(services);
    let call = rig.server.next(SERVICES).await;
    assert!(
        call.query().contains("resourceVersion=10"),
        "{}",
        call.query()
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_with_too_many_objects_keeps_the_last_ones() {
    let mut rig = Rig::watching(Options {
        most_objects: Some(3),
        ..PAGED
    });
    let all: Vec<_> = ["a", "b", "c", "d"]
        .map(|name| service(name, "5", json!(80)))
        .to_vec();
    rig.server.list(SLICES, &[], "1").await;
    rig.server.list(NODES, &[], "1").await;
    rig.server.list(SERVICES, &all[..2], "10").await;
    rig.until("Synced").await;
    let mut services = rig.server.watch(SERVICES).await;
    for (name, version) in [("c", "11"), ("c", "12"), ("d", "13")] {
        let one = service(name, version, json!(81));
        services.send("MODIFIED", one).await;
    }
    // The fourth one ends the watch, and a listing of four is none either.
    rig.server.list(SERVICES, &all, "13").await;
    let call = rig.server.next(SERVICES).await;
    assert!(!call.query().contains("watch=true"), "{}", call.query());
    call.answer_list(&all[1..], "20", None);
    let told = rig.until("retain").await;
    let is_there = |told: &String| told.ends_with("c/prod/d");
    assert_eq!(
        told.iter().filter(|told| is_there(told)).count(),
        2,
        "{told:?}"
    );
    assert_eq!(
        told.last().unwrap(),
        "retain Service c: c/prod/b c/prod/c c/prod/d"
    );
    assert_eq!(rig.stats.of(Kind::Service).watch_errors(), 2);
}

/// The next listing of Services. All pages but the first fail.
async fn next_listing(rig: &mut Rig) -> server::Call {
    loop {
        let call = rig.server.next(SERVICES).await;
        match call.query().contains("continue=") {
            true => call.fail(500),
            false => return call,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn listings_that_never_end_bring_a_bounded_number_of_objects() {
    let mut rig = Rig::watching(Options {
        most_objects: Some(2),
        ..PAGED
    });
    rig.server.list(SLICES, &[], "1").await;
    rig.server.list(NODES, &[], "1").await;
    let page = |names: [&str; 2]| names.map(|name| service(name, "5", json!(80)));
    for names in [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]] {
        let listing = next_listing(&mut rig).await;
        listing.answer_list(&page(names), "5", Some("more"));
    }
    let listing = next_listing(&mut rig).await;
    listing.answer_list(&page(["a", "b"]), "20", None);
    let told = rig.until("retain Service").await;
    let put: std::collections::BTreeSet<_> = told
        .iter()
        .filter(|told| told.starts_with("put Service"))
        .collect();
    assert_eq!(put.len(), 4, "{told:?}");
    assert_eq!(told.last().unwrap(), "retain Service c: c/prod/a c/prod/b");
}
