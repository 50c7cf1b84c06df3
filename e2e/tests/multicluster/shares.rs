// SPDX-License-Identifier: Apache-2.0

//! Shares of clusters in connections, measured.

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::programs::program;
use portolan_e2e::rig::{Family, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::json;

use super::world::{CLUSTERS, PODS, World, shares, skip};

#[test]
fn connections_follow_the_weights_of_clusters() {
    if skip("connections_follow_the_weights_of_clusters") {
        return;
    }
    let world = World::new(PODS, shares(), json!({"rampUp": "1s"}));
    world.wait_for_shares([700, 200, 100]);
    world.check_shares([70.0, 20.0, 10.0]);
    // The other family and protocol, and another cluster's address.
    let vip = world.vip("us-1", Family::V6);
    let visitor = world.cluster.add_pod(2, "other").unwrap();
    let any: Vec<String> = (0..3)
        .flat_map(|number| (0..PODS[number]).map(move |pod| format!("{}-{pod}", CLUSTERS[number])))
        .collect();
    for protocol in Protocol::ALL {
        let answer = visitor.pod.request(protocol, vip, PATIENT).unwrap();
        assert!(any.contains(&answer.name), "{answer:?}");
        assert_eq!(
            answer.source,
            visitor.pod.address(Family::V6),
            "Flat keeps it"
        );
    }

    // Half of a cluster's share: 7 * 10, 2 * 20 and 1 * 20.
    world.policy(&json!({"drain": {"to": 50, "over": "2s"}}));
    world.wait_for_shares([538, 308, 154]);
    assert_eq!(world.state("eu-1"), ("Drained".to_owned(), 10));
    world.check_shares([700.0 / 13.0, 400.0 / 13.0, 200.0 / 13.0]);
    world.policy(&json!({}));
    world.wait_for_shares([700, 200, 100]);

    // What operators see.
    let control = world.cluster.control();
    let ctl = program("portolanctl").unwrap();
    let ctl = ctl.to_str().unwrap();
    let shown = control.exec(&[ctl, "cluster", "list"]).unwrap();
    assert!(shown.contains("Ready"), "{shown}");
    let shown = control.exec(&[ctl, "--cluster=eu-1", "explain-import", "default/web"]);
    let shown = shown.unwrap();
    for part in [
        "VIP 10.112.",
        "TrafficPolicy web",
        "70.0%",
        "programmed on 1 of 1 nodes",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn a_weak_cluster_gives_its_load_to_the_others() {
    if skip("a_weak_cluster_gives_its_load_to_the_others") {
        return;
    }
    let tiers = json!([{"clusters": [{"local": true}]}, {"rest": true}]);
    let traffic = json!({"services": {"names": ["web"]}, "tiers": tiers, "minHealthy": "70%"});
    let world = World::new([10, 4, 2], traffic, json!({}));
    world.wait_for_shares([1000, 0, 0]);
    // 5 of 10 ready: 14 twentieths stay, 6 go to 4 and 2 pods of the other clusters.
    world.web(0, 5, &[]);
    world.wait_for_shares([700, 200, 100]);
    world.check_shares([70.0, 20.0, 10.0]);
    world.web(0, 0, &[]);
    world.wait_for_shares([0, 667, 333]);
    world.check_shares([0.0, 200.0 / 3.0, 100.0 / 3.0]);
}

#[test]
fn forged_addresses_get_no_connection() {
    if skip("forged_addresses_get_no_connection") {
        return;
    }
    let world = World::new([1, 1, 1], shares(), json!({}));
    world.wait_for_shares([700, 200, 100]);
    // Cluster eu-2 gives a pod of eu-1 for its own, and an address of nobody.
    let victim = world.pods[0][0].pod.v4().to_string();
    world.web(1, 0, &[&victim, "198.51.100.1"]);
    world.wait_for_shares([875, 0, 125]);
    let problems = wait_for("the problem", PATIENT, || {
        let problems = world.cluster.controller_debug("problems").ok()?["objects"].clone();
        let text = problems.to_string();
        text.contains("AddressOutsideNetwork").then_some(text)
    })
    .unwrap();
    for part in ["ServiceExport eu-2/default/web", &victim, "198.51.100.1"] {
        assert!(problems.contains(part), "{part}: {problems}");
    }
    world.check_shares([87.5, 0.0, 12.5]);
}
