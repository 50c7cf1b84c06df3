// SPDX-License-Identifier: Apache-2.0

//! Objects for each row of the specification.

pub(crate) mod clusterset;

use serde_json::{Value, json};

const SLICE: &str = "discovery.k8s.io/v1";

fn object(kind: &str, namespace: &str, name: &str) -> Value {
    let version = if kind == "EndpointSlice" { SLICE } else { "v1" };
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}})
}

fn service(name: &str, spec: Value) -> Value {
    let mut service = object("Service", "testns", name);
    service["spec"] = spec;
    service
}

fn slice(service: &str, name: &str, family: &str, ports: Value, endpoints: Value) -> Value {
    let mut slice = object("EndpointSlice", "testns", name);
    slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": service});
    slice["addressType"] = family.into();
    slice["ports"] = ports;
    slice["endpoints"] = endpoints;
    slice
}

fn pod(namespace: &str, name: &str, spec: Value) -> Value {
    let mut pod = object("Pod", namespace, name);
    pod["metadata"]["labels"] = json!({"app": name.rsplit_once('-').map_or(name, |(app, _)| app)});
    pod["spec"] = json!({"nodeName": "node-a", "containers": [{"name": "c", "image": "none"}]});
    portolan_e2e::objects::merge(&mut pod["spec"], spec);
    pod
}

fn single(ip: &str) -> Value {
    json!({"clusterIP": ip, "clusterIPs": [ip], "ports": http()})
}

fn http() -> Value {
    json!([{"name": "http", "protocol": "TCP", "port": 80}])
}

fn named(address: &str, hostname: &str) -> Value {
    json!({"addresses": [address], "hostname": hostname})
}

fn plain(address: &str) -> Value {
    json!({"addresses": [address]})
}

fn not_ready(address: &str) -> Value {
    json!([{"addresses": [address], "conditions": {"ready": false}}])
}

fn external(name: &str, target: &str) -> Value {
    service(
        name,
        json!({"type": "ExternalName", "externalName": target}),
    )
}

/// All objects but the status of Pods. The Service of the name servers has an endpoint with the
/// address `own`, by which CoreDNS recognizes its own Service.
pub(crate) fn objects(own: &str) -> Vec<Value> {
    let mut objects: Vec<_> = ["testns", "emptyns", "podns"]
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
        .into();
    // Pods of a Node that does not exist are in no slice.
    objects.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}));
    objects.extend([
        service("name-servers", single("10.96.1.53")),
        slice(
            "name-servers",
            "name-servers-a",
            "IPv4",
            http(),
            json!([plain(own)]),
        ),
    ]);
    objects.extend(cluster_ips());
    objects.extend(headless());
    objects.extend(zoned());
    objects.extend([
        external("external", "ext.interwebs.test"),
        external("external-to-service", "svc1.testns.svc.cluster.local"),
        external("external-to-nothing", "svc0.testns.svc.cluster.local"),
        external(
            "external-twice",
            "external-to-service.testns.svc.cluster.local",
        ),
        external("external-to-headless", "hdls1.testns.svc.cluster.local"),
        external("loop-a", "loop-b.testns.svc.cluster.local"),
        external("loop-b", "loop-a.testns.svc.cluster.local"),
        external("external-address", "1.2.3.4"),
        external(
            "external-to-itself",
            "x.external-to-itself.testns.svc.cluster.local",
        ),
        external("external-to-no-address", "svc6.testns.svc.cluster.local"),
        external("external-to-servers", "ns.dns.cluster.local"),
        external("external-to-pod", "10-240-0-1.podns.pod.cluster.local"),
        external("external-to-apex", "cluster.local"),
        external("external-to-second", "svc1.testns.svc.second.test"),
        external("external-to-no-second", "svc0.testns.svc.second.test"),
        // The first target does not exist, and the second is no Service's.
        external("external-missing", "missing.interwebs.test"),
        external("external-to-nobody", "www.nobody.test"),
    ]);
    objects.extend([
        pod("podns", "foo", json!({})),
        pod("podns", "foo6", json!({})),
        // Two Pods share an address, as in a Node's own network, and one Pod has two.
        pod("podns", "twin-a", json!({})),
        pod("podns", "twin-b", json!({})),
        pod("podns", "dual", json!({})),
        pod("testns", "dotted.name-0", json!({})),
        pod(
            "testns",
            "set-0",
            json!({"hostname": "set-0", "subdomain": "set"}),
        ),
        pod(
            "testns",
            "set-1",
            json!({"hostname": "set-1", "subdomain": "set"}),
        ),
        pod("testns", "late-0", json!({})),
        pod("testns", "early-0", json!({})),
        pod("podns", "zz-last", json!({})),
        pod("testns", "zz-last", json!({})),
    ]);
    objects
}

/// The objects that are applied last, with records in every zone. Their names and addresses sort
/// after all others, because exports write in that order.
pub(crate) fn last() -> Vec<Value> {
    let spec = json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"],
        "ports": http()});
    vec![
        service("zz-last", spec),
        slice(
            "zz-last",
            "zz-last-a",
            "IPv4",
            http(),
            json!([named("198.51.100.254", "last")]),
        ),
        slice(
            "zz-last",
            "zz-last-b",
            "IPv6",
            http(),
            json!([named("fdff::254", "last")]),
        ),
    ]
}

/// Names of the objects of [`last`] and of the last Pods, whose answers show that a server has all
/// that was applied before.
pub(crate) mod last_names {
    /// The Service.
    pub(crate) const SERVICE: &str = "zz-last.testns.svc.cluster.local.";
    /// The endpoint in its two slices.
    pub(crate) const ENDPOINT: &str = "last.zz-last.testns.svc.cluster.local.";
    /// The endpoint's addresses, one of each reverse zone.
    pub(crate) const ADDRESSES: [&str; 2] = [
        "254.100.51.198.in-addr.arpa.",
        "4.5.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.f.f.d.f.ip6.arpa.",
    ];
    /// The Pods, by Namespace.
    pub(crate) const PODS: [&str; 2] = [
        "10-240-9-8.podns.pod.cluster.local.",
        "10-240-9-9.testns.pod.cluster.local.",
    ];
}

fn cluster_ips() -> Vec<Value> {
    let mut proxied = service("proxied", single("10.96.1.9"));
    proxied["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
    let mut v6 = single("fd00:10:96::6");
    v6["ipFamilies"] = json!(["IPv6"]);
    let dual = json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"],
        "clusterIP": "10.96.1.3", "clusterIPs": ["10.96.1.3", "fd00:10:96::3"], "ports": http()});
    let many = json!({"clusterIP": "10.96.1.4", "ports": [
        {"name": "http", "protocol": "TCP", "port": 80}, {"name": "https", "protocol": "TCP", "port": 443},
        {"name": "dns", "protocol": "UDP", "port": 53}, {"name": "sctp", "protocol": "SCTP", "port": 99}]});
    let mut outside = single("10.96.1.7");
    outside["type"] = "LoadBalancer".into();
    outside["externalIPs"] = json!(["198.51.100.7"]);
    let own = json!([named("172.16.0.1", "ep1a"), named("172.16.0.99", "shared"), plain("172.16.0.3"),
        {"addresses": ["172.16.0.4"], "conditions": {"ready": false}}]);
    vec![
        service("svc1", single("10.96.1.1")),
        slice("svc1", "svc1-a", "IPv4", http(), own),
        service("svc6", v6),
        slice(
            "svc6",
            "svc6-a",
            "IPv6",
            http(),
            json!([plain("fd00:99::6"), named("fd00:99::7", "ep6")]),
        ),
        service("dual", dual),
        slice(
            "dual",
            "dual-a",
            "IPv4",
            http(),
            json!([named("172.16.3.1", "pair")]),
        ),
        slice(
            "dual",
            "dual-b",
            "IPv6",
            http(),
            json!([named("fd00:99::31", "pair")]),
        ),
        service("many", many),
        service(
            "unnamed",
            json!({"clusterIP": "10.96.1.5", "ports": [{"port": 81}]}),
        ),
        service("outside", outside),
        service("down", single("10.96.1.8")),
        slice("down", "down-a", "IPv4", http(), not_ready("172.16.5.1")),
        proxied,
    ]
}

fn headless() -> Vec<Value> {
    let none = |more: Value| {
        let mut spec = json!({"clusterIP": "None", "ports": http()});
        portolan_e2e::objects::merge(&mut spec, more);
        spec
    };
    let v6 = json!({"ipFamilyPolicy": "PreferDualStack"});
    let first = json!([
        plain("172.16.1.2"),
        plain("172.16.1.3"),
        named("172.16.1.4", "dup-name"),
        named("172.16.1.5", "dup-name"),
        named("172.16.0.99", "shared"),
        named("172.16.1.6", "Upper-Case".to_lowercase().as_str())
    ]);
    let sixth = json!([
        plain("5678:abcd::1"),
        plain("5678:abcd::2"),
        plain("fd00:0:0:1::")
    ]);
    let early = json!({"selector": {"app": "early"}, "publishNotReadyAddresses": true});
    vec![
        service("hdls1", none(v6)),
        slice("hdls1", "hdls1-a", "IPv4", http(), first),
        // The same endpoint in two slices, as briefly while one replaces the other.
        slice(
            "hdls1",
            "hdls1-b",
            "IPv4",
            http(),
            json!([plain("172.16.1.2")]),
        ),
        slice("hdls1", "hdls1-c", "IPv6", http(), sixth),
        service("portless", json!({"clusterIP": "None"})),
        slice(
            "portless",
            "portless-a",
            "IPv4",
            json!([]),
            json!([plain("172.16.2.20")]),
        ),
        service("unready", none(json!({}))),
        slice(
            "unready",
            "unready-a",
            "IPv4",
            http(),
            not_ready("172.16.2.1"),
        ),
        service("nothing", none(json!({}))),
        // Services of real Pods, whose slices the real endpointslice controller makes.
        service("set", none(json!({"selector": {"app": "set"}}))),
        service("late", none(json!({"selector": {"app": "late"}}))),
        service("early", none(early)),
        service("dotted", none(json!({"selector": {"app": "dotted.name"}}))),
        // A slice with a port without a number. The second slice has the same endpoint with another
        // number of the port `http`.
        service("any-port", none(json!({}))),
        slice(
            "any-port",
            "any-port-a",
            "IPv4",
            json!([{"name": "any", "protocol": "TCP"}, {"name": "http", "protocol": "TCP", "port": 80}]),
            json!([plain("172.16.2.30"), named("172.16.2.31", "one")]),
        ),
        slice(
            "any-port",
            "any-port-b",
            "IPv4",
            json!([{"name": "http", "protocol": "TCP", "port": 8080}, {"name": "x", "protocol": "UDP", "port": 9}]),
            json!([named("172.16.2.32", "one"), plain("172.16.2.30")]),
        ),
        slice(
            "orphan",
            "orphan-a",
            "IPv4",
            http(),
            json!([plain("172.16.9.9")]),
        ),
    ]
}

/// Endpoints in topology zones: one zone with capitals, one with dots, and an endpoint without a
/// zone.
fn zoned() -> [Value; 2] {
    [
        service("zoned", json!({"clusterIP": "None", "ports": http()})),
        slice(
            "zoned",
            "zoned-a",
            "IPv4",
            http(),
            json!([
                {"addresses": ["172.16.4.1"], "zone": "west-2a"},
                {"addresses": ["172.16.4.2"], "zone": "West-2B"},
                {"addresses": ["172.16.4.3"], "zone": "corp.example.test", "hostname": "corp"},
                plain("172.16.4.4")
            ]),
        ),
    ]
}

/// The addresses of Pods that Services select.
pub(crate) const SELECTED: [&str; 5] = [
    "10.240.1.10",
    "10.240.1.11",
    "10.240.1.20",
    "10.240.1.21",
    "10.240.1.30",
];

/// Pods in the order in which they get addresses: namespace, name, addresses and readiness.
pub(crate) const PODS: [(&str, &str, &str, bool); 12] = [
    ("podns", "foo", "10.240.0.1", true),
    ("podns", "foo6", "fd00:240::6", true),
    ("podns", "twin-a", "10.240.0.9", true),
    ("podns", "twin-b", "10.240.0.9", true),
    ("podns", "dual", "10.240.0.7 fd00:240::7", true),
    ("testns", "dotted.name-0", "10.240.1.30", true),
    ("testns", "set-0", "10.240.1.10", true),
    ("testns", "set-1", "10.240.1.11", true),
    ("testns", "late-0", "10.240.1.20", false),
    ("testns", "early-0", "10.240.1.21", false),
    ("podns", "zz-last", "10.240.9.8", true),
    ("testns", "zz-last", "10.240.9.9", true),
];
