// SPDX-License-Identifier: Apache-2.0

//! Complete readings of the agent's tables, by the agent and by `nft`.

use portolan_e2e::cluster::{Cluster, PATIENT};
use portolan_e2e::wait::wait_for;
use serde_json::json;

use crate::{WEB, skip, web};

/// Reconciliations of a node so far: those that read the kernel (`full`), or those that did not (`partial`).
fn reconciliations(cluster: &Cluster, kind: &str) -> u64 {
    let metrics = cluster.agent_metrics(0).unwrap();
    let name = format!("kubeproxy_sync_{kind}_proxy_rules_duration_seconds_count ");
    let value = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name.as_str()));
    value.unwrap().parse().unwrap()
}

#[test]
fn tables_are_read_again_only_after_somebody_has_changed_one() {
    if skip("tables_are_read_again_only_after_somebody_has_changed_one") {
        return;
    }
    let (mut cluster, _pods) = web(&json!({}));
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    let periods = ["--check-period=1h", "--sync-period=1s"];
    cluster.start_agent_with(0, &periods).unwrap();
    cluster.wait_until_ready(0).unwrap();
    let of_kind = |kind| reconciliations(&cluster, kind);
    let (read, unread) = (of_kind("full"), of_kind("partial"));
    wait_for("some sync periods without a reading", PATIENT, || {
        (of_kind("partial") > unread + 3).then_some(())
    })
    .unwrap();
    assert_eq!(of_kind("full"), read);

    // The change may have been one of the agent's own table.
    let node = cluster.rig.node(0);
    node.exec(&["nft", "add table ip somebody"]).unwrap();
    wait_for("a complete reading", PATIENT, || {
        (of_kind("full") > read).then_some(())
    })
    .unwrap();
}

#[test]
fn nft_lists_slots_by_number_and_loads_the_list() {
    if skip("nft_lists_slots_by_number_and_loads_the_list") {
        return;
    }
    let (cluster, _pods) = web(&json!({}));
    let node = cluster.rig.node(0);
    for (family, service) in ["ip", "ip6"].into_iter().zip(WEB) {
        let list = ["nft", "list", "map", family, "portolan", "endpoints"];
        let last = format!("{service} . tcp . 80 . 2 : ");
        let listed = wait_for("three slots", PATIENT, || {
            let listed = node.exec(&list).ok()?;
            listed.contains(&last).then_some(listed)
        })
        .unwrap();
        // Numbers have the type of the expression that rules draw them by.
        let kind = format!("typeof {family} daddr . meta l4proto . th dport . numgen random");
        assert!(listed.contains(&kind), "{listed}");
        // A rule that draws them fits the map of this text.
        let draws = format!(
            "table {family} copy {{\n chain try {{ meta l4proto tcp dnat {family} to {family} daddr . meta l4proto . \
             th dport . numgen random mod 4 map @endpoints; }}\n}}\n"
        );
        let text = listed.replace(" portolan {", " copy {") + &draws;
        node.namespace()
            .exec_with_input(&["nft", "-c", "-f", "-"], &text)
            .unwrap();
    }
}
