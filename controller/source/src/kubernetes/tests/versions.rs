// SPDX-License-Identifier: Apache-2.0

//! The versions that the source reports.

use super::*;

#[tokio::test(start_paused = true)]
async fn listings_events_and_bookmarks_say_how_far_we_are() {
    let (mut rig, [mut services, ..]) = Rig::with_services(&[service("a", "7", json!(1))]).await;
    let told = rig.changes_until("reach Service").await;
    // Not before the listing is complete.
    assert_eq!(told.last().unwrap(), "reach Service c 10");
    rig.until("Synced").await;
    services.send("ADDED", service("b", "11", json!(1))).await;
    let told = ["put Service c/prod/b", "reach Service c 11"];
    assert_eq!(rig.changes_until("reach").await, told);
    services.bookmark("15").await;
    assert_eq!(rig.changes_until("reach").await, ["reach Service c 15"]);
    services.send("DELETED", service("b", "16", json!(1))).await;
    let told = ["delete Service c/prod/b", "reach Service c 16"];
    assert_eq!(rig.changes_until("reach").await, told);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_no_number_is_followed_and_not_reported() {
    let (mut rig, [mut services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    services.send("ADDED", service("a", "x1", json!(1))).await;
    assert_eq!(rig.changes_until("put").await, ["put Service c/prod/a"]);
    drop(services);
    let call = rig.server.next(SERVICES).await;
    let query = call.query();
    assert!(query.contains("resourceVersion=x1"), "{query}");
}
