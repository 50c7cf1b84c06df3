// SPDX-License-Identifier: Apache-2.0

//! Services of very many endpoints or source ranges: what the kernel takes, and what is left out by name while the
//! other Services go on.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use portolan_e2e::ask::{BRIEF, PROMPT, address, answers, no_answer};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::figure::figure;
use portolan_e2e::objects::{merge, service, slice_named, slices};
use portolan_e2e::rig::{Family, Host, Load, LoadConfig, Protocol, RequestError};
use portolan_e2e::wait::wait_for;
use portolan_netlink::nftables::Value as Content;
use serde_json::{Value, json};

use crate::{WEB, ours, skip, web};

const LARGE: [&str; 2] = ["10.96.0.20", "fd00:10:96::20"];

/// As many as the numbers of two bytes.
const ENDPOINTS: u32 = 65_536;
/// The addresses of endpoints, all of which one pod has.
const NETWORK: &str = "10.200.0.0/15";
/// So many external IPs that no table has room for that many endpoints at each.
const EXTERNAL: u32 = 26;

const RANGES: u32 = 70_000;
/// So many addresses of a load balancer that no table has room for that many source ranges of each.
const BALANCED: u32 = 13;

/// Traffic to the Service `web`, which nothing may disturb.
fn load(visitor: &EchoPod) -> Load {
    let config = LoadConfig {
        protocol: Protocol::Udp,
        workers: 2,
        limit: u64::MAX,
        pause: Duration::from_millis(10),
        timeout: PROMPT,
    };
    let targets = Family::ALL.map(|family| address(WEB, family, 80));
    Load::start(&visitor.pod, &targets, config).unwrap()
}

/// Ends the traffic, of which no request has failed.
fn assert_undisturbed(load: Load) {
    let report = load.stop();
    println!("{} requests, slowest {}", report.requests, report.slowest);
    assert!(report.requests > 0);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
}

/// Writes objects; returns the time until all nodes have programmed them, without errors.
fn put(cluster: &Cluster, objects: &[Value]) -> f64 {
    let start = Instant::now();
    cluster.put("large.json", objects).unwrap();
    start.elapsed().as_secs_f64()
}

/// Writes objects, and waits until each node names the Service `large` as the one that it leaves out.
fn put_too_large(cluster: &Cluster, objects: &[Value]) {
    let list = json!({ "kind": "List", "items": objects });
    cluster.write("large.json", &list.to_string()).unwrap();
    for node in 0..2 {
        let errors = wait_for("an error", PATIENT, || {
            let status = cluster.agent_debug(node, "status").ok()?;
            let errors = status["errors"].as_array()?.clone();
            (!errors.is_empty()).then_some(errors)
        })
        .unwrap();
        assert_eq!(errors.len(), 1, "{errors:?}");
        let (record, message) = (errors[0]["record"].as_str(), errors[0]["message"].as_str());
        assert!(record.unwrap().contains("default/large"), "{record:?}");
        let says = "are too many for a transaction of nftables";
        assert!(message.unwrap().contains(says), "{message:?}");
    }
    wait_for("the errors at the controller", PATIENT, || {
        let dump = cluster.nodes().ok()?;
        let mut nodes = dump["nodes"].as_array()?.iter();
        nodes.all(|node| node["errors_total"] == 1).then_some(())
    })
    .unwrap();
}

/// The port of the Service `large`: the limits are those of a record, which a port is.
fn only_tcp() -> Value {
    json!([{ "name": "http", "protocol": "TCP", "port": 80, "targetPort": EchoPod::PORT }])
}

/// A Service of so many endpoints of IPv4, with its external IPs.
fn crowd(endpoints: u32, external: u32) -> Vec<Value> {
    let first = u32::from(Ipv4Addr::new(10, 200, 0, 0));
    let endpoint = |number: u32| {
        json!({ "addresses": [Ipv4Addr::from(first + number).to_string()],
            "nodeName": "elsewhere", "conditions": { "ready": true } })
    };
    let all: Vec<Value> = (0..endpoints).map(endpoint).collect();
    let slice = |(number, endpoints): (usize, &[Value])| {
        let ports = json!([{ "name": "http", "protocol": "TCP", "port": EchoPod::PORT }]);
        let spec = json!({ "addressType": "IPv4", "ports": ports, "endpoints": endpoints });
        slice_named("large", &number.to_string(), spec)
    };
    let ips: Vec<_> = (1..=external).map(|n| format!("198.18.0.{n}")).collect();
    let spec = json!({ "ports": only_tcp(), "externalIPs": ips });
    let mut objects = vec![service("large", LARGE, spec)];
    objects.extend(all.chunks(1000).enumerate().map(slice));
    objects
}

/// The different endpoints of the Service `large` in the kernel, and the chains of lists there.
fn kernel(node: &Host) -> (usize, BTreeSet<String>) {
    let [content, _] = ours(node);
    let content = content.unwrap();
    let (_, elements) = &content.sets["endpoints"];
    let destinations = elements.values().filter_map(|value| match value {
        Content::Data(data) if [200, 201].contains(&data[1]) => Some(data.clone()),
        _ => None,
    });
    let chains = content.chains.keys().map(ToString::to_string);
    (
        destinations.collect::<BTreeSet<_>>().len(),
        chains.collect(),
    )
}

#[test]
fn as_many_endpoints_as_fit_are_served_and_more_are_left_out_by_name() {
    if skip("as_many_endpoints_as_fit_are_served_and_more_are_left_out_by_name") {
        return;
    }
    let (cluster, pods) = web(&json!({}));
    let visitor = cluster.add_pod(0, "v").unwrap();
    let node: &Host = cluster.rig.node(0);
    let (one, to) = (&pods[0].pod, address(LARGE, Family::V4, 80));
    one.exec(&["ip", "route", "add", "local", NETWORK, "dev", "lo"])
        .unwrap();
    node.add_route(NETWORK, one.v4().into()).unwrap();
    let load = load(&visitor);
    // A slot without an endpoint would drop a request.
    let ask_often = || {
        for _ in 0..300 {
            let answer = visitor.pod.request(Protocol::Tcp, to, PROMPT).unwrap();
            assert_eq!(answer.name, one.name());
        }
    };

    let seconds = put(&cluster, &crowd(ENDPOINTS, 0));
    figure("nftables_65536_endpoints_served_after", seconds, "s", None);
    let (count, chains) = kernel(node);
    assert_eq!(count, 65_536);
    assert!(chains.contains("pick-16") && !chains.contains("pick-17"));
    ask_often();

    // One more needs a number more of bits.
    let seconds = put(&cluster, &crowd(ENDPOINTS + 1, 0));
    figure("nftables_65537_endpoints_served_after", seconds, "s", None);
    let (count, chains) = kernel(node);
    assert_eq!(count, 65_537);
    assert!(chains.contains("pick-17"));
    ask_often();

    put_too_large(&cluster, &crowd(ENDPOINTS, EXTERNAL));
    assert_eq!(kernel(node).0, 0);
    no_answer(&visitor.pod, Protocol::Tcp, to);
    // Changes of others arrive.
    let more = [
        vec![service("more", ["10.96.0.30", "fd00:10:96::30"], json!({}))],
        slices("more", &[(&pods[1], 1)]),
    ];
    let list = json!({ "kind": "List", "items": more.concat() });
    cluster.write("more.json", &list.to_string()).unwrap();
    let more = SocketAddr::from(([10, 96, 0, 30], 80));
    wait_for("another Service", PATIENT, || {
        visitor.pod.request(Protocol::Tcp, more, BRIEF).ok()
    })
    .unwrap();

    put(&cluster, &crowd(ENDPOINTS, 0));
    assert_eq!(kernel(node).0, 65_536);
    ask_often();
    assert_undisturbed(load);
}

/// The address of the load balancer by number.
fn balanced_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(203, 0, 113, 10)) + number)
}

/// A Service with a load balancer of so many addresses, which one host and very many networks may ask.
fn ranged(pod: &EchoPod, host: &Host, addresses: u32) -> Vec<Value> {
    let first = u32::from(Ipv4Addr::new(20, 0, 0, 0));
    let network = |number: u32| format!("{}/26", Ipv4Addr::from(first + 256 * number));
    let mut ranges: Vec<_> = (1..RANGES).map(network).collect();
    ranges.push(format!("{}/32", host.v4()));
    let spec = json!({ "type": "LoadBalancer", "ports": only_tcp(),
        "loadBalancerSourceRanges": ranges });
    let mut large = service("large", LARGE, spec);
    let ingress = (0..addresses).map(|number| json!({ "ip": balanced_ip(number).to_string() }));
    let ingress: Vec<_> = ingress.collect();
    merge(
        &mut large,
        json!({ "status": { "loadBalancer": { "ingress": ingress } } }),
    );
    [vec![large], slices("large", &[(pod, 0)])].concat()
}

#[test]
fn as_many_source_ranges_as_fit_hold_and_more_are_left_out_by_name() {
    if skip("as_many_source_ranges_as_fit_hold_and_more_are_left_out_by_name") {
        return;
    }
    let (cluster, pods) = web(&json!({}));
    let visitor = cluster.add_pod(0, "v").unwrap();
    let (client, node): (&Host, &Host) = (cluster.rig.client(), cluster.rig.node(0));
    let pod: &Host = &visitor.pod;
    let ip = balanced_ip(0);
    client.add_route(&ip.to_string(), node.v4().into()).unwrap();
    let to = SocketAddr::from((ip, 80));
    let load = load(&visitor);

    // Neither permitted nor other clients.
    put_too_large(&cluster, &ranged(&pods[0], client, BALANCED));
    for from in [client, pod] {
        no_answer(from, Protocol::Tcp, to);
    }

    let check = |permitted: &Host, other: &Host| {
        answers(permitted, Protocol::Tcp, to, &["a"]);
        let refused = other.request(Protocol::Tcp, to, BRIEF);
        assert_eq!(refused, Err(RequestError::TimedOut), "{}", other.name());
    };
    let seconds = put(&cluster, &ranged(&pods[0], client, 1));
    figure(
        "nftables_70000_source_ranges_hold_after",
        seconds,
        "s",
        None,
    );
    let [content, _] = ours(node);
    let content = content.unwrap();
    let (_, elements) = &content.sets["allowed-many"];
    assert_eq!(elements.len(), 70_000);
    check(client, pod);

    let seconds = put(&cluster, &ranged(&pods[0], pod, 1));
    figure(
        "nftables_another_source_range_holds_after",
        seconds,
        "s",
        None,
    );
    check(pod, client);

    // The kernel would take most of a minute to delete the ranges one by one.
    let mut open = ranged(&pods[0], pod, 1);
    open[0]["spec"]["loadBalancerSourceRanges"] = json!([]);
    let seconds = put(&cluster, &open);
    figure(
        "nftables_70000_source_ranges_gone_after",
        seconds,
        "s",
        None,
    );
    let [content, _] = ours(node);
    let sets = content.unwrap().sets;
    assert!(!sets.contains_key("allowed-many"));
    assert!(sets["allowed-many-2"].1.is_empty());
    for host in [client, pod] {
        answers(host, Protocol::Tcp, to, &["a"]);
    }
    assert_undisturbed(load);
}
