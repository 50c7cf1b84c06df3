// SPDX-License-Identifier: Apache-2.0

//! The agent repairs and counts objects that other programs delete or change.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::time::{Duration, Instant};

use portolan_e2e::ask::{address, answers};
use portolan_e2e::cluster::{Cluster, PATIENT};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::listing::listing;
use portolan_e2e::objects::{ports, service, slices};
use portolan_e2e::rig::{Family, Host, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::json;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
/// The agent's sync period.
const PERIOD: Duration = Duration::from_secs(2);

/// Commands that delete or change objects of the agent. The first pod has the address 10.244.1.2.
const COMMANDS: [&str; 14] = [
    "ipvsadm -D -t 10.96.0.10:80",
    "ipvsadm -D -u [fd00:10:96::10]:80",
    "ipvsadm -d -t 10.96.0.10:80 -r 10.244.1.2:8080",
    "ipvsadm -E -t 10.96.0.10:80 -s wrr",
    "ipvsadm -e -t 10.96.0.10:80 -r 10.244.1.2:8080 -m -w 7",
    "ipvsadm -C",
    "ipset del KUBE-CLUSTER-IP 10.96.0.10,tcp:80",
    "ipset flush KUBE-6-CLUSTER-IP",
    "ipset add KUBE-CLUSTER-IP 10.96.0.10,tcp:81",
    "ip route del local 10.96.0.10 dev lo table local proto 99",
    "ip -6 route del local fd00:10:96::10 dev lo table local proto 99",
    "iptables -t nat -F KUBE-SERVICES",
    "iptables -t nat -D PREROUTING -j KUBE-SERVICES",
    "ip6tables -t nat -F",
];

/// The agent's objects on a node, as the tools print them.
fn ours(node: &Host) -> String {
    let commands = [
        "ipvsadm -Sn",
        "ipset -s save",
        "iptables-save",
        "ip6tables-save",
        "ip -4 route show table local proto 99",
        "ip -6 route show table local proto 99",
    ];
    listing(node, &commands, |_, _| true).unwrap()
}

fn repaired(cluster: &Cluster) -> u64 {
    let metrics = cluster.agent_metrics(0).unwrap();
    let name = "portolan_agent_drift_repaired_total ";
    let value = metrics.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap().parse().unwrap()
}

#[test]
fn deleted_and_changed_objects_are_repaired_and_counted() {
    if !lane::provides(
        "deleted_and_changed_objects_are_repaired_and_counted",
        &[Need::Root, Need::Ipvs],
    ) {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let b = cluster.add_pod(1, "b").unwrap();
    let visitor = cluster.add_pod(0, "v").unwrap();
    let spec = json!({ "type": "NodePort", "ports": ports(Some(30080)) });
    let pods = [(&a, 0), (&b, 1)];
    let objects = [vec![service("web", WEB, spec)], slices("web", &pods)].concat();
    cluster.put("web.json", &objects).unwrap();
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    let flag = format!("--sync-period={}", PERIOD.as_secs());
    cluster.start_agent_with(0, &[&flag]).unwrap();
    cluster.wait_until_ready(0).unwrap();
    assert_eq!(repaired(&cluster), 0);

    let node = cluster.rig.node(0);
    let before = ours(node);
    let mut counted = 0;
    for command in COMMANDS {
        let words: Vec<_> = command.split(' ').collect();
        node.exec(&words).unwrap();
        let start = Instant::now();
        wait_for(&format!("{command:?} to be repaired"), PATIENT, || {
            (ours(node) == before).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {}", ours(node)));
        let took = start.elapsed();
        let now = wait_for("the repair to be counted", PATIENT, || {
            Some(repaired(&cluster)).filter(|now| *now > counted)
        })
        .unwrap();
        println!(
            "{command}: {} objects repaired after {took:?}",
            now - counted
        );
        counted = now;
    }
    for family in Family::ALL {
        for protocol in Protocol::ALL {
            let web = address(WEB, family, 80);
            answers(&visitor.pod, protocol, web, &["a", "b"]);
        }
    }
}
