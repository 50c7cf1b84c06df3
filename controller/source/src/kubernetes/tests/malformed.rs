// SPDX-License-Identifier: Apache-2.0

//! One malformed object never affects the others.

use super::*;

const REFUSED: &str = "refuse Service c/prod/bad: spec.ports[0].port: invalid type: string \"x\", \
                       expected i64";

#[tokio::test(start_paused = true)]
async fn in_a_listing_it_is_refused_and_kept() {
    let services = [
        service("a", "1", json!(1)),
        service("bad", "2", json!("x")),
        json!({"metadata": {"labels": 7}}),
        json!("not even an object"),
        service("z", "3", json!(26)),
    ];
    let (mut rig, _streams) = Rig::with_services(&services).await;
    let told: Vec<_> = rig
        .until("Synced")
        .await
        .into_iter()
        .filter(|told| told.contains("Service") && !told.contains("Slice"))
        .collect();
    let expected = [
        "put Service c/prod/a",
        REFUSED,
        "put Service c/prod/z",
        "retain Service c: c/prod/a c/prod/bad c/prod/z",
    ];
    assert_eq!(told, expected);
    assert_eq!(rig.stats.of(Kind::Service).malformed(), 3);
}

#[tokio::test(start_paused = true)]
async fn in_a_watch_it_is_refused_and_deleted_when_it_goes() {
    let (mut rig, [mut services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    services
        .send("ADDED", service("bad", "11", json!("x")))
        .await;
    services
        .send("ADDED", service("good", "12", json!(1)))
        .await;
    assert_eq!(rig.until("put").await, [REFUSED, "put Service c/prod/good"]);
    services
        .send("DELETED", service("bad", "13", json!("x")))
        .await;
    assert_eq!(rig.until("delete").await, ["delete Service c/prod/bad"]);
    assert_eq!(rig.stats.of(Kind::Service).watch_errors(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_version_it_costs_one_listing() {
    let (mut rig, [mut services, ..]) = Rig::with_services(&[]).await;
    rig.until("Synced").await;
    services.send("ADDED", json!({"metadata": 7})).await;
    rig.server
        .list(SERVICES, &[service("a", "20", json!(1))], "20")
        .await;
    let told = ["put Service c/prod/a", "retain Service c: c/prod/a"];
    assert_eq!(rig.until("retain").await, told);
}
