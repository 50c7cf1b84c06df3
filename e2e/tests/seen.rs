// SPDX-License-Identifier: Apache-2.0

//! What operators see of one node with IPVS: `portolanctl trace` beside what others did to the kernel, and
//! `portolanctl top`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::process::Command;

use portolan_e2e::ask::{PROMPT, address};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, program};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{ports, service, slices};
use portolan_e2e::programs::AGENT_ADMIN;
use portolan_e2e::rig::{Family, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

/// What somebody does to the node, and where a trace from the node to the Service shows it. The first pod has
/// the address 10.244.1.2.
const DAMAGES: [(&str, &str); 7] = [
    (
        "ipset del KUBE-CLUSTER-IP 10.96.0.10,tcp:80",
        "set KUBE-CLUSTER-IP 10.96.0.10,tcp:80",
    ),
    ("ipset add KUBE-CLUSTER-IP 10.96.0.10,tcp:80", ""),
    (
        "ipvsadm -e -t 10.96.0.10:80 -r 10.244.1.2:8080 -m -w 0",
        "virtual server TCP 10.96.0.10:80",
    ),
    ("ipvsadm -e -t 10.96.0.10:80 -r 10.244.1.2:8080 -m -w 1", ""),
    ("iptables -t nat -F KUBE-SERVICES", "the IPv4 rules"),
    ("ipvsadm -d -t 10.96.0.10:80 -r 10.244.1.2:8080", "the end"),
    (
        "ipvsadm -D -t 10.96.0.10:80",
        "virtual server TCP 10.96.0.10:80",
    ),
];

/// Runs `portolanctl` on a node: its exit code and output.
fn ctl(cluster: &Cluster, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program("portolanctl").unwrap());
    command
        .args(args)
        .arg(format!("--address=http://127.0.0.1:{AGENT_ADMIN}"));
    let node = cluster.rig.node(0).namespace();
    let output = node.run(move || command.output().unwrap()).unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// The Service `web` with a node port, and an agent that repairs nothing.
fn web() -> (Cluster, [EchoPod; 2]) {
    let mut cluster = Cluster::new().unwrap();
    let pods = [
        cluster.add_pod(0, "a").unwrap(),
        cluster.add_pod(1, "b").unwrap(),
    ];
    let spec = json!({ "type": "NodePort", "externalTrafficPolicy": "Local", "ports": ports(Some(30080)) });
    let on_nodes = [(&pods[0], 0), (&pods[1], 1)];
    let objects = [vec![service("web", WEB, spec)], slices("web", &on_nodes)].concat();
    cluster.put("web.json", &objects).unwrap();
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    let flags = ["--check-period=1h", "--sync-period=1h"];
    cluster.start_agent_with(0, &flags).unwrap();
    cluster.wait_until_ready(0).unwrap();
    (cluster, pods)
}

#[test]
fn a_trace_tells_what_the_kernel_has_otherwise_than_the_table() {
    let name = "a_trace_tells_what_the_kernel_has_otherwise_than_the_table";
    if !lane::provides(name, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let (cluster, pods) = web();
    let node = cluster.rig.node(0);
    let node_port = node.socket(Family::V4, 30080).to_string();
    let here = format!("{}:{}", pods[0].pod.v4(), EchoPod::PORT);
    let there = format!("{}:{}", pods[1].pod.v4(), EchoPod::PORT);
    for (from, to, has, lacks) in [
        (
            "pod",
            "10.96.0.10:80",
            [&*here, &there],
            "masqueraded  rule",
        ),
        (
            "node",
            "10.96.0.10:80",
            [&*here, "masqueraded  rule nat KUBE-POSTROUTING"],
            "nothing",
        ),
        ("outside", &node_port, [&*here, "as it is"], &there),
        (
            "pod",
            &node_port,
            [&*there, "set KUBE-SHORT-CIRCUIT"],
            "nothing",
        ),
        (
            "outside",
            "[fd00:10:96::10]:80",
            ["fd00:244:1::2", "masqueraded  rule"],
            "nothing",
        ),
    ] {
        let (code, text) = ctl(&cluster, &["trace", from, to]);
        assert_eq!(code, Some(0), "{from} {to}: {text}");
        assert!(
            has.iter().all(|part| text.contains(part)),
            "{from} {to}: {has:?}: {text}"
        );
        assert!(!text.contains(lacks), "{from} {to}: {lacks}: {text}");
    }
    let (code, text) = ctl(&cluster, &["trace", "node", "10.96.0.10:80", "--probe"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("note: probe: answered; connections of "),
        "{text}"
    );

    for (command, place) in DAMAGES {
        let words: Vec<_> = command.split(' ').collect();
        node.exec(&words).unwrap();
        let (code, text) = ctl(&cluster, &["trace", "node", "10.96.0.10:80", "-o", "json"]);
        let found: Value = serde_json::from_str(&text).unwrap();
        let differences = found["differences"].as_array().unwrap();
        println!("{command}: {differences:#?}");
        if place.is_empty() {
            assert_eq!((code, differences.len()), (Some(0), 0), "{command}: {text}");
            continue;
        }
        assert_eq!(code, Some(1), "{command}: {text}");
        let is_told = differences.iter().any(|d| d["place"] == place);
        assert!(is_told, "{command}: {place}: {differences:#?}");
    }
    let (code, text) = ctl(&cluster, &["trace", "node", "10.96.0.10:80", "--probe"]);
    assert_eq!(code, Some(1), "{text}");
}

#[test]
fn top_counts_connections_and_bytes_of_services() {
    let name = "top_counts_connections_and_bytes_of_services";
    if !lane::provides(name, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let (cluster, _pods) = web();
    let visitor = cluster.add_pod(0, "v").unwrap();
    let web = address(WEB, Family::V4, 80);
    let asked = wait_for("connections to be counted", PATIENT, || {
        for _ in 0..20 {
            visitor.pod.request(Protocol::Tcp, web, PROMPT).unwrap();
        }
        let (code, text) = ctl(&cluster, &["top", "--once", "-o", "json"]);
        assert_eq!(code, Some(0), "{text}");
        let top: Value = serde_json::from_str(&text).unwrap();
        let rate = top["services"][0]["rates"]["connections"].as_f64();
        rate.filter(|rate| *rate > 0.0).map(|_| top)
    });
    let top = asked.unwrap();
    let first = &top["services"][0];
    assert!(
        first["service"]
            .as_str()
            .unwrap()
            .starts_with("default/web"),
        "{top:#}"
    );
    assert!(
        first["service"].as_str().unwrap().ends_with("/TCP"),
        "{top:#}"
    );
    assert!(
        first["rates"]["bytes_in"].as_f64().unwrap() > 0.0,
        "{top:#}"
    );
    // The controller is on another machine, and dumps for its own alone.
    let note = top["notes"][0].as_str().unwrap();
    assert!(note.starts_with("no nodes: "), "{top:#}");
}
