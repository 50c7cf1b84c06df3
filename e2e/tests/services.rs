// SPDX-License-Identifier: Apache-2.0

//! Services keep working while objects change, while other programs change the kernel, and without a controller.
//! The conformance table covers which endpoints answer which clients.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::IpAddr;
use std::process::Command;

use portolan_e2e::ask::{BRIEF, address, answers, no_answer, sources, ways};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, program};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{ports, service, slice_of, slices};
use portolan_e2e::rig::{Family, Host, Process, Protocol, Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

fn skip(test: &str) -> bool {
    !lane::provides(test, &[Need::Root, Need::Ipvs])
}

/// A pod on each node, and both behind the Service `web`.
fn web(spec: Value) -> (Cluster, EchoPod, EchoPod) {
    let cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let b = cluster.add_pod(1, "b").unwrap();
    let mut objects = vec![service("web", WEB, spec)];
    objects.extend(slices("web", &[(&a, 0), (&b, 1)]));
    cluster.put("web.json", &objects).unwrap();
    (cluster, a, b)
}

#[test]
fn changes_are_followed() {
    if skip("changes_are_followed") {
        return;
    }
    let (cluster, a, b) = web(json!({}));
    let visitor = cluster.add_pod(0, "v").unwrap();
    let put = |pods: &[(&EchoPod, usize)]| {
        let objects = [vec![service("web", WEB, json!({}))], slices("web", pods)].concat();
        cluster.put("web.json", &objects).unwrap();
    };
    let ask = |expected: &[&str]| {
        for (family, protocol) in ways() {
            answers(&visitor.pod, protocol, address(WEB, family, 80), expected);
        }
    };
    ask(&["a", "b"]);
    let c = cluster.add_pod(1, "c").unwrap();
    put(&[(&a, 0), (&b, 1), (&c, 1)]);
    ask(&["a", "b", "c"]);
    put(&[(&c, 1)]);
    ask(&["c"]);

    // Not ready is not used; none ready but some serving while they end: those.
    let with_conditions = |ready: bool, serving: bool, terminating: bool| {
        let mut objects = vec![service("web", WEB, json!({}))];
        for family in Family::ALL {
            let mut leaving = a.endpoint(family, 0);
            leaving["conditions"] =
                json!({ "ready": ready, "serving": serving, "terminating": terminating });
            let mut other = c.endpoint(family, 1);
            other["conditions"]["ready"] = json!(false);
            other["conditions"]["serving"] = json!(false);
            objects.push(slice_of("web", family, &[leaving, other]));
        }
        cluster.put("web.json", &objects).unwrap();
    };
    with_conditions(true, true, false);
    ask(&["a"]);
    with_conditions(false, false, false);
    for (family, protocol) in ways() {
        no_answer(&visitor.pod, protocol, address(WEB, family, 80));
    }
    with_conditions(false, true, true);
    ask(&["a"]);

    cluster.put("web.json", &[]).unwrap();
    for (family, protocol) in ways() {
        no_answer(&visitor.pod, protocol, address(WEB, family, 80));
    }
    for number in 0..2 {
        let servers = cluster.rig.node(number).exec(&["ipvsadm", "-Ln"]).unwrap();
        assert!(!servers.contains(WEB[0]), "{servers}");
        let routes = ["ip", "route", "show", "table", "local", "proto", "99"];
        assert_eq!(cluster.rig.node(number).exec(&routes).unwrap().trim(), "");
    }
}

#[test]
fn nothing_foreign_is_touched_and_cleanup_takes_only_what_is_ours() {
    if skip("nothing_foreign_is_touched_and_cleanup_takes_only_what_is_ours") {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let visitor = cluster.add_pod(0, "v").unwrap();
    let node = cluster.rig.node(0).namespace().clone();
    let foreign: [&[&str]; 6] = [
        &["ipvsadm", "-A", "-t", "192.0.2.1:80", "-s", "wlc"],
        &[
            "ipvsadm",
            "-a",
            "-t",
            "192.0.2.1:80",
            "-r",
            "192.0.2.2:80",
            "-m",
        ],
        // At an address that the agent uses too, with another port.
        &["ipvsadm", "-A", "-t", "10.96.0.10:81", "-s", "rr"],
        &["ipset", "create", "THEIRS", "hash:ip,port"],
        &["ipset", "add", "THEIRS", "192.0.2.1,tcp:80"],
        &["ip", "route", "add", "local", "192.0.2.1/32", "dev", "lo"],
    ];
    foreign
        .iter()
        .for_each(|command| drop(node.exec(command).unwrap()));
    let state = || {
        let rules = node.exec(&["sh", "-c", "iptables-save | grep -v '^[#:]'"]);
        let servers = node.exec(&["ipvsadm", "-Sn"]).unwrap();
        let sets = node.exec(&["ipset", "save"]).unwrap();
        let routes = node
            .exec(&["ip", "route", "show", "table", "local"])
            .unwrap();
        (rules.unwrap_or_default(), servers, sets, routes)
    };
    let before = {
        cluster.agent(0).unwrap().stop(PATIENT).unwrap();
        let cleaned = cluster.clean_up(0);
        cleaned.unwrap();
        let before = state();
        cluster.start_agent(0).unwrap();
        before
    };
    assert!(before.1.contains("192.0.2.1:80") && before.2.contains("THEIRS"));

    let objects = [
        vec![service("web", WEB, json!({}))],
        slices("web", &[(&a, 0)]),
    ]
    .concat();
    cluster.put("web.json", &objects).unwrap();
    answers(
        &visitor.pod,
        Protocol::Tcp,
        address(WEB, Family::V4, 80),
        &["a"],
    );
    let during = state();
    for line in before.1.lines() {
        assert!(during.1.contains(line), "{line} is gone:\n{}", during.1);
    }
    assert!(during.2.contains("KUBE-CLUSTER-IP"));

    // Stopping the agent changes nothing; cleaning up takes everything away that came with it.
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    assert_eq!(state(), during);
    answers(
        &visitor.pod,
        Protocol::Tcp,
        address(WEB, Family::V4, 80),
        &["a"],
    );
    cluster.clean_up(0).unwrap();
    assert_eq!(state(), before);
}

#[test]
fn objects_deleted_by_others_are_repaired() {
    if skip("objects_deleted_by_others_are_repaired") {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let objects = [
        vec![service("web", WEB, json!({}))],
        slices("web", &[(&a, 0)]),
    ]
    .concat();
    cluster.put("web.json", &objects).unwrap();
    // A short period, so that the test need not wait for the default of 30 s.
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    cluster.start_agent_with(0, &["--sync-period=1"]).unwrap();
    cluster.wait_until_programmed(0).unwrap();

    let node = cluster.rig.node(0).namespace().clone();
    let visitor = cluster.add_pod(0, "v").unwrap();
    let vip = address(WEB, Family::V4, 80);
    let damages: [&[&str]; 4] = [
        &["ipvsadm", "-D", "-t", "10.96.0.10:80"],
        &[
            "ipvsadm",
            "-d",
            "-t",
            "10.96.0.10:80",
            "-r",
            &format!("{}:8080", a.pod.v4()),
        ],
        &[
            "ip",
            "route",
            "del",
            "local",
            "10.96.0.10",
            "dev",
            "lo",
            "table",
            "local",
        ],
        &["ipset", "flush", "KUBE-LOOP-BACK"],
    ];
    for damage in damages {
        node.exec(damage).unwrap();
        let from: [&Host; 2] = [&visitor.pod, &a.pod];
        for host in from {
            wait_for("the repair", PATIENT, || {
                host.request(Protocol::Tcp, vip, BRIEF).ok()
            })
            .unwrap_or_else(|error| panic!("{damage:?}: {}: {error}", host.name()));
        }
    }
    node.exec(&[
        "sh",
        "-c",
        "iptables-legacy -t nat -F KUBE-POSTROUTING || iptables -t nat -F KUBE-POSTROUTING",
    ])
    .unwrap();
    wait_for("the repair", PATIENT, || {
        a.pod.request(Protocol::Tcp, vip, BRIEF).ok()
    })
    .unwrap();
}

#[test]
fn an_agent_alone_serves_from_a_file() {
    if skip("an_agent_alone_serves_from_a_file") {
        return;
    }
    let rig = Rig::new(RigConfig {
        nodes: 1,
        clients: 1,
    })
    .unwrap();
    let a = EchoPod::new(rig.node(0), "a").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.json");
    let write = |spec: Value| {
        let web = service("web", WEB, spec);
        let objects = [vec![web], slices("web", &[(&a, 0)])].concat();
        let hidden = directory.path().join(".web.json");
        std::fs::write(
            &hidden,
            json!({ "kind": "List", "items": objects }).to_string(),
        )
        .unwrap();
        std::fs::rename(hidden, &file).unwrap();
    };
    write(json!({}));
    let mut command = Command::new(program("portolan-agent").unwrap());
    command.args(["--source=file", "--node-name=node1", "--file-poll=20ms"]);
    command.arg("--file").arg(&file);
    command
        .arg("--state-dir")
        .arg(directory.path().join("state"));
    let agent = Process::spawn(
        rig.node(0).namespace(),
        "agent",
        &mut command,
        directory.path(),
    );
    let _agent = agent.unwrap();

    let vip = |family| address(WEB, family, 80);
    for (family, protocol) in ways() {
        wait_for("the cluster IP", PATIENT, || {
            rig.node(0).request(protocol, vip(family), BRIEF).ok()
        })
        .unwrap();
        // Masquerade: the pod sees the node's address on the network that leads to it.
        let got = answers(rig.node(0), protocol, vip(family), &["a"]);
        let (v4, v6) = rig.node(0).gateway();
        let gateway: IpAddr = match family {
            Family::V4 => v4.into(),
            Family::V6 => v6.into(),
        };
        assert_eq!(sources(&got, "a"), [gateway].into());
        answers(&a.pod, protocol, vip(family), &["a"]);
    }
    write(json!({ "type": "NodePort", "ports": ports(Some(30080)) }));
    let node_port = rig.node(0).socket(Family::V4, 30080);
    let asked = || rig.client().request(Protocol::Tcp, node_port, BRIEF).ok();
    wait_for("the node port", PATIENT, asked).unwrap();
}
