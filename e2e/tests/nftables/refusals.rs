// SPDX-License-Identifier: Apache-2.0

//! Services of which the kernel refuses a part.

use portolan_e2e::ask::{address, answers};
use portolan_e2e::cluster::{Cluster, PATIENT};
use portolan_e2e::objects::{service, slices};
use portolan_e2e::rig::{Family, Host, Protocol};
use portolan_e2e::wait::wait_for;
use portolan_netlink::nftables::Value;
use serde_json::json;

use crate::{WEB, ours, skip, web};

const LATE: [&str; 2] = ["10.96.0.11", "fd00:10:96::11"];

#[test]
fn a_service_that_the_kernel_refuses_is_left_out_alone() {
    if skip("a_service_that_the_kernel_refuses_is_left_out_alone") {
        return;
    }
    let (mut cluster, pods) = web(&json!({}));
    let visitor = cluster.add_pod(0, "v").unwrap();
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    let node: &Host = cluster.rig.node(0);
    let node = node.clone();
    let len = |family: usize, set: &str| {
        let table = &ours(&node)[family];
        table.as_ref().map_or(0, |table| {
            let set = table.sets.get(set);
            set.map_or(0, |(_, elements)| elements.len())
        })
    };
    // The kernel takes no more elements of a constant map once rules look it up.
    let ways = len(0, "services");
    let constant = "delete table ip portolan; add table ip portolan; add map ip portolan services \
                    { type ipv4_addr . inet_proto . inet_service : verdict; flags constant; }";
    node.exec(&["nft", constant]).unwrap();
    cluster.start_agent(0).unwrap();
    cluster.wait_until_ready(0).unwrap();

    // As many as before, so that no element of `services` changes.
    let new = cluster.add_pod(0, "d").unwrap();
    let three = [(&pods[0], 0), (&new, 0), (&pods[2], 0)];
    // Nodes with errors are not waited for.
    let write = |cluster: &Cluster, name: &str, ips: [&str; 2]| {
        let objects = [vec![service(name, ips, json!({}))], slices(name, &three)].concat();
        let list = json!({ "kind": "List", "items": objects });
        let file = format!("{name}.json");
        cluster.write(&file, &list.to_string()).unwrap();
    };
    write(&cluster, "late", LATE);
    let refusal = "the kernel refused an element of services";
    let agent = cluster.agent(0).unwrap();
    let said = agent.wait_for_log(refusal, PATIENT).unwrap();
    assert!(said.contains("late"), "{said}");
    // The other Service changes, and the other family has both.
    write(&cluster, "web", WEB);
    let wait = |what: &str, family: usize, services: usize| {
        wait_for(what, PATIENT, || {
            let is_there = len(family, "services") == services;
            (is_there && len(family, "endpoints") == 3 * services).then_some(())
        })
        .unwrap();
    };
    let gone = pods[1].pod.v4().octets();
    let is_of_gone = |value: &Value| matches!(value, Value::Data(to) if to.starts_with(&gone));
    wait_for("the change of IPv4", PATIENT, || {
        let [v4, _] = &ours(&node);
        let (_, slots) = &v4.as_ref()?.sets["endpoints"];
        (!slots.values().any(is_of_gone)).then_some(())
    })
    .unwrap();
    assert_eq!(len(0, "services"), ways);
    wait("both Services of IPv6", 1, 2 * ways);
    let asks = |service, family| {
        for protocol in Protocol::ALL {
            let service = address(service, family, 80);
            answers(&visitor.pod, protocol, service, &["a", "c", "d"]);
        }
    };
    asks(WEB, Family::V4);
    asks(WEB, Family::V6);
    asks(LATE, Family::V6);
    let log = cluster.agent(0).unwrap().log().unwrap();
    let refused = log.lines().filter(|line| line.contains(refusal));
    for line in refused {
        assert!(line.contains("late"), "{line}");
    }

    // A new map takes all.
    node.exec(&["nft", "delete table ip portolan"]).unwrap();
    wait("both Services of IPv4", 0, 2 * ways);
    asks(LATE, Family::V4);
}
