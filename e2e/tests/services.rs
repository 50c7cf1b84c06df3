//! Services become working load balancing: who answers, and which source they see.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, program};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{merge, ports, service, slice_of, slices};
use portolan_e2e::rig::{Answer, Family, Host, Process, Protocol, RequestError, Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

/// Silence for so long is silence.
const BRIEF: Duration = Duration::from_millis(500);
/// An answer takes at most so long.
const PROMPT: Duration = Duration::from_secs(10);

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

fn skip(test: &str) -> bool {
    !lane::provides(test, &[Need::Root, Need::Ipvs])
}

fn address(ips: [&str; 2], family: Family, port: u16) -> SocketAddr {
    let ip = match family {
        Family::V4 => ips[0],
        Family::V6 => ips[1],
    };
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Every combination of family and protocol.
fn ways() -> impl Iterator<Item = (Family, Protocol)> {
    Family::ALL
        .into_iter()
        .flat_map(|f| Protocol::ALL.into_iter().map(move |p| (f, p)))
}

/// Asks until each of `expected` has answered; nobody else may, and nothing may fail.
fn answers(from: &Host, protocol: Protocol, to: SocketAddr, expected: &[&str]) -> Vec<Answer> {
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    let mut seen = BTreeSet::new();
    let mut answers = Vec::new();
    for _ in 0..20 {
        let answer = from
            .request(protocol, to, PROMPT)
            .unwrap_or_else(|error| panic!("{protocol:?} {} -> {to}: {error}", from.name()));
        assert!(
            expected.contains(answer.name.as_str()),
            "{protocol:?} {} -> {to}: {} answered, expected {expected:?}",
            from.name(),
            answer.name
        );
        seen.insert(answer.name.clone());
        answers.push(answer);
        if seen.len() == expected.len() {
            return answers;
        }
    }
    panic!(
        "{protocol:?} {} -> {to}: only {seen:?} of {expected:?} answered",
        from.name()
    );
}

/// Asserts that nobody answers.
fn no_answer(from: &Host, protocol: Protocol, to: SocketAddr) {
    for _ in 0..4 {
        match from.request(protocol, to, BRIEF) {
            Err(RequestError::Refused | RequestError::TimedOut) => {}
            // A host without a default route has nowhere to ask when the VIP's route is gone.
            Err(RequestError::Other(reason)) if reason.contains("unreachable") => {}
            other => panic!(
                "{protocol:?} {} -> {to}: {other:?}, expected silence",
                from.name()
            ),
        }
    }
}

/// The sources that an answer of each name saw.
fn sources(answers: &[Answer], name: &str) -> BTreeSet<IpAddr> {
    answers
        .iter()
        .filter(|answer| answer.name == name)
        .map(|answer| answer.source)
        .collect()
}

fn gateway(cluster: &Cluster, node: usize, family: Family) -> IpAddr {
    let (v4, v6) = cluster.rig.node(node).gateway();
    match family {
        Family::V4 => v4.into(),
        Family::V6 => v6.into(),
    }
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
fn cluster_ip_from_pods_nodes_and_the_pod_itself() {
    if skip("cluster_ip_from_pods_nodes_and_the_pod_itself") {
        return;
    }
    let (cluster, a, b) = web(json!({}));
    let visitors = [
        cluster.add_pod(0, "v0").unwrap(),
        cluster.add_pod(1, "v1").unwrap(),
    ];
    for (family, protocol) in ways() {
        let vip = address(WEB, family, 80);
        for visitor in &visitors {
            let got = answers(&visitor.pod, protocol, vip, &["a", "b"]);
            let own = BTreeSet::from([visitor.pod.address(family)]);
            assert_eq!((sources(&got, "a"), sources(&got, "b")), (own.clone(), own));
        }
        // From a node: as the node towards the other node, as the gateway towards its own pods,
        // since a node is not in --cluster-cidr and is masqueraded.
        for (number, local, remote) in [(0, "a", "b"), (1, "b", "a")] {
            let node = cluster.rig.node(number);
            let got = answers(node, protocol, vip, &["a", "b"]);
            assert_eq!(
                sources(&got, local),
                [gateway(&cluster, number, family)].into()
            );
            assert_eq!(sources(&got, remote), [node.address(family)].into());
        }
        // Hairpin: a pod that is behind the Service reaches itself, masqueraded, and the others.
        for (pod, number, other) in [(&a, 0, "b"), (&b, 1, "a")] {
            let got = answers(&pod.pod, protocol, vip, &["a", "b"]);
            assert_eq!(
                sources(&got, pod.pod.name()),
                [gateway(&cluster, number, family)].into()
            );
            assert_eq!(sources(&got, other), [pod.pod.address(family)].into());
        }
    }
}

#[test]
fn node_port_from_outside_is_masqueraded() {
    if skip("node_port_from_outside_is_masqueraded") {
        return;
    }
    let (cluster, _a, _b) = web(json!({ "type": "NodePort", "ports": ports(Some(30080)) }));
    for (family, protocol) in ways() {
        for (number, local, remote) in [(0, "a", "b"), (1, "b", "a")] {
            let node = cluster.rig.node(number);
            let got = answers(
                cluster.rig.client(),
                protocol,
                node.socket(family, 30080),
                &["a", "b"],
            );
            assert_eq!(
                sources(&got, local),
                [gateway(&cluster, number, family)].into()
            );
            assert_eq!(sources(&got, remote), [node.address(family)].into());
        }
    }
}

#[test]
fn external_policy_local_keeps_the_client_and_leaves_other_nodes_silent() {
    if skip("external_policy_local_keeps_the_client_and_leaves_other_nodes_silent") {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let external = ["198.51.100.10", "2001:db8:100::10"];
    let balanced = ["203.0.113.10", "2001:db8:113::10"];
    let mut local = service(
        "local",
        ["10.96.0.11", "fd00:10:96::11"],
        json!({
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "ports": ports(Some(30081)),
            "externalIPs": external,
        }),
    );
    merge(
        &mut local,
        json!({ "status": { "loadBalancer": { "ingress": [
            { "ip": balanced[0] }, { "ip": balanced[1], "ipMode": "VIP" },
        ] } } }),
    );
    let objects = [vec![local], slices("local", &[(&a, 0)])].concat();
    cluster.put("local.json", &objects).unwrap();

    let client = cluster.rig.client();
    for (family, protocol) in ways() {
        let vips = [address(external, family, 80), address(balanced, family, 80)];
        for (number, answering) in [(0, true), (1, false)] {
            let node = cluster.rig.node(number);
            for vip in vips {
                let length = if family == Family::V4 { 32 } else { 128 };
                client
                    .add_route(&format!("{}/{length}", vip.ip()), node.address(family))
                    .unwrap();
            }
            for target in vips.into_iter().chain([node.socket(family, 30081)]) {
                if answering {
                    let got = answers(client, protocol, target, &["a"]);
                    assert_eq!(sources(&got, "a"), [client.address(family)].into());
                } else {
                    no_answer(client, protocol, target);
                }
            }
        }
        // The cluster IP has a policy of its own: reachable from everywhere.
        let vip = address(["10.96.0.11", "fd00:10:96::11"], family, 80);
        answers(cluster.rig.node(1), protocol, vip, &["a"]);
    }
}

#[test]
fn internal_policy_local_stays_on_the_node() {
    if skip("internal_policy_local_stays_on_the_node") {
        return;
    }
    let (cluster, _a, _b) = web(json!({ "internalTrafficPolicy": "Local" }));
    let visitors = [
        cluster.add_pod(0, "v0").unwrap(),
        cluster.add_pod(1, "v1").unwrap(),
    ];
    for (family, protocol) in ways() {
        let vip = address(WEB, family, 80);
        answers(&visitors[0].pod, protocol, vip, &["a"]);
        answers(&visitors[1].pod, protocol, vip, &["b"]);
    }
}

#[test]
fn load_balancer_addresses_are_masqueraded_and_held_to_their_source_ranges() {
    if skip("load_balancer_addresses_are_masqueraded_and_held_to_their_source_ranges") {
        return;
    }
    let balanced = ["203.0.113.20", "2001:db8:113::20"];
    let with_ranges = |ranges: Value| {
        let mut object = service(
            "web",
            WEB,
            json!({ "type": "LoadBalancer", "loadBalancerSourceRanges": ranges }),
        );
        let ingress: Vec<_> = balanced.iter().map(|ip| json!({ "ip": ip })).collect();
        merge(
            &mut object,
            json!({ "status": { "loadBalancer": { "ingress": ingress } } }),
        );
        object
    };
    let (cluster, a, b) = web(json!({}));
    let client = cluster.rig.client();
    let node = cluster.rig.node(0);
    for family in Family::ALL {
        let vip = address(balanced, family, 80).ip();
        let length = if family == Family::V4 { 32 } else { 128 };
        client
            .add_route(&format!("{vip}/{length}"), node.address(family))
            .unwrap();
    }
    let put = |ranges| {
        let slices = slices("web", &[(&a, 0), (&b, 1)]);
        cluster
            .put("web.json", &[vec![with_ranges(ranges)], slices].concat())
            .unwrap();
    };

    put(json!([
        format!("{}/32", client.v4()),
        format!("{}/128", client.v6())
    ]));
    for (family, protocol) in ways() {
        let got = answers(client, protocol, address(balanced, family, 80), &["a", "b"]);
        assert_eq!(sources(&got, "b"), [node.address(family)].into());
    }
    put(json!(["192.0.2.0/24", "2001:db8:2::/48"]));
    for (family, protocol) in ways() {
        no_answer(client, protocol, address(balanced, family, 80));
    }
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
        // On an address that we use too, with another port.
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
fn what_others_delete_is_repaired() {
    if skip("what_others_delete_is_repaired") {
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
    command.args(["--source=file", "--node-name=node1", "--file-poll-ms=20"]);
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
        // Without --cluster-cidr the node's own connections keep the node's address.
        let got = answers(rig.node(0), protocol, vip(family), &["a"]);
        assert_eq!(sources(&got, "a"), [rig.node(0).address(family)].into());
        answers(&a.pod, protocol, vip(family), &["a"]);
    }
    write(json!({ "type": "NodePort", "ports": ports(Some(30080)) }));
    let node_port = rig.node(0).socket(Family::V4, 30080);
    let asked = || rig.client().request(Protocol::Tcp, node_port, BRIEF).ok();
    wait_for("the node port", PATIENT, asked).unwrap();
}
