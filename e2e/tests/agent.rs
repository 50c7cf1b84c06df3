// SPDX-License-Identifier: Apache-2.0

//! Agent behaviour besides tables: UDP flows that move, health endpoints, leftovers of killed agents.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::SocketAddr;
use std::time::Duration;

use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, http_get, http_status};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{ports, service, slices};
use portolan_e2e::rig::{Connection, Host, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::json;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
/// The interval at which a UDP client repeats an unanswered question.
const UDP_RETRY: Duration = Duration::from_millis(300);

fn skip(test: &str) -> bool {
    !lane::provides(test, &[Need::Root, Need::Ipvs])
}

fn vips() -> [SocketAddr; 2] {
    WEB.map(|ip| SocketAddr::new(ip.parse().unwrap(), 80))
}

fn publish(cluster: &Cluster, pods: &[(&EchoPod, usize)]) {
    let objects = [vec![service("web", WEB, json!({}))], slices("web", pods)].concat();
    cluster.put("web.json", &objects).unwrap();
}

/// Repeats a request over a UDP flow until it is answered. Returns the name in the answer.
fn ask_until_answered(connection: &mut Connection) -> String {
    let answer = wait_for("an answer", PATIENT, || connection.ask().ok());
    answer.unwrap().name
}

/// A UDP flow that the named pod answers.
fn flow_to(name: &str, from: &Host, vip: SocketAddr) -> Connection {
    for _ in 0..20 {
        let mut connection = from.connect(Protocol::Udp, vip, UDP_RETRY).unwrap();
        if ask_until_answered(&mut connection) == name {
            return connection;
        }
    }
    panic!("{vip}: {name} never answered");
}

#[test]
fn a_udp_client_moves_to_another_endpoint_when_its_own_goes() {
    if skip("a_udp_client_moves_to_another_endpoint_when_its_own_goes") {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let b = cluster.add_pod(1, "b").unwrap();
    let visitor = cluster.add_pod(0, "v").unwrap();
    // The node's own flows are masqueraded, so conntrack entries pin them to their endpoint.
    for from in [&visitor.pod, &**cluster.rig.node(0)] {
        publish(&cluster, &[(&a, 0), (&b, 1)]);
        let mut flows = vips().map(|vip| flow_to("b", from, vip));
        publish(&cluster, &[(&a, 0)]);
        for (flow, vip) in flows.iter_mut().zip(vips()) {
            // An answer to an earlier repetition may still be in the socket.
            let is_moved = || (ask_until_answered(flow) == "a").then_some(());
            wait_for("an answer of a", PATIENT, is_moved)
                .unwrap_or_else(|error| panic!("{error}: {} {vip}", from.name()));
        }
    }
    // No count of deleted conntrack entries: IPVS itself may delete them before the agent does.
}

#[test]
fn health_checks_report_local_endpoints_and_nodes_that_are_drained() {
    if skip("health_checks_report_local_endpoints_and_nodes_that_are_drained") {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let spec = json!({
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 32000,
        "ports": ports(Some(30080)),
    });
    let objects = [vec![service("web", WEB, spec)], slices("web", &[(&a, 0)])].concat();
    cluster.put("web.json", &objects).unwrap();
    let namespace = |number: usize| cluster.rig.node(number).namespace();
    // It is served by a task of its own, soon after the table is programmed.
    let get = || http_get(namespace(0), 32000, "/any/path").ok();
    let body = wait_for("the health check of the node with the pod", PATIENT, get).unwrap();
    assert!(body.contains("\"localEndpoints\": 1,"), "{body}");
    let get = || http_status(namespace(1), 32000, "/").ok();
    let other = wait_for("the health check of the other node", PATIENT, get).unwrap();
    assert_eq!(other, 503);
    let status = |number, port, path: &str| http_status(namespace(number), port, path).unwrap();

    let node = |spec: serde_json::Value| {
        let metadata = json!({ "name": Cluster::node_name(0) });
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec })
    };
    let wait_for_status = |expected: u16| {
        wait_for("the node's /healthz", PATIENT, || {
            (status(0, 10256, "/healthz") == expected).then_some(())
        })
        .unwrap_or_else(|error| panic!("{expected}: {error}"));
    };
    wait_for_status(503);
    cluster.put("node.json", &[node(json!({}))]).unwrap();
    wait_for_status(200);
    let taint = json!({ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" });
    cluster
        .put("node.json", &[node(json!({ "taints": [taint] }))])
        .unwrap();
    wait_for_status(503);
    assert_eq!(status(0, 10256, "/livez"), 200);
}

/// An agent that is killed while it replaces a set leaves the replacement behind.
#[test]
fn start_and_cleanup_remove_a_replacement_set_left_by_a_killed_agent() {
    if skip("start_and_cleanup_remove_a_replacement_set_left_by_a_killed_agent") {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    let run = |cluster: &Cluster, command: &str| {
        let words: Vec<_> = command.split(' ').collect();
        cluster.rig.node(0).exec(&words).unwrap()
    };
    let leave = |cluster: &mut Cluster| {
        cluster.agent(0).unwrap().kill9().unwrap();
        run(cluster, "ipset create PORTOLAN-REPLACEMENT hash:ip,port");
    };
    let is_there = |cluster: &Cluster| run(cluster, "ipset list -n").contains("PORTOLAN-R");
    leave(&mut cluster);
    assert!(is_there(&cluster));
    cluster.start_agent(0).unwrap();
    cluster.wait_until_ready(0).unwrap();
    assert!(!is_there(&cluster));
    leave(&mut cluster);
    cluster.clean_up(0).unwrap();
    assert_eq!(run(&cluster, "ipset list -n"), "");
}

#[test]
fn health_and_proxy_mode_are_served() {
    if skip("health_and_proxy_mode_are_served") {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let namespace = cluster.rig.node(0).namespace();
    let livez = http_get(namespace, 10256, "/livez").unwrap();
    let livez: serde_json::Value = serde_json::from_str(&livez).unwrap();
    assert_eq!(livez["healthy"], true);
    assert_eq!(livez["status"]["IPv6"]["healthy"], true);
    assert_eq!(http_get(namespace, 10249, "/proxyMode").unwrap(), "ipvs");
    let metrics = cluster.agent_metrics(0).unwrap();
    for name in [
        "kubeproxy_proxy_livez_total{code=\"200\"} 1",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\"} 0",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ",
    ] {
        assert!(
            metrics.lines().any(|line| line.starts_with(name)),
            "{name}\n{metrics}"
        );
    }
}
