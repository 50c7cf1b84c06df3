// SPDX-License-Identifier: Apache-2.0

//! Two nodes follow the objects of a real API server as they change: etcd, kube-apiserver and
//! kube-controller-manager run in the rig beside the controller.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, control};
use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::objects::{merge, ports, service, slice, slice_of, slices};
use portolan_e2e::programs::Source;
use portolan_e2e::rig::{Family, Host, Protocol};
use portolan_e2e::servers::{ApiProxy, Servers, slice_path};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The time without an answer that counts as silence.
const BRIEF: Duration = Duration::from_millis(500);
/// The time an answer may take with a whole control plane on the same processor.
const PROMPT: Duration = Duration::from_secs(10);
/// Stands for an unanswered request in a set of names.
const NOBODY: &str = "nobody";

const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const OPEN: [&str; 2] = ["10.96.0.20", "fd00:10:96::20"];
const EXTERNAL: [&str; 2] = ["198.51.100.10", "2001:db8:100::10"];
const BALANCED: [&str; 2] = ["203.0.113.10", "2001:db8:113::10"];
const OTHERS: [&str; 2] = ["10.96.0.30", "fd00:10:96::30"];
const AFTER: [&str; 2] = ["10.96.0.31", "fd00:10:96::31"];
const TIMED: [&str; 2] = ["10.96.0.40", "fd00:10:96::40"];

/// A control plane, and Portolan's programs that follow it.
struct World {
    // Fields drop in this order: Portolan's programs watch the servers and would delay their end.
    cluster: Cluster,
    servers: Servers,
    directory: TempDir,
}

impl World {
    fn start_or_skip(test: &str) -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let start = Instant::now();
        let (rig, servers) = Servers::in_rig_or_skip(test, directory.path())?;
        // The controller refuses the agents of nodes that do not exist.
        apply(control(&rig), &servers, &[node(0), node(1)]);
        let source = Source::Kubernetes(servers.kubeconfig().to_owned());
        let cluster = Cluster::with(rig, source).unwrap();
        println!("all runs after {:.1} s", start.elapsed().as_secs_f32());
        Some(Self {
            cluster,
            servers,
            directory,
        })
    }

    fn kubectl(&self, args: &[&str], input: &str) -> String {
        kubectl(self.cluster.control(), &self.servers, args, input)
    }

    fn apply(&self, objects: &[Value]) {
        apply(self.cluster.control(), &self.servers, objects);
    }

    fn patch_status(&self, what: [&str; 2], status: &Value) {
        let patch = json!({ "status": status }).to_string();
        let how = ["--subresource", "status", "--type", "merge", "-p", &patch];
        self.kubectl(&[&["patch"], &what[..], &how[..]].concat(), "");
    }

    /// Makes a Pod of the API for a pod of the rig, as its kubelet would.
    fn create_pod(&self, pod: &EchoPod, number: usize) {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": pod.pod.name(), "labels": { "app": "web" } },
            "spec": {
                "nodeName": Cluster::node_name(number),
                "containers": [{ "name": "web", "image": "none" }],
            },
        });
        self.apply(&[object]);
        self.set_ready(pod, true);
    }

    fn set_ready(&self, pod: &EchoPod, ready: bool) {
        let ips = Family::ALL.map(|family| json!({ "ip": pod.pod.address(family) }));
        let status = json!({
            "phase": "Running",
            "podIP": pod.pod.v4(),
            "podIPs": ips,
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
        });
        self.patch_status(["pod", pod.pod.name()], &status);
    }

    /// The controller's table for a node.
    fn table(&self, number: usize) -> Value {
        let dump = format!("table/{}", Cluster::node_name(number));
        self.cluster.controller_debug(&dump).unwrap()
    }

    /// Sends the outside client's packets for addresses to a node.
    fn route(&self, addresses: [&str; 2], number: usize) {
        let node = self.cluster.rig.node(number);
        for (address, family) in addresses.into_iter().zip(Family::ALL) {
            let length = if family == Family::V4 { 32 } else { 128 };
            let client = self.cluster.rig.client();
            client
                .add_route(&format!("{address}/{length}"), node.address(family))
                .unwrap();
        }
    }
}

fn kubectl(control: &Host, servers: &Servers, args: &[&str], input: &str) -> String {
    let namespace = control.namespace();
    let said = namespace.run(|| servers.kubectl_with_input(args, input));
    said.unwrap().unwrap()
}

fn apply(control: &Host, servers: &Servers, objects: &[Value]) {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    // On the server's side: kubectl itself confuses ports of the same number.
    let apply = ["apply", "--server-side", "-f", "-"];
    kubectl(control, servers, &apply, &list.to_string());
}

fn node(number: usize) -> Value {
    let labels = json!({ "topology.kubernetes.io/zone": format!("zone{}", number + 1) });
    let metadata = json!({ "name": Cluster::node_name(number), "labels": labels });
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata })
}

fn dual_stack(name: &str, ips: [&str; 2], spec: Value) -> Value {
    let mut object = service(name, ips, spec);
    object["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
    object
}

fn sockets(ips: [&str; 2], port: u16) -> [SocketAddr; 2] {
    ips.map(|ip| SocketAddr::new(ip.parse().unwrap(), port))
}

/// The names that answer a number of requests; [`NOBODY`] stands for unanswered ones.
fn sample(
    from: &Host,
    protocol: Protocol,
    to: SocketAddr,
    (requests, timeout): (usize, Duration),
) -> BTreeSet<String> {
    (0..requests)
        .map(|_| match from.request(protocol, to, timeout) {
            Ok(answer) => answer.name,
            Err(_) => NOBODY.into(),
        })
        .collect()
}

/// Returns when exactly these names answer each of the hosts, over both families and protocols.
fn wait_for_answers(from: &[&Host], to: [SocketAddr; 2], expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|name| (*name).into()).collect();
    let silence = expected.contains(NOBODY);
    let patience = if silence { (2, BRIEF) } else { (6, PROMPT) };
    for host in from {
        for (to, protocol) in to
            .into_iter()
            .flat_map(|to| Protocol::ALL.map(|protocol| (to, protocol)))
        {
            let mut seen = BTreeSet::new();
            wait_for("the right answers", PATIENT, || {
                seen = sample(host, protocol, to, patience);
                (seen == expected).then_some(())
            })
            .unwrap_or_else(|error| {
                panic!(
                    "{protocol:?} {} -> {to}: {seen:?} answer, expected {expected:?}: {error}",
                    host.name()
                )
            });
        }
    }
}

/// A single test: the control plane takes half a minute to start.
#[test]
fn objects_of_an_api_server_are_followed() {
    let Some(world) = World::start_or_skip("objects_of_an_api_server_are_followed") else {
        return;
    };
    let add = |number, name| world.cluster.add_pod(number, name).unwrap();
    let pods = [add(0, "a"), add(1, "b")];
    let visitors = [add(0, "v0"), add(1, "v1")];
    let inside = visitors.each_ref().map(|visitor| &visitor.pod);
    pods_behind_a_selector_are_followed(&world, &pods, &inside);
    external_addresses_are_followed(&world, &pods, &inside);
    unusable_endpoints_are_reported(&world, &pods, &inside);
    services_of_others_are_ignored(&world, &pods, &inside);
    measure(&world, &pods, &inside);
}

fn pods_behind_a_selector_are_followed(world: &World, pods: &[EchoPod; 2], inside: &[&Host]) {
    let [a, b] = pods;
    let c = world.cluster.add_pod(1, "c").unwrap();
    let ask = |expected: &[&str]| wait_for_answers(inside, sockets(WEB, 80), expected);

    // The endpointslice controller makes the slices.
    let selector = json!({ "selector": { "app": "web" } });
    world.apply(&[dual_stack("web", WEB, selector)]);
    world.create_pod(a, 0);
    world.create_pod(b, 1);
    ask(&["a", "b"]);
    for (number, zone) in ["zone1", "zone2"].into_iter().enumerate() {
        assert_eq!(world.table(number)["node"]["zone"], zone);
    }

    world.create_pod(&c, 1);
    ask(&["a", "b", "c"]);
    world.set_ready(a, false);
    ask(&["b", "c"]);
    world.set_ready(a, true);
    ask(&["a", "b", "c"]);
    let force = ["--force", "--grace-period=0"];
    world.kubectl(&[&["delete", "pod", "b"], &force[..]].concat(), "");
    ask(&["a", "c"]);
    let all = ["delete", "pod", "-l", "app=web"];
    world.kubectl(&[&all[..], &force[..]].concat(), "");
    ask(&[NOBODY]);

    // With pods again, so that the deletion of the Service is observed.
    world.create_pod(a, 0);
    ask(&["a"]);
    world.kubectl(&["delete", "service", "web"], "");
    ask(&[NOBODY]);
    world.cluster.wait_until_programmed(0).unwrap();
    for number in 0..2 {
        let node = world.cluster.rig.node(number);
        let servers = node.exec(&["ipvsadm", "-Ln"]).unwrap();
        assert!(!servers.contains(WEB[0]), "{servers}");
    }
}

/// Node port, load balancer and external addresses, from inside and outside, through each node.
fn external_addresses_are_followed(world: &World, pods: &[EchoPod; 2], inside: &[&Host]) {
    let [a, b] = pods;
    let spec = json!({
        "type": "LoadBalancer",
        "externalIPs": EXTERNAL,
        "ports": ports(Some(30080)),
    });
    let objects = vec![dual_stack("open", OPEN, spec)];
    world.apply(&[objects, slices("open", &[(a, 0), (b, 1)])].concat());
    let ingress = BALANCED.map(|ip| json!({ "ip": ip }));
    let status = json!({ "loadBalancer": { "ingress": ingress } });
    world.patch_status(["service", "open"], &status);

    let client = world.cluster.rig.client();
    wait_for_answers(inside, sockets(OPEN, 80), &["a", "b"]);
    for number in 0..2 {
        world.route(EXTERNAL, number);
        world.route(BALANCED, number);
        let node = world.cluster.rig.node(number);
        let node_port = Family::ALL.map(|family| node.socket(family, 30080));
        for to in [node_port, sockets(EXTERNAL, 80), sockets(BALANCED, 80)] {
            wait_for_answers(&[client], to, &["a", "b"]);
        }
    }
    // The load balancer withdraws its addresses. Then the Service is closed to the outside.
    world.patch_status(["service", "open"], &json!({ "loadBalancer": null }));
    wait_for_answers(&[client], sockets(BALANCED, 80), &[NOBODY]);
    wait_for_answers(&[client], sockets(EXTERNAL, 80), &["a", "b"]);
    world.apply(&[dual_stack("open", OPEN, json!({ "type": "ClusterIP" }))]);
    let node_port = Family::ALL.map(|family| world.cluster.rig.node(1).socket(family, 30080));
    for to in [node_port, sockets(EXTERNAL, 80)] {
        wait_for_answers(&[client], to, &[NOBODY]);
    }
    wait_for_answers(inside, sockets(OPEN, 80), &["a", "b"]);
}

/// The API accepts a multicast address as an endpoint; it is reported, and the other endpoints are used.
fn unusable_endpoints_are_reported(world: &World, pods: &[EchoPod; 2], inside: &[&Host]) {
    let bad = ["224.0.1.1", "ff0e::1"];
    let written: Vec<_> = Family::ALL
        .into_iter()
        .zip(bad)
        .map(|(family, bad)| {
            let mut endpoint = pods[1].endpoint(family, 1);
            endpoint["addresses"] = json!([bad]);
            slice_of("open", family, &[endpoint, pods[1].endpoint(family, 1)])
        })
        .collect();
    world.apply(&written);
    wait_for_answers(inside, sockets(OPEN, 80), &["b"]);
    let problems = world.cluster.controller_debug("problems").unwrap();
    let problems = problems.to_string();
    assert!(
        bad.iter().all(|address| problems.contains(address)),
        "{problems}"
    );
    // Corrected slices clear the problems.
    world.apply(&slices("open", &[(&pods[0], 0)]));
    wait_for_answers(inside, sockets(OPEN, 80), &["a"]);
    let problems = world.cluster.controller_debug("problems").unwrap();
    let problems = problems.to_string();
    assert!(
        !bad.iter().any(|address| problems.contains(address)),
        "{problems}"
    );
}

/// Services without addresses and Services of another proxy are not programmed.
fn services_of_others_are_ignored(world: &World, pods: &[EchoPod; 2], inside: &[&Host]) {
    let metadata = |name: &str| json!({ "name": name, "namespace": "default" });
    let mut objects = vec![
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata("headless"),
            "spec": { "clusterIP": "None", "ports": ports(None) } }),
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata("elsewhere"),
            "spec": { "type": "ExternalName", "externalName": "example.com" } }),
    ];
    let mut others = dual_stack("others", OTHERS, json!({}));
    merge(
        &mut others,
        json!({ "metadata": { "labels": { PROXY_NAME: "theirs" } } }),
    );
    objects.push(others);
    for name in ["headless", "elsewhere", "others"] {
        objects.extend(slices(name, &[(&pods[0], 0)]));
    }
    world.apply(&objects);

    // A later Service works, so the earlier objects have been read.
    let after = vec![dual_stack("after", AFTER, json!({}))];
    world.apply(&[after, slices("after", &[(&pods[1], 1)])].concat());
    wait_for_answers(inside, sockets(AFTER, 80), &["b"]);
    wait_for_answers(inside, sockets(OTHERS, 80), &[NOBODY]);
    for number in 0..2 {
        let table = world.table(number).to_string();
        assert!(table.contains("after"), "{table}");
        for name in ["headless", "elsewhere", "others"] {
            assert!(!table.contains(name), "{name}: {table}");
        }
    }
    // The label comes and goes.
    let label = |change: &str| drop(world.kubectl(&["label", "service", "others", change], ""));
    label(&format!("{PROXY_NAME}-"));
    wait_for_answers(inside, sockets(OTHERS, 80), &["a"]);
    assert!(world.table(0).to_string().contains("others"));
    label(&format!("{PROXY_NAME}=theirs"));
    wait_for_answers(inside, sockets(OTHERS, 80), &[NOBODY]);
}

/// Measures the time from the write of an EndpointSlice until both nodes report it as programmed.
fn measure(world: &World, pods: &[EchoPod; 2], inside: &[&Host]) {
    const WRITES: usize = 50;
    let cluster = &world.cluster;
    let both = [(&pods[0], 0), (&pods[1], 1)];
    let objects = vec![dual_stack("timed", TIMED, json!({}))];
    world.apply(&[objects, slices("timed", &both)].concat());
    wait_for_answers(inside, sockets(TIMED, 80), &["a", "b"]);
    cluster.wait_until_programmed(0).unwrap();

    let control = cluster.control();
    let kubeconfig = world.servers.kubeconfig();
    let api = ApiProxy::start(control, kubeconfig, world.directory.path()).unwrap();
    let mut times = Vec::with_capacity(WRITES);
    for turn in 0..WRITES {
        let chosen = &both[..=(turn % 2)];
        let endpoints = &slice("timed", Family::V4, chosen)["endpoints"];
        let before = cluster.revision().unwrap();
        let start = Instant::now();
        api.patch(&slice_path("timed-v4"), &json!({ "endpoints": endpoints }))
            .unwrap();
        // Each write changes the endpoints, so there is a newer revision.
        cluster.wait_until_programmed(before + 1).unwrap();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let millis = |percent: usize| times[(WRITES * percent).div_ceil(100) - 1].as_secs_f64() * 1e3;
    let (median, p99) = (millis(50), millis(99));
    figure("endpointslice_write_to_programmed_p50", median, "ms", None);
    figure(
        "endpointslice_write_to_programmed_p99",
        p99,
        "ms",
        Some(Goal::AtMost(1000.0)),
    );
}
