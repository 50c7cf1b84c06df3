// SPDX-License-Identifier: Apache-2.0

//! Deletions that are too many to be believed.

use super::*;

fn services(range: std::ops::Range<usize>) -> Vec<Value> {
    let one = |i| service(&format!("s{i}"), "1", json!(80));
    range.map(one).collect()
}

/// The objects that are left: put, and neither deleted nor swept.
fn apply(left: &mut std::collections::BTreeSet<String>, told: &[String]) {
    for told in told {
        if let Some(object) = told.strip_prefix("put ") {
            left.insert(object.to_owned());
        } else if let Some(object) = told.strip_prefix("delete ") {
            left.remove(object);
        } else if let Some((_, kept)) = told.split_once("retain Service c: ") {
            let kept: Vec<_> = kept.split(' ').collect();
            left.retain(|one| kept.contains(&one.trim_start_matches("Service ")));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_emptied_server_is_listed_again_and_then_its_deletions_are_held() {
    let (mut rig, [mut watch, ..]) = Rig::with_services(&services(0..100)).await;
    let mut left = std::collections::BTreeSet::new();
    apply(&mut left, &rig.until("Synced").await);
    assert_eq!(left.len(), 100);
    let holds = Arc::clone(rig.stats.holds());
    watch.gone().await;
    rig.server.list(SERVICES, &[], "20").await;
    let call = rig.server.next(SERVICES).await;
    assert!(
        !call.query().contains("resourceVersion"),
        "{}",
        call.query()
    );
    assert!(holds.held().is_empty(), "only doubted");
    call.answer_list(&services(0..3), "21", None);
    apply(&mut left, &rig.until("retain").await);
    assert_eq!(left.len(), 100);
    let held = holds.held()[&("c".into(), Kind::Service)];
    assert_eq!((held.lost.objects, held.of.objects), (97, 100));
    assert_eq!(holds.begun(Kind::Service), 1);

    // New objects pass, and objects that return are released.
    let mut watch = rig.server.watch(SERVICES).await;
    watch.send("ADDED", service("new", "22", json!(1))).await;
    watch.send("ADDED", service("s50", "23", json!(1))).await;
    apply(&mut left, &rig.until("put Service c/prod/s50").await);
    assert_eq!(left.len(), 101);
    assert_eq!(holds.held()[&("c".into(), Kind::Service)].lost.objects, 96);

    // Confirmed.
    holds.confirm();
    apply(&mut left, &rig.until("delete").await);
    assert_eq!(left.len(), 5);
    assert!(holds.held().is_empty());
    assert!(holds.confirm().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_deletes_nearly_all_is_held_and_confirmed_by_time() {
    let (mut rig, [mut watch, ..]) = Rig::with_services(&services(0..100)).await;
    let mut left = std::collections::BTreeSet::new();
    apply(&mut left, &rig.until("Synced").await);
    let start = tokio::time::Instant::now();
    for i in 0..90 {
        let gone = service(&format!("s{i}"), &(20 + i).to_string(), json!(80));
        watch.send("DELETED", gone).await;
    }
    watch.send("ADDED", service("new", "200", json!(1))).await;
    apply(&mut left, &rig.until("put").await);
    assert_eq!(left.len(), 101);
    apply(&mut left, &rig.until("delete").await);
    let took = start.elapsed().as_secs();
    assert!((1800..1810).contains(&took), "{took}");
    assert_eq!(left.len(), 11);
}

#[tokio::test(start_paused = true)]
async fn half_of_all_that_a_watch_deletes_is_believed() {
    let (mut rig, [mut watch, ..]) = Rig::with_services(&services(0..100)).await;
    let mut left = std::collections::BTreeSet::new();
    apply(&mut left, &rig.until("Synced").await);
    let start = tokio::time::Instant::now();
    for i in 0..50 {
        let gone = service(&format!("s{i}"), &(20 + i).to_string(), json!(80));
        watch.send("DELETED", gone).await;
    }
    apply(&mut left, &rig.until("delete").await);
    assert_eq!(left.len(), 50);
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// Streamed listings are doubted too.
#[tokio::test(start_paused = true)]
async fn a_streamed_listing_is_doubted_and_repeated_in_pages() {
    let mut rig = Rig::watching(Options {
        paged: false,
        ..PAGED
    });
    let mut watch = rig.server.watch(SERVICES).await;
    for one in services(0..100) {
        watch.send("ADDED", one).await;
    }
    watch.listed("10").await;
    let mut left = std::collections::BTreeSet::new();
    apply(&mut left, &rig.until("retain").await);
    watch.gone().await;
    let mut watch = rig.server.watch(SERVICES).await;
    watch.listed("20").await;
    rig.server.list(SERVICES, &services(0..100), "21").await;
    apply(&mut left, &rig.until("retain").await);
    assert_eq!(left.len(), 100);
    assert!(rig.stats.holds().held().is_empty());
}

/// As after another kubeconfig, while the server's storage is empty.
#[tokio::test(start_paused = true)]
async fn a_source_that_starts_again_at_an_emptied_server_deletes_nothing_unconfirmed() {
    let holds = Arc::new(HeldDeletions::default());
    let of_services: crate::HeldKey = ("c".into(), Kind::Service);
    let mut left = std::collections::BTreeSet::new();
    let start = async || {
        let mut rig = Rig::after(&holds, PAGED);
        rig.server.list(SLICES, &[], "1").await;
        rig.server.list(NODES, &[], "1").await;
        rig
    };
    let mut rig = start().await;
    rig.server.list(SERVICES, &services(0..100), "10").await;
    apply(&mut left, &rig.until("Synced").await);
    assert_eq!(left.len(), 100);
    rig.end().await;

    let mut rig = start().await;
    rig.server.list(SERVICES, &[], "20").await;
    rig.server.list(SERVICES, &[], "21").await;
    apply(&mut left, &rig.until("Synced").await);
    assert_eq!(left.len(), 100);
    assert_eq!(holds.held()[&of_services].lost.objects, 100);
    rig.end().await;
    assert_eq!(holds.held()[&of_services].lost.objects, 100);

    let mut rig = start().await;
    rig.server.list(SERVICES, &services(0..3), "30").await;
    apply(&mut left, &rig.until("Synced").await);
    assert_eq!(left.len(), 100);
    assert_eq!(holds.held()[&of_services].lost.objects, 97);
    holds.confirm();
    apply(&mut left, &rig.until("delete").await);
    assert_eq!((left.len(), holds.held().len()), (3, 0));
    assert_eq!(holds.begun(Kind::Service), 1);
    rig.end().await;

    // A cluster that left and returns is another one.
    holds.forget("c");
    let mut rig = start().await;
    rig.server.list(SERVICES, &[], "40").await;
    apply(&mut left, &rig.until("Synced").await);
    assert_eq!(left.len(), 0);
}
