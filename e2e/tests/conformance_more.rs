// SPDX-License-Identifier: Apache-2.0

//! Properties of Services beyond the conformance table: source ranges, load balancer modes, affinity, addresses
//! of nodes, health checks. Tests whose names end with `on_nftables` program nftables, all others IPVS.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use portolan_e2e::ask::{BRIEF, address, answers, no_answer, ways};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::conformance::node_objects;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{merge, ports, service, slices};
use portolan_e2e::rig::{Family, Host, Protocol, RequestError};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const EXTERNAL: [&str; 2] = ["198.51.100.10", "2001:db8:100::10"];
const BALANCED: [&str; 2] = ["203.0.113.10", "2001:db8:113::10"];
const NODE_PORT: u16 = 30080;

/// A pod on each node behind a Service of type LoadBalancer.
struct World {
    cluster: Cluster,
    pods: [EchoPod; 2],
}

impl World {
    fn start_or_skip(test: &str) -> Option<Self> {
        Self::start_on("ipvs", Need::Ipvs, test)
    }

    fn start_on_nftables_or_skip(test: &str) -> Option<Self> {
        Self::start_on("nftables", Need::Nftables, test)
    }

    fn start_on(dataplane: &'static str, need: Need, test: &str) -> Option<Self> {
        if !lane::provides(test, &[Need::Root, need]) {
            return None;
        }
        let cluster = Cluster::on(dataplane).unwrap();
        let pods = [
            cluster.add_pod(0, "a").unwrap(),
            cluster.add_pod(1, "b").unwrap(),
        ];
        if need == Need::Nftables {
            // Its rules see only packets of a node that have a route. Nothing is forwarded there.
            for node in cluster.rig.nodes() {
                for family in Family::ALL {
                    let router = cluster.control().address(family);
                    node.add_route("default", router).unwrap();
                }
            }
        }
        let node = cluster.rig.node(0);
        for (ip, family) in [WEB, EXTERNAL, BALANCED].into_iter().flat_map(by_family) {
            let length = if family == Family::V4 { 32 } else { 128 };
            let route = format!("{ip}/{length}");
            let client = cluster.rig.client();
            client.add_route(&route, node.address(family)).unwrap();
        }
        Some(Self { cluster, pods })
    }

    /// Writes the Service with `spec` and its load balancer's addresses laid over it.
    fn put(&self, spec: Value, ingress: Value) {
        let status = json!({ "loadBalancer": { "ingress": ingress } });
        self.put_object(json!({ "spec": spec, "status": status }));
    }

    /// Writes the Service with `over` laid over it.
    fn put_object(&self, over: Value) {
        let mut web = service(
            "web",
            WEB,
            json!({
                "type": "LoadBalancer",
                "ports": ports(Some(NODE_PORT)),
                "externalIPs": EXTERNAL,
            }),
        );
        merge(&mut web, over);
        let both = [(&self.pods[0], 0), (&self.pods[1], 1)];
        let objects = [
            node_objects(&self.cluster.rig),
            vec![web],
            slices("web", &both),
        ];
        self.cluster.put("web.json", &objects.concat()).unwrap();
    }

    fn client(&self) -> &Host {
        self.cluster.rig.client()
    }

    /// All external frontends, at the first node.
    fn external(&self, family: Family) -> [SocketAddr; 3] {
        [
            address(BALANCED, family, 80),
            address(EXTERNAL, family, 80),
            self.cluster.rig.node(0).socket(family, NODE_PORT),
        ]
    }
}

fn by_family(ips: [&str; 2]) -> [(&str, Family); 2] {
    [(ips[0], Family::V4), (ips[1], Family::V6)]
}

fn vips() -> Value {
    json!([{ "ip": BALANCED[0] }, { "ip": BALANCED[1] }])
}

/// Asserts that a request gets neither an answer nor an error.
fn dropped(from: &Host, protocol: Protocol, to: SocketAddr) {
    let result = from.request(protocol, to, BRIEF);
    assert_eq!(
        result,
        Err(RequestError::TimedOut),
        "{protocol:?} {} -> {to}",
        from.name()
    );
}

#[test]
fn source_ranges_hold_for_every_external_frontend() {
    let name = "source_ranges_hold_for_every_external_frontend";
    if let Some(world) = World::start_or_skip(name) {
        play_source_ranges_of_all(world);
    }
}

#[test]
fn source_ranges_hold_for_every_external_frontend_on_nftables() {
    let name = "source_ranges_hold_for_every_external_frontend_on_nftables";
    if let Some(world) = World::start_on_nftables_or_skip(name) {
        play_source_ranges_of_all(world);
    }
}

fn play_source_ranges_of_all(mut world: World) {
    let cluster = &mut world.cluster;
    cluster.controller().unwrap().stop(PATIENT).unwrap();
    let args = ["--source-ranges=all"];
    cluster.start_controller_with(&args).unwrap();
    cluster.wait_until_programmed(0).unwrap();
    play_source_ranges(&world, 3);
}

#[test]
fn source_ranges_hold_for_load_balancer_ips_alone_by_default() {
    let name = "source_ranges_hold_for_load_balancer_ips_alone_by_default";
    if let Some(world) = World::start_or_skip(name) {
        play_source_ranges(&world, 1);
    }
}

#[test]
fn source_ranges_hold_for_load_balancer_ips_alone_by_default_on_nftables() {
    let name = "source_ranges_hold_for_load_balancer_ips_alone_by_default_on_nftables";
    if let Some(world) = World::start_on_nftables_or_skip(name) {
        play_source_ranges(&world, 1);
    }
}

/// Tests source ranges that apply to the first `closed` of [`World::external`] only.
fn play_source_ranges(world: &World, closed: usize) {
    let (client, node) = (world.client(), world.cluster.rig.node(0));
    let only = |host: &Host| {
        let ranges = [format!("{}/32", host.v4()), format!("{}/128", host.v6())];
        world.put(json!({ "loadBalancerSourceRanges": ranges }), vips());
    };
    let check = |allowed: &[&Host], denied: &[&Host]| {
        for (family, protocol) in ways() {
            for (number, to) in world.external(family).into_iter().enumerate() {
                for host in allowed {
                    answers(host, protocol, to, &["a", "b"]);
                }
                for host in denied {
                    if number < closed {
                        dropped(host, protocol, to);
                    } else {
                        answers(host, protocol, to, &["a", "b"]);
                    }
                }
            }
            // The cluster IP has no route outside.
            answers(node, protocol, address(WEB, family, 80), &["a", "b"]);
        }
    };
    only(client);
    check(&[client], &[node]);
    only(node);
    check(&[node], &[client]);
    let nobody = json!(["192.0.2.0/24", "2001:db8:2::/48"]);
    world.put(json!({ "loadBalancerSourceRanges": nobody }), vips());
    check(&[], &[client, node]);
    let everybody = json!(["192.0.2.0/24", "0.0.0.0/0", "::/0"]);
    world.put(json!({ "loadBalancerSourceRanges": everybody }), vips());
    check(&[client, node], &[]);
}

#[test]
fn an_address_of_a_proxying_load_balancer_is_left_to_it() {
    let name = "an_address_of_a_proxying_load_balancer_is_left_to_it";
    if let Some(world) = World::start_or_skip(name) {
        play_modes_of_load_balancers(&world);
    }
}

#[test]
fn an_address_of_a_proxying_load_balancer_is_left_to_it_on_nftables() {
    let name = "an_address_of_a_proxying_load_balancer_is_left_to_it_on_nftables";
    if let Some(world) = World::start_on_nftables_or_skip(name) {
        play_modes_of_load_balancers(&world);
    }
}

fn play_modes_of_load_balancers(world: &World) {
    let mode = |modes: [&str; 2]| {
        let ingress: Vec<_> = (0..2)
            .map(|i| json!({ "ip": BALANCED[i], "ipMode": modes[i] }))
            .collect();
        world.put(json!({}), json!(ingress));
    };
    let check = |served: Family, left: Family| {
        for protocol in Protocol::ALL {
            let of = |family| address(BALANCED, family, 80);
            answers(world.client(), protocol, of(served), &["a", "b"]);
            no_answer(world.client(), protocol, of(left));
            answers(
                world.client(),
                protocol,
                address(EXTERNAL, left, 80),
                &["a", "b"],
            );
        }
    };
    mode(["VIP", "Proxy"]);
    check(Family::V4, Family::V6);
    mode(["Proxy", "VIP"]);
    check(Family::V6, Family::V4);
}

#[test]
fn one_client_reaches_one_pod_by_every_frontend_under_affinity() {
    let name = "one_client_reaches_one_pod_by_every_frontend_under_affinity";
    let Some(world) = World::start_or_skip(name) else {
        return;
    };
    world.put_object(json!({
        "metadata": { "annotations": { "portolan.dev/scheduler": "mh" } },
        "spec": { "sessionAffinity": "ClientIP" },
        "status": { "loadBalancer": { "ingress": vips() } },
    }));
    // With two pods, frontends agree by chance for one client in eight, never for all of these.
    let visitors: Vec<_> = (0..6)
        .map(|number| {
            let pod = world.cluster.rig.node(0).add_pod(&format!("v{number}"));
            pod.unwrap()
        })
        .collect();
    for family in Family::ALL {
        let mut all = BTreeSet::new();
        for host in visitors.iter().chain([world.client()]) {
            let mut seen = BTreeSet::new();
            let mut targets = world.external(family).to_vec();
            targets.push(address(WEB, family, 80));
            for to in targets {
                for _ in 0..3 {
                    let answer = host.request(Protocol::Tcp, to, PATIENT);
                    seen.insert(answer.unwrap().name);
                }
            }
            assert_eq!(seen.len(), 1, "{family:?} {}: {seen:?}", host.name());
            all.extend(seen);
        }
        assert_eq!(all.len(), 2, "{family:?}: all clients on {all:?}");
    }
}

#[test]
fn an_address_of_a_node_is_served_without_cutting_the_node_off() {
    let name = "an_address_of_a_node_is_served_without_cutting_the_node_off";
    if let Some(world) = World::start_or_skip(name) {
        play_an_address_of_a_node(&world);
    }
}

#[test]
fn an_address_of_a_node_is_served_without_cutting_the_node_off_on_nftables() {
    let name = "an_address_of_a_node_is_served_without_cutting_the_node_off_on_nftables";
    if let Some(world) = World::start_on_nftables_or_skip(name) {
        play_an_address_of_a_node(&world);
    }
}

fn play_an_address_of_a_node(world: &World) {
    let node = world.cluster.rig.node(0);
    let _daemon = node.serve(Protocol::Tcp, 9999).unwrap();
    let own = [node.v4().to_string(), node.v6().to_string()];
    let ingress: Vec<_> = own.iter().map(|ip| json!({ "ip": ip })).collect();
    world.put(json!({}), json!(ingress));
    let others: [&Host; 4] = [
        world.client(),
        world.cluster.rig.node(1),
        &world.pods[0].pod,
        &world.pods[1].pod,
    ];
    for family in Family::ALL {
        for host in others {
            answers(host, Protocol::Tcp, node.socket(family, 9999), &["node0"]);
            answers(host, Protocol::Tcp, node.socket(family, 80), &["a", "b"]);
        }
        let bound = ["ip", "route", "show", "table", "local", "proto", "99"];
        let routes = world.cluster.rig.node(1).exec(&bound).unwrap();
        assert!(!routes.contains(&own[0]), "{routes}");
    }
}

#[test]
fn the_health_check_node_port_counts_local_endpoints() {
    let name = "the_health_check_node_port_counts_local_endpoints";
    if let Some(world) = World::start_or_skip(name) {
        play_health_checks(&world);
    }
}

#[test]
fn the_health_check_node_port_counts_local_endpoints_on_nftables() {
    let name = "the_health_check_node_port_counts_local_endpoints_on_nftables";
    if let Some(world) = World::start_on_nftables_or_skip(name) {
        play_health_checks(&world);
    }
}

fn play_health_checks(world: &World) {
    const PORT: u16 = 31999;
    let local = json!({ "externalTrafficPolicy": "Local", "healthCheckNodePort": PORT });
    let body = |count: usize| {
        format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t}},\n\
             \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": true\n}}"
        )
    };
    let expect = |number: usize, family: Family, status: u16, count: usize| {
        let to = world.cluster.rig.node(number).socket(family, PORT);
        let mut last = String::new();
        let asked = wait_for("the health check", Duration::from_secs(15), || {
            last = get(world.client(), to).unwrap_or_else(|error| error.to_string());
            let good = last.starts_with(&format!("HTTP/1.1 {status} "))
                && last.ends_with(&body(count))
                && last
                    .to_ascii_lowercase()
                    .contains(&format!("x-load-balancing-endpoint-weight: {count}\r\n"));
            good.then_some(())
        });
        asked.unwrap_or_else(|_| panic!("{to}: expected {status} with {count}, got {last:?}"));
    };
    world.put(local.clone(), vips());
    for family in Family::ALL {
        expect(0, family, 200, 1);
        expect(1, family, 200, 1);
    }
    let mut web = service(
        "web",
        WEB,
        json!({ "type": "LoadBalancer", "ports": ports(Some(NODE_PORT)) }),
    );
    merge(&mut web["spec"], local);
    let one = slices("web", &[(&world.pods[0], 0)]);
    let objects = [node_objects(&world.cluster.rig), vec![web], one];
    world.cluster.put("web.json", &objects.concat()).unwrap();
    for family in Family::ALL {
        expect(0, family, 200, 1);
        expect(1, family, 503, 0);
    }
}

/// GETs an arbitrary path. Returns the whole answer.
fn get(from: &Host, to: SocketAddr) -> std::io::Result<String> {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&to, BRIEF)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(
            stream,
            "GET /any HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    from.namespace()
        .run(ask)
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}
