// SPDX-License-Identifier: Apache-2.0

//! Views of operators on one node with IPVS: `portolanctl trace` beside what others did to the kernel, and
//! `portolanctl top`, and metrics of use by Service.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::process::Command;
use std::time::{Duration, Instant};

use portolan_e2e::ask::{PROMPT, address};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, program};
use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{ports, service, slice_of, slices};
use portolan_e2e::programs::AGENT_ADMIN;
use portolan_e2e::rig::{Family, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

/// A deadline that only a failure reaches, for 10,000 Services.
const LONG: Duration = Duration::from_secs(300);
const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

/// Changes that somebody makes on the node, and the place where a trace from the node to the Service shows each. The
/// first pod has the address 10.244.1.2.
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

/// The value of a series of the agent's metrics whose line begins so.
fn series(cluster: &Cluster, begin: &str) -> Option<f64> {
    let text = cluster.agent_metrics(0).unwrap();
    let line = text.lines().find(|line| line.starts_with(begin))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// Starts the agent of node 0 anew.
fn restart_agent(cluster: &mut Cluster, flag: &str) {
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    cluster.start_agent_with(0, &[flag]).unwrap();
    cluster.wait_until_ready(0).unwrap();
}

#[test]
fn metrics_of_services_count_connections_and_bytes() {
    let name = "metrics_of_services_count_connections_and_bytes";
    if !lane::provides(name, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let (mut cluster, _pods) = web();
    // Off by default.
    assert_eq!(series(&cluster, "portolan_agent_service_"), None);
    restart_agent(&mut cluster, "--service-metrics=100");
    let of_web = |metric: &str, end: &str| {
        let labels = "{cluster=\"\",namespace=\"default\",service=\"web\"";
        let text = cluster.agent_metrics(0).unwrap();
        let begin = format!("portolan_agent_service_{metric}_total{labels}");
        let line = text.lines().find(|line| {
            line.starts_with(&begin) && line.contains("protocol=\"TCP\"") && line.contains(end)
        });
        let line = line.unwrap_or_else(|| panic!("no {begin} {end}: {text}"));
        line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
    };
    let before = of_web("connections", "}");
    let visitor = cluster.add_pod(0, "v").unwrap();
    // Both addresses of the Service are one port.
    for family in Family::ALL {
        for _ in 0..10 {
            let to = address(WEB, family, 80);
            visitor.pod.request(Protocol::Tcp, to, PROMPT).unwrap();
        }
    }
    wait_for("20 connections to be counted", PATIENT, || {
        (of_web("connections", "}") >= before + 20).then_some(())
    })
    .unwrap();
    assert_eq!(of_web("connections", "}"), before + 20);
    assert!(of_web("bytes", "direction=\"in\"") > 0);
    assert!(of_web("bytes", "direction=\"out\"") > 0);
    assert_eq!(
        series(&cluster, "portolan_agent_service_metrics_omitted"),
        Some(0.0)
    );

    // A port beyond the limit has no series.
    cluster
        .put(
            "api.json",
            &[service("api", ["10.96.0.11", "fd00:10:96::11"], json!({}))],
        )
        .unwrap();
    restart_agent(&mut cluster, "--service-metrics=1");
    wait_for("a Service without metrics", PATIENT, || {
        series(&cluster, "portolan_agent_service_metrics_omitted").filter(|omitted| *omitted > 0.0)
    })
    .unwrap();
    let text = cluster.agent_metrics(0).unwrap();
    let counted = text
        .lines()
        .filter(|line| line.starts_with("portolan_agent_service_connections_total{"));
    assert_eq!(counted.count(), 1, "{text}");
}

/// Time between two scrapes that both read the kernel.
const BETWEEN: Duration = Duration::from_millis(5_100);
/// The interval of the goal, in seconds.
const SCRAPE_INTERVAL: f64 = 15.0;

/// The whole time of a scrape counts, in which one processor works at most. `PORTOLAN_BIN_DIR` names programs of a release
/// build, which the goal is for. One node alone has the Services, each with one port in one family: a kernel reads all
/// virtual servers of its network namespaces for each message of a dump.
#[test]
fn metrics_of_ten_thousand_services_cost_little() {
    let name = "metrics_of_ten_thousand_services_cost_little";
    if !lane::provides(name, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    let objects: Vec<Value> = (0..10_000_u16)
        .flat_map(|number| {
            let [high, low] = number.to_be_bytes();
            let (name, v4) = (format!("s{number}"), format!("10.96.{high}.{low}"));
            let spec =
                json!({ "clusterIPs": [v4], "ipFamilies": ["IPv4"], "ports": [ports(None)[0]] });
            let endpoint = json!({ "addresses": ["10.244.1.2"], "conditions": { "ready": true } });
            [
                service(&name, [&v4, ""], spec),
                slice_of(&name, Family::V4, &[endpoint]),
            ]
        })
        .collect();
    cluster.put("many.json", &objects).unwrap();
    for number in 1..cluster.rig.nodes().len() {
        cluster.agent(number).unwrap().stop(PATIENT).unwrap();
        let node = cluster.rig.node(number).namespace();
        node.exec(&["ipvsadm", "-C"]).unwrap();
    }
    restart_agent(&mut cluster, "--service-metrics=10000");
    wait_for("all Services to be counted", LONG, || {
        let text = cluster.agent_metrics(0).ok()?;
        let is_counted =
            |line: &&str| line.starts_with("portolan_agent_service_connections_total{");
        (text.lines().filter(is_counted).count() >= 10_000).then_some(())
    })
    .unwrap();
    let mut times = [0; 5].map(|_| {
        let last = Instant::now();
        let is_time = || (last.elapsed() >= BETWEEN).then_some(());
        wait_for("the time of the next scrape", PATIENT, is_time).unwrap();
        let begin = Instant::now();
        cluster.agent_metrics(0).unwrap();
        begin.elapsed()
    });
    times.sort_unstable();
    let part = times[2].as_secs_f64() / SCRAPE_INTERVAL;
    let goal = Some(Goal::AtMost(1.0));
    figure("service_metrics_of_a_core", 100.0 * part, "%", goal);
}
