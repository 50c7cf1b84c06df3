// SPDX-License-Identifier: Apache-2.0

//! Traffic policies: which clients are limited to local endpoints, and when requests are dropped or refused.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use portolan_e2e::ask::{self, BRIEF, ways};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::conformance::node_objects;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{merge, ports, service, slices};
use portolan_e2e::rig::{Family, Host, Protocol, RequestError};
use serde_json::{Value, json};

const CLUSTER_IPS: [&str; 2] = ["10.96.0.30", "fd00:10:96::30"];
const EXTERNAL: [&str; 2] = ["198.51.100.30", "2001:db8:100::30"];
const BALANCED: [&str; 2] = ["203.0.113.30", "2001:db8:113::30"];
const NODE_PORT: u16 = 30090;

fn skip(test: &str) -> bool {
    !lane::provides(test, &[Need::Root, Need::Ipvs])
}

fn address(ips: [&str; 2], family: Family) -> SocketAddr {
    ask::address(ips, family, 80)
}

/// A Service with an external address, a load balancer's and a node port.
fn external(spec: Value) -> Value {
    let mut object = service(
        "web",
        CLUSTER_IPS,
        json!({
            "type": "LoadBalancer",
            "ports": ports(Some(NODE_PORT)),
            "externalIPs": EXTERNAL,
        }),
    );
    let ingress: Vec<_> = BALANCED.iter().map(|ip| json!({ "ip": ip })).collect();
    merge(
        &mut object,
        json!({ "spec": spec, "status": { "loadBalancer": { "ingress": ingress } } }),
    );
    object
}

/// The external addresses: two of the Service, and a node's own with the node port.
fn targets(cluster: &Cluster, node: usize, family: Family) -> [SocketAddr; 3] {
    let by_node = cluster.rig.node(node).socket(family, NODE_PORT);
    [
        address(EXTERNAL, family),
        address(BALANCED, family),
        by_node,
    ]
}

/// Routes the outside client's packets for the external addresses through a node.
fn route_by(cluster: &Cluster, node: usize) {
    for family in Family::ALL {
        let length = if family == Family::V4 { 32 } else { 128 };
        let via = cluster.rig.node(node).address(family);
        for ips in [EXTERNAL, BALANCED] {
            let destination = format!("{}/{length}", address(ips, family).ip());
            let client = cluster.rig.client();
            client.add_route(&destination, via).unwrap();
        }
    }
}

/// Asserts that `name` answers, and sees `source` as the client's address.
fn answers(from: &Host, protocol: Protocol, to: SocketAddr, name: &str, source: IpAddr) {
    for _ in 0..3 {
        match from.request(protocol, to, PATIENT) {
            Ok(answer) => assert_eq!(
                (answer.name.as_str(), answer.source),
                (name, source),
                "{protocol:?} {} -> {to}",
                from.name()
            ),
            Err(error) => panic!("{protocol:?} {} -> {to}: {error}", from.name()),
        }
    }
}

fn is_silent(from: &Host, protocol: Protocol, to: SocketAddr) {
    let got = from.request(protocol, to, BRIEF);
    assert_eq!(
        got,
        Err(RequestError::TimedOut),
        "{protocol:?} {} -> {to}",
        from.name()
    );
}

/// Asserts that the request is refused.
fn is_refused(from: &Host, protocol: Protocol, to: SocketAddr) {
    let got = from.request(protocol, to, PATIENT);
    assert_eq!(
        got,
        Err(RequestError::Refused),
        "{protocol:?} {} -> {to}",
        from.name()
    );
}

fn put(cluster: &Cluster, object: &Value, pods: &[(&EchoPod, usize)]) {
    let objects = [vec![object.clone()], slices("web", pods)].concat();
    cluster.put("web.json", &objects).unwrap();
}

#[test]
fn external_policy_local_limits_outside_clients_only() {
    if skip("external_policy_local_limits_outside_clients_only") {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let b = cluster.add_pod(1, "b").unwrap();
    let visitor = cluster.add_pod(1, "v").unwrap();
    let web = external(json!({ "externalTrafficPolicy": "Local" }));
    put(&cluster, &web, &[(&a, 0)]);
    let (client, node) = (cluster.rig.client(), cluster.rig.node(1));

    // Through the node without a local endpoint.
    route_by(&cluster, 1);
    for (family, protocol) in ways() {
        for to in targets(&cluster, 1, family) {
            let own = visitor.pod.address(family);
            answers(&visitor.pod, protocol, to, "a", own);
            answers(node, protocol, to, "a", node.address(family));
            is_silent(client, protocol, to);
        }
    }
    // Through the node that has it; the pod also reaches itself.
    route_by(&cluster, 0);
    let (v4, v6) = cluster.rig.node(0).gateway();
    for (family, protocol) in ways() {
        for to in targets(&cluster, 0, family) {
            let gateway = match family {
                Family::V4 => v4.into(),
                Family::V6 => v6.into(),
            };
            answers(client, protocol, to, "a", client.address(family));
            answers(&a.pod, protocol, to, "a", gateway);
        }
    }

    // The last local endpoint goes: established connections stay, new ones are dropped.
    let mut kept: Vec<_> = Family::ALL
        .into_iter()
        .flat_map(|family| targets(&cluster, 0, family))
        .map(|to| {
            let mut connection = client.connect(Protocol::Tcp, to, PATIENT).unwrap();
            assert_eq!(connection.ask().unwrap().name, "a");
            connection
        })
        .collect();
    put(&cluster, &web, &[(&b, 1)]);
    for (family, protocol) in ways() {
        for to in targets(&cluster, 0, family) {
            is_silent(client, protocol, to);
            let node = cluster.rig.node(0);
            answers(node, protocol, to, "b", node.address(family));
        }
    }
    for connection in &mut kept {
        assert_eq!(connection.ask().unwrap().name, "a");
    }

    // Without any endpoint in the cluster, every request is refused.
    put(&cluster, &web, &[]);
    for (family, protocol) in ways() {
        for to in targets(&cluster, 0, family) {
            is_refused(client, protocol, to);
            is_refused(cluster.rig.node(0), protocol, to);
        }
        for to in targets(&cluster, 1, family) {
            is_refused(&visitor.pod, protocol, to);
        }
    }
}

#[test]
fn internal_policy_local_drops_while_other_nodes_have_endpoints() {
    if skip("internal_policy_local_drops_while_other_nodes_have_endpoints") {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let visitor = cluster.add_pod(1, "v").unwrap();
    let web = service(
        "web",
        CLUSTER_IPS,
        json!({ "internalTrafficPolicy": "Local" }),
    );
    put(&cluster, &web, &[(&a, 0)]);
    for (family, protocol) in ways() {
        let to = address(CLUSTER_IPS, family);
        is_silent(&visitor.pod, protocol, to);
        is_silent(cluster.rig.node(1), protocol, to);
    }
    put(&cluster, &web, &[]);
    for (family, protocol) in ways() {
        let to = address(CLUSTER_IPS, family);
        is_refused(&visitor.pod, protocol, to);
        is_refused(cluster.rig.node(1), protocol, to);
    }
}

#[test]
fn an_address_of_another_node_is_reached_through_this_one() {
    if skip("an_address_of_another_node_is_reached_through_this_one") {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let b = cluster.add_pod(1, "b").unwrap();
    let visitor = cluster.add_pod(0, "v").unwrap();
    let (through, owner) = (cluster.rig.node(0), cluster.rig.node(1));
    let client = cluster.rig.client();
    // ICMP redirects would teach the client the direct route.
    for (host, key, value) in [
        (&**through, "ipv4/conf/all/send_redirects", "0"),
        (&**through, "ipv4/conf/eth0/send_redirects", "0"),
        (client, "ipv6/conf/eth0/accept_redirects", "0"),
    ] {
        host.namespace().sysctl(&[(key, value)]).unwrap();
    }
    for (family, length) in Family::ALL.into_iter().zip([32, 128]) {
        let route = format!("{}/{length}", owner.address(family));
        client.add_route(&route, through.address(family)).unwrap();
    }
    let mut web = external(json!({ "externalTrafficPolicy": "Local" }));
    let ingress = Family::ALL.map(|family| json!({ "ip": owner.address(family) }));
    merge(
        &mut web["status"],
        json!({ "loadBalancer": { "ingress": ingress } }),
    );
    let put = |pods: &[(&EchoPod, usize)]| {
        let nodes = node_objects(&cluster.rig);
        let objects = [nodes, vec![web.clone()], slices("web", pods)].concat();
        cluster.put("web.json", &objects).unwrap();
    };
    put(&[(&b, 1)]);
    for (family, protocol) in ways() {
        let to = owner.socket(family, 80);
        answers(client, protocol, to, "b", client.address(family));
        let own = visitor.pod.address(family);
        answers(&visitor.pod, protocol, to, "b", own);
    }
    // A pod of the other node has the endpoints of the node that owns the address, and is refused without one.
    put(&[(&a, 0), (&b, 1)]);
    for (family, protocol) in ways() {
        let to = owner.socket(family, 80);
        let own = visitor.pod.address(family);
        answers(&visitor.pod, protocol, to, "b", own);
    }
    put(&[(&a, 0)]);
    for (family, protocol) in ways() {
        is_refused(&visitor.pod, protocol, owner.socket(family, 80));
    }
}

#[test]
fn all_addresses_of_a_service_share_affinity() {
    if skip("all_addresses_of_a_service_share_affinity") {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    for node in 0..2 {
        cluster.agent(node).unwrap().stop(PATIENT).unwrap();
        let args = ["--scheduler=mh"];
        cluster.start_agent_with(node, &args).unwrap();
        cluster.wait_until_ready(node).unwrap();
    }
    let pods: Vec<_> = ["a", "b", "c", "d"]
        .iter()
        .map(|name| cluster.add_pod(0, name).unwrap())
        .collect();
    let endpoints: Vec<_> = pods.iter().map(|pod| (pod, 0)).collect();
    let visitors: Vec<_> = ["v", "w", "x"]
        .iter()
        .map(|name| cluster.add_pod(1, name).unwrap())
        .collect();
    for policy in ["Cluster", "Local"] {
        let web = external(json!({
            "sessionAffinity": "ClientIP",
            "externalTrafficPolicy": policy,
        }));
        put(&cluster, &web, &endpoints);
        for (family, protocol) in ways() {
            for visitor in &visitors {
                let external = targets(&cluster, 1, family);
                let all = [address(CLUSTER_IPS, family)].into_iter().chain(external);
                let names: BTreeSet<_> = all
                    .flat_map(|to| [to; 3])
                    .map(|to| visitor.pod.request(protocol, to, PATIENT).unwrap().name)
                    .collect();
                assert_eq!(names.len(), 1, "{policy} {protocol:?}: {names:?}");
            }
        }
    }
}

#[test]
fn source_ranges_apply_to_the_node_itself() {
    if skip("source_ranges_apply_to_the_node_itself") {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    for binding in ["route", "address"] {
        cluster.agent(0).unwrap().stop(PATIENT).unwrap();
        let flag = format!("--vip-binding={binding}");
        cluster.start_agent_with(0, &[&flag]).unwrap();
        cluster.wait_until_ready(0).unwrap();
        check_source_ranges(&cluster, &a, binding);
    }
}

fn check_source_ranges(cluster: &Cluster, a: &EchoPod, binding: &str) {
    let node = cluster.rig.node(0);
    for policy in ["Cluster", "Local"] {
        let with = |ranges: Value| {
            external(json!({
                "externalTrafficPolicy": policy,
                "loadBalancerSourceRanges": ranges,
            }))
        };
        put(
            cluster,
            &with(json!(["192.0.2.0/24", "2001:db8:2::/48"])),
            &[(a, 0)],
        );
        for (family, protocol) in ways() {
            is_silent(node, protocol, address(BALANCED, family));
        }
        let own = [format!("{}/32", node.v4()), format!("{}/128", node.v6())];
        put(cluster, &with(json!(own)), &[(a, 0)]);
        for (family, protocol) in ways() {
            let got = node.request(protocol, address(BALANCED, family), PATIENT);
            let got =
                got.unwrap_or_else(|error| panic!("{binding} {policy} {protocol:?}: {error}"));
            assert_eq!(got.name, "a");
        }
    }
}
