// SPDX-License-Identifier: Apache-2.0

//! Proves the rig before anything is tested with it: packets go where they should and nowhere else.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{
    Family, Host, Load, LoadConfig, Pod, Process, Protocol, RequestError, Rig, RigConfig,
};
use portolan_e2e::wait::wait_for;

const PORT: u16 = 8080;

/// Long enough for a guest that is emulated, on a busy machine.
const PATIENT: Duration = Duration::from_secs(10);

/// Long enough to be sure that silence is silence.
const BRIEF: Duration = Duration::from_millis(400);

struct Cluster {
    rig: Rig,
    /// Two on the first node, one on the second.
    pods: [Pod; 3],
}

impl Cluster {
    fn new() -> Result<Self> {
        let rig = Rig::new(RigConfig::default())?;
        let pods = [
            rig.node(0).add_pod("a")?,
            rig.node(0).add_pod("b")?,
            rig.node(1).add_pod("c")?,
        ];
        Ok(Self { rig, pods })
    }
}

fn assert_answers(from: &Host, protocol: Protocol, to: SocketAddr, name: &str, source: IpAddr) {
    let answer = from
        .request(protocol, to, PATIENT)
        .unwrap_or_else(|error| panic!("{protocol:?} {} -> {to}: {error}", from.name()));
    assert_eq!((answer.name.as_str(), answer.source), (name, source));
}

#[test]
fn a_rig_is_built_quickly_and_leaves_nothing() {
    if !lane::provides("a_rig_is_built_quickly_and_leaves_nothing", &[Need::Root]) {
        return;
    }
    let start = Instant::now();
    let rig = Rig::new(RigConfig::default()).unwrap();
    let lan = start.elapsed();
    let pods: Vec<Pod> = (0..4)
        .map(|k| rig.node(k % 2).add_pod(&format!("pod{k}")).unwrap())
        .collect();
    println!("2 nodes in {lan:?}, with 4 pods in {:?}", start.elapsed());
    let paths: Vec<_> = pods
        .iter()
        .map(|pod| Path::new("/run/netns").join(pod.namespace().name()))
        .collect();
    assert!(paths.iter().all(|path| path.exists()));
    let start = Instant::now();
    drop(rig);
    println!("removed in {:?}", start.elapsed());
    assert!(!paths.iter().any(|path| path.exists()));
}

#[test]
fn pods_and_nodes_reach_pods_with_their_own_address() {
    if !lane::provides(
        "pods_and_nodes_reach_pods_with_their_own_address",
        &[Need::Root],
    ) {
        return;
    }
    let Cluster { rig, pods } = Cluster::new().unwrap();
    let [a, b, c] = &pods;
    for protocol in Protocol::ALL {
        let _b = b.serve(protocol, PORT).unwrap();
        let _c = c.serve(protocol, PORT).unwrap();
        for family in Family::ALL {
            let source = a.address(family);
            assert_answers(a, protocol, b.socket(family, PORT), "b", source);
            assert_answers(a, protocol, c.socket(family, PORT), "c", source);
            let node = rig.node(0).address(family);
            assert_answers(rig.node(0), protocol, c.socket(family, PORT), "c", node);
        }
    }
}

#[test]
fn outside_clients_reach_nodes_but_no_pods() {
    if !lane::provides("outside_clients_reach_nodes_but_no_pods", &[Need::Root]) {
        return;
    }
    let Cluster { rig, pods } = Cluster::new().unwrap();
    let [a, ..] = &pods;
    for protocol in Protocol::ALL {
        let _a = a.serve(protocol, PORT).unwrap();
        let _node = rig.node(0).serve(protocol, PORT).unwrap();
        for family in Family::ALL {
            let (client, node) = (rig.client(), rig.node(0));
            let source = client.address(family);
            assert_answers(client, protocol, node.socket(family, PORT), "node0", source);
            let error = client
                .request(protocol, a.socket(family, PORT), BRIEF)
                .unwrap_err();
            assert_eq!(error, RequestError::Unreachable);
        }
    }
}

#[test]
fn a_stopped_server_refuses_and_ends_its_connections() {
    if !lane::provides(
        "a_stopped_server_refuses_and_ends_its_connections",
        &[Need::Root],
    ) {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let [a, b, _] = &cluster.pods;
    let server = b.serve(Protocol::Tcp, PORT).unwrap();
    let target = b.socket(Family::V4, PORT);
    let mut connection = a.connect(Protocol::Tcp, target, PATIENT).unwrap();
    for _ in 0..3 {
        assert_eq!(connection.ask().unwrap().name, "b");
    }
    assert_eq!((server.served(), server.connections()), (3, 1));
    server.stop();
    assert!(connection.ask().is_err());
    let refused = a.request(Protocol::Tcp, target, PATIENT);
    assert_eq!(refused, Err(RequestError::Refused));
}

#[test]
fn a_load_counts_answers_and_failures() {
    if !lane::provides("a_load_counts_answers_and_failures", &[Need::Root]) {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let [a, b, _] = &cluster.pods;
    let server = b.serve(Protocol::Tcp, PORT).unwrap();
    let targets = [b.socket(Family::V4, PORT), b.socket(Family::V6, PORT)];
    let config = LoadConfig {
        timeout: Duration::from_secs(10),
        ..LoadConfig::default()
    };
    let load = Load::start(a, &targets, config).unwrap();
    wait_for("answers", PATIENT, || (load.answered() >= 20).then_some(())).unwrap();
    assert_eq!(load.failed(), 0);
    server.stop();
    wait_for("failures", PATIENT, || (load.failed() >= 4).then_some(())).unwrap();
    let report = load.stop();
    let failed = report.failures.len() as u64;
    assert_eq!(report.by_name["b"] + failed, report.requests);
    // Reading the evidence of an earlier one may end later.
    let last = report.failures.iter().max_by_key(|failure| failure.at);
    assert_eq!(last.unwrap().error, RequestError::Refused);
}

#[test]
fn a_process_runs_in_its_namespace_until_it_is_stopped() {
    if !lane::provides(
        "a_process_runs_in_its_namespace_until_it_is_stopped",
        &[Need::Root],
    ) {
        return;
    }
    let rig = Rig::new(RigConfig {
        nodes: 1,
        clients: 0,
    })
    .unwrap();
    let logs = tempfile::tempdir().unwrap();
    let script = "ip -br address; echo ready; while :; do sleep 0.05; done";
    let mut process = Process::spawn(
        rig.node(0).namespace(),
        "shell",
        Command::new("bash").args(["-c", script]),
        logs.path(),
    )
    .unwrap();
    process.wait_for_log("ready", PATIENT).unwrap();
    assert!(process.log().unwrap().contains("192.168.77.11/24"));
    assert!(process.is_running());
    process.stop(PATIENT).unwrap();
    assert!(!process.is_running());
}

/// Makes `vip` a virtual server on the node with one real server.
fn add_virtual_server(
    node: &Host,
    protocol: Protocol,
    vip: SocketAddr,
    real: SocketAddr,
) -> Result<()> {
    let option = match protocol {
        Protocol::Tcp => "-t",
        Protocol::Udp => "-u",
        Protocol::Sctp => "--sctp-service",
    };
    let (vip, real) = (&vip.to_string(), &real.to_string());
    node.exec(&["ipvsadm", "-A", option, vip, "-s", "rr"])?;
    node.exec(&["ipvsadm", "-a", option, vip, "-r", real, "-m"])?;
    Ok(())
}

fn service(family: Family) -> SocketAddr {
    match family {
        Family::V4 => SocketAddr::from(([10, 96, 0, 10], 80)),
        Family::V6 => SocketAddr::from(([0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10], 80)),
    }
}

#[test]
fn a_virtual_server_made_by_hand_forwards() {
    let needs = [Need::Root, Need::Ipvs];
    if !lane::provides("a_virtual_server_made_by_hand_forwards", &needs) {
        return;
    }
    let Cluster { rig, pods } = Cluster::new().unwrap();
    let [a, b, c] = &pods;
    let node = rig.node(0);
    for family in Family::ALL {
        let vip = service(family);
        node.namespace()
            .ip(&[format!("route add local {} dev lo", vip.ip())])
            .unwrap();
        for protocol in Protocol::ALL {
            let _c = c.serve(protocol, PORT).unwrap();
            add_virtual_server(node, protocol, vip, c.socket(family, PORT)).unwrap();
            for pod in [a, b] {
                assert_answers(pod, protocol, vip, "c", pod.address(family));
            }
        }
    }
}

#[test]
fn hairpin_needs_masquerade() {
    let needs = [Need::Root, Need::Ipvs];
    if !lane::provides("hairpin_needs_masquerade", &needs) {
        return;
    }
    let Cluster { rig, pods } = Cluster::new().unwrap();
    let [a, ..] = &pods;
    let node = rig.node(0);
    let (gateway_v4, gateway_v6) = node.gateway();
    node.namespace()
        .sysctl(&[("ipv4/vs/conntrack", "1")])
        .unwrap();
    let families = [
        (Family::V4, "iptables", IpAddr::from(gateway_v4)),
        (Family::V6, "ip6tables", gateway_v6.into()),
    ];
    for (family, iptables, gateway) in families {
        let (vip, pod) = (service(family), &a.address(family).to_string());
        node.namespace()
            .ip(&[format!("route add local {} dev lo", vip.ip())])
            .unwrap();
        let _a = a.serve(Protocol::Tcp, PORT).unwrap();
        add_virtual_server(node, Protocol::Tcp, vip, a.socket(family, PORT)).unwrap();
        let error = a.request(Protocol::Tcp, vip, BRIEF).unwrap_err();
        assert_eq!(error, RequestError::TimedOut);
        node.exec(&[
            iptables,
            "-w",
            "-t",
            "nat",
            "-A",
            "POSTROUTING",
            "-s",
            pod,
            "-d",
            pod,
            "-j",
            "MASQUERADE",
        ])
        .unwrap();
        assert_answers(a, Protocol::Tcp, vip, "a", gateway);
    }
}
