//! What an agent does beside its tables: drains that end, UDP flows that move, health that is told.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, http_get};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{ports, service, slices};
use portolan_e2e::rig::{Connection, Host, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::json;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
/// An answer takes at most so long.
const PROMPT: Duration = Duration::from_secs(10);
/// So often is tried again what UDP may have lost.
const BRIEF: Duration = Duration::from_millis(300);

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

/// A connection that a pod of a name answers.
fn connection_to(name: &str, from: &Host, protocol: Protocol, vip: SocketAddr) -> Connection {
    for _ in 0..20 {
        let mut connection = from.connect(protocol, vip, PROMPT).unwrap();
        if connection.ask().unwrap().name == name {
            return connection;
        }
    }
    panic!("{protocol:?} {vip}: {name} never answered");
}

#[test]
fn a_connection_drains_for_as_long_as_it_may_whoever_restarts() {
    if skip("a_connection_drains_for_as_long_as_it_may_whoever_restarts") {
        return;
    }
    // An agent takes ten seconds to start on an emulated machine that is busy.
    const TIMEOUT: Duration = Duration::from_secs(40);
    let mut cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let b = cluster.add_pod(1, "b").unwrap();
    let visitor = cluster.add_pod(0, "v").unwrap();
    let flag = format!("--drain-timeout={}", TIMEOUT.as_secs());
    let restart = |cluster: &mut Cluster| {
        cluster.agent(0).unwrap().kill9().unwrap();
        cluster.start_agent_with(0, &[&flag]).unwrap();
        cluster.wait_until_ready(0).unwrap();
    };
    restart(&mut cluster);
    publish(&cluster, &[(&a, 0), (&b, 1)]);
    let mut connections = vips().map(|vip| connection_to("b", &visitor.pod, Protocol::Tcp, vip));

    let start = Instant::now();
    publish(&cluster, &[(&a, 0)]);
    for connection in &mut connections {
        assert_eq!(connection.ask().unwrap().name, "b");
    }
    restart(&mut cluster);
    let restarted = start.elapsed();
    assert!(
        restarted < TIMEOUT,
        "the agent restarted too late to show anything: {restarted:?}"
    );
    for connection in &mut connections {
        assert_eq!(connection.ask().unwrap().name, "b");
    }
    for connection in &mut connections {
        wait_for("the drain to end", PATIENT, || connection.ask().err()).unwrap();
    }
    let took = start.elapsed();
    println!("drained for {took:?}, restarted after {restarted:?}");
    // Counted from the restart, it would have taken longer.
    assert!(took > TIMEOUT - Duration::from_secs(1), "{took:?}");
    assert!(
        took < TIMEOUT + restarted,
        "{took:?}, restarted after {restarted:?}"
    );
}

#[test]
fn a_udp_client_moves_to_another_destination_when_its_own_goes() {
    if skip("a_udp_client_moves_to_another_destination_when_its_own_goes") {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let b = cluster.add_pod(1, "b").unwrap();
    let visitor = cluster.add_pod(0, "v").unwrap();
    // The node's own connection is masqueraded: there conntrack matters most.
    for from in [&visitor.pod, &**cluster.rig.node(0)] {
        publish(&cluster, &[(&a, 0), (&b, 1)]);
        let mut connections = vips().map(|vip| {
            let _ = connection_to("b", from, Protocol::Udp, vip);
            connection_to("b", from, Protocol::Udp, vip)
        });
        publish(&cluster, &[(&a, 0)]);
        for (connection, vip) in connections.iter_mut().zip(vips()) {
            let answer = wait_for("an answer", BRIEF * 20, || connection.ask().ok()).unwrap();
            assert_eq!(answer.name, "a", "{} {vip}", from.name());
        }
    }
    let metrics = cluster.agent_metrics(0).unwrap();
    let deleted = metrics.lines().find_map(|line| {
        let name = "kubeproxy_conntrack_reconciler_deleted_entries_total ";
        line.strip_prefix(name)?.parse::<u64>().ok()
    });
    assert!(deleted.unwrap() >= 2, "{metrics}");
}

#[test]
fn load_balancers_are_told_of_endpoints_and_of_nodes_that_go() {
    if skip("load_balancers_are_told_of_endpoints_and_of_nodes_that_go") {
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
    let ask = |node: usize, port: u16, path: &str| {
        let answer = http_get(cluster.rig.node(node).namespace(), port, path);
        answer.map_err(|error| format!("{error:#}"))
    };
    let body = ask(0, 32000, "/any/path").unwrap();
    assert!(body.contains("\"localEndpoints\": 1,"), "{body}");
    assert!(ask(1, 32000, "/").unwrap_err().contains(" 503 "));

    let node = |spec: serde_json::Value| {
        let metadata = json!({ "name": Cluster::node_name(0) });
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec })
    };
    assert!(ask(0, 10256, "/healthz").unwrap_err().contains(" 503 "));
    cluster.put("node.json", &[node(json!({}))]).unwrap();
    wait_for("the node to be eligible", PROMPT, || {
        ask(0, 10256, "/healthz").ok()
    })
    .unwrap();
    let taint = json!({ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" });
    cluster
        .put("node.json", &[node(json!({ "taints": [taint] }))])
        .unwrap();
    wait_for("the node to be avoided", PROMPT, || {
        ask(0, 10256, "/healthz").err()
    })
    .unwrap();
    ask(0, 10256, "/livez").unwrap();
}

/// What an agent leaves that is killed while it puts one set in the place of another.
#[test]
fn a_set_that_was_to_replace_another_goes_at_start_and_at_cleanup() {
    if skip("a_set_that_was_to_replace_another_goes_at_start_and_at_cleanup") {
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
fn health_and_mode_are_told() {
    if skip("health_and_mode_are_told") {
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
