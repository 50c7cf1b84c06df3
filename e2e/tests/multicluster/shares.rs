// SPDX-License-Identifier: Apache-2.0

//! Shares of clusters in connections, measured.

use portolan_e2e::ask::{address, answers, no_answer};
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::programs::program;
use portolan_e2e::rig::{Family, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

use super::world::{CLUSTERS, PODS, WEB, World, shares, skip, skip_on};

#[test]
fn connections_follow_the_weights_of_clusters() {
    follow_the_weights("nftables", "connections_follow_the_weights_of_clusters");
}

#[test]
fn connections_follow_the_weights_of_clusters_on_ipvs() {
    let name = "connections_follow_the_weights_of_clusters_on_ipvs";
    follow_the_weights("ipvs", name);
}

fn follow_the_weights(dataplane: &'static str, test: &str) {
    if skip_on(dataplane, test) {
        return;
    }
    let world = World::on(dataplane, PODS, shares(), json!({"rampUp": "1s"}));
    world.wait_for_shares([700, 200, 100]);
    for protocol in Protocol::ALL {
        world.check_shares_by(protocol, [70.0, 20.0, 10.0]);
    }
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

/// Takes the ServiceExport of a cluster with one pod away; its Service stays.
fn withdraw(world: &World, number: usize) {
    let text = world.text_of_web(number, 1, &[]);
    let mut list: Value = serde_json::from_str(&text).unwrap();
    let items = list["items"].as_array_mut().unwrap();
    items.retain(|item| item["kind"] != "ServiceExport");
    world.write(world.directory(number).join("web.json"), &list.to_string());
}

/// The requirements C1 and C3 of the table in `docs/conformance.md`.
#[test]
fn a_cluster_that_does_not_export_gets_no_connection() {
    if skip("a_cluster_that_does_not_export_gets_no_connection") {
        return;
    }
    let world = World::new([1, 1, 1], shares(), json!({}));
    world.wait_for_shares([700, 200, 100]);
    let vip = world.vip("eu-2", Family::V4);
    let visitor = world.cluster.add_pod(1, "inside").unwrap();
    for number in [1, 2] {
        withdraw(&world, number);
    }
    world.wait_for_shares([1000, 0, 0]);
    for protocol in Protocol::ALL {
        for _ in 0..20 {
            let answer = visitor.pod.request(protocol, vip, PATIENT).unwrap();
            assert_eq!(answer.name, "eu-1-0", "{protocol:?}");
        }
        let own = address(WEB, Family::V4, 80);
        answers(&visitor.pod, protocol, own, &["eu-2-0"]);
    }
    withdraw(&world, 0);
    wait_for("the end of the import", PATIENT, || {
        let import = world.import("eu-2");
        let shown = &import["import"];
        let is_gone = shown["exists"] == false && shown["pending"] == false;
        (is_gone && import["programmed"] == 1).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}: {}", world.import("eu-2")));
    for protocol in Protocol::ALL {
        no_answer(&visitor.pod, protocol, vip);
    }
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
