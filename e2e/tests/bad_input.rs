// SPDX-License-Identifier: Apache-2.0

//! Bad input produces one message that names object and field, and a metric; all other objects work.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::print_stdout, reason = "the messages, for people to judge")]

use std::net::SocketAddr;
use std::time::Duration;

use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{merge, ports, service, slice_of, slices};
use portolan_e2e::rig::{Family, Host, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

/// The timeout of one request; an unanswered one is repeated.
const PROMPT: Duration = Duration::from_secs(5);

const GOOD: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const BAD: [&str; 2] = ["10.96.0.66", "fd00:10:96::66"];
const NODE_PORT: u16 = 30080;

const FILE_PROBLEMS: &str = "portolan_controller_file_problems_current";

/// The Service `good`, older than any other, with the pod `g`; a pod `b`; and a pod as the client.
struct Bench {
    b: EchoPod,
    visitor: EchoPod,
    _g: EchoPod,
    cluster: Cluster,
}

impl Bench {
    /// `None` if this machine cannot run the test.
    fn new(test: &str) -> Option<Self> {
        if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
            return None;
        }
        let cluster = Cluster::new().unwrap();
        let g = cluster.add_pod(0, "g").unwrap();
        let spec = json!({ "type": "NodePort", "ports": ports(Some(NODE_PORT)) });
        let mut good = service("good", GOOD, spec);
        let age = json!({ "metadata": { "creationTimestamp": "2024-01-02T03:04:05Z" } });
        merge(&mut good, age);
        let objects = [vec![good], slices("good", &[(&g, 0)])].concat();
        cluster.put("good.json", &objects).unwrap();
        let bench = Self {
            b: cluster.add_pod(1, "b").unwrap(),
            visitor: cluster.add_pod(0, "v").unwrap(),
            _g: g,
            cluster,
        };
        bench.assert_good_works();
        Some(bench)
    }

    fn assert_good_works(&self) {
        for protocol in Protocol::ALL {
            for ip in GOOD {
                answers(&self.visitor.pod, protocol, address(ip, 80), "g");
            }
            let node_port = self.cluster.rig.node(1).socket(Family::V4, NODE_PORT);
            answers(self.cluster.rig.client(), protocol, node_port, "g");
        }
    }

    /// The valid Service `bad`, with the pod `b` behind it and `spec` laid over it.
    fn bad(&self, spec: Value) -> Vec<Value> {
        let slices = slices("bad", &[(&self.b, 1)]);
        [vec![service("bad", BAD, spec)], slices].concat()
    }

    /// The problems of objects or of files, from the controller's dump.
    fn problems(&self, what: &str) -> Vec<String> {
        let dump = self.cluster.controller_debug("problems").unwrap();
        let lines = dump[what].as_array().unwrap().iter();
        lines.map(|line| line.as_str().unwrap().into()).collect()
    }

    /// Waits until there are problems, and returns them.
    fn wait_for_problems(&self, what: &str) -> Vec<String> {
        let problems = || Some(self.problems(what)).filter(|lines| !lines.is_empty());
        wait_for("a problem", PATIENT, problems).unwrap()
    }

    fn wait_until_solved(&self) {
        wait_for("the problem to go", PATIENT, || {
            let left = ["objects", "files"].map(|what| self.problems(what).len());
            (left == [0, 0]).then_some(())
        })
        .unwrap();
    }

    /// Makes the controller read its files and publish once more. Afterwards all earlier writes
    /// have been read and programmed.
    fn change_something_else(&self) {
        let name = format!("other-{}", self.cluster.revision().unwrap());
        let other = service(&name, ["10.96.0.99", "fd00:10:96::99"], json!({}));
        self.cluster.put("other.json", &[other]).unwrap();
    }

    /// The lines of a level, with all of these words, that the controller logged after the first
    /// `after` bytes.
    fn logged(&mut self, after: usize, level: &str, words: &[&str]) -> Vec<String> {
        let log = self.cluster.controller().unwrap().log().unwrap();
        let lines = log[after..].lines().filter(|line| line.contains(level));
        lines
            .filter(|line| words.iter().all(|word| line.contains(word)))
            .map(Into::into)
            .collect()
    }

    fn log_length(&mut self) -> usize {
        self.cluster.controller().unwrap().log().unwrap().len()
    }

    /// The value of a metric of the controller, by name and labels; 0 if it has none.
    fn metric(&self, name: &str) -> u64 {
        let metrics = self.cluster.controller_metrics().unwrap();
        let mut values = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        values.next().map_or(0, |value| value.parse().unwrap())
    }
}

fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Waits until the pod answers.
fn answers(from: &Host, protocol: Protocol, to: SocketAddr, name: &str) {
    let answer = wait_for("an answer", PATIENT, || {
        from.request(protocol, to, PROMPT).ok()
    });
    let answer =
        answer.unwrap_or_else(|error| panic!("{protocol:?} {} -> {to}: {error}", from.name()));
    assert_eq!(answer.name, name, "{protocol:?} {} -> {to}", from.name());
}

/// An invalid variant of the Service `bad`, and the expected message.
struct Case {
    objects: Vec<Value>,
    kind: &'static str,
    object: &'static str,
    field: &'static str,
    reason: &'static str,
    /// The value as the message shows it.
    says: &'static str,
    /// The targets at which the pod `b` answers nevertheless.
    works: Vec<(Protocol, SocketAddr)>,
}

const TCP: Protocol = Protocol::Tcp;

fn of_service(
    objects: Vec<Value>,
    [field, reason, says]: [&'static str; 3],
    works: &[SocketAddr],
) -> Case {
    Case {
        objects,
        kind: "Service",
        object: "Service default/bad",
        field,
        reason,
        says,
        works: works.iter().map(|to| (TCP, *to)).collect(),
    }
}

fn of_slice(
    objects: Vec<Value>,
    [field, reason, says]: [&'static str; 3],
    works: (Protocol, SocketAddr),
) -> Case {
    Case {
        kind: "EndpointSlice",
        object: "EndpointSlice default/bad-v4",
        works: vec![works],
        ..of_service(objects, [field, reason, says], &[])
    }
}

fn service_cases(bench: &Bench) -> Vec<Case> {
    let [v4, v6] = BAD.map(|ip| address(ip, 80));
    let http = |over: Value| {
        let mut port = ports(None)[0].clone();
        merge(&mut port, over);
        port
    };
    let second = json!({ "name": "second", "protocol": "TPC", "port": 81 });
    let spec = |spec| bench.bad(spec);
    vec![
        of_service(
            spec(json!({ "clusterIP": "10.96.0.999", "clusterIPs": ["10.96.0.999", BAD[1]] })),
            ["spec.clusterIPs[0]", "invalid_value", "\"10.96.0.999\""],
            &[v6],
        ),
        of_service(
            spec(json!({ "externalIPs": ["here"] })),
            ["spec.externalIPs[0]", "invalid_value", "\"here\""],
            &[v4, v6],
        ),
        of_service(
            spec(json!({ "ports": [http(json!({})), second] })),
            ["spec.ports[1].protocol", "invalid_value", "\"TPC\""],
            &[v4, v6],
        ),
        of_service(
            spec(json!({ "type": "NodePort", "ports": [http(json!({ "nodePort": NODE_PORT }))] })),
            [
                "spec.ports[0].nodePort",
                "conflict",
                "TCP node port 30080 already belongs to Service default/good",
            ],
            &[v4, v6],
        ),
        of_service(
            spec(json!({ "type": "NodePort", "ports": [http(json!({ "nodePort": 70_000 }))] })),
            ["spec.ports[0].nodePort", "invalid_value", "70000"],
            &[v4, v6],
        ),
    ]
}

/// Refused or ignored fields other than addresses and ports.
fn other_cases(bench: &Bench) -> Vec<Case> {
    let [v4, v6] = BAD.map(|ip| address(ip, 80));
    let annotated = |name: &str, value: &str| {
        let mut objects = bench.bad(json!({}));
        let annotations = json!({ "metadata": { "annotations": { name: value } } });
        merge(&mut objects[0], annotations);
        objects
    };
    let balanced = json!({
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 70_000,
    });
    let node_address = bench.cluster.rig.node(1).address(Family::V4).to_string();
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": "far" },
        "status": { "addresses": [{ "type": "InternalIP", "address": &node_address }] },
    });
    vec![
        of_service(
            annotated("portolan.dev/drain-timeout", "soon"),
            [
                "metadata.annotations[portolan.dev/drain-timeout]",
                "invalid_value",
                "\"soon\"",
            ],
            &[v4, v6],
        ),
        of_service(
            annotated("kube-router.io/service.dsr", "tunnel"),
            [
                "metadata.annotations[kube-router.io/service.dsr]",
                "unsupported",
                "not supported",
            ],
            &[v4, v6],
        ),
        of_service(
            bench.bad(balanced),
            ["spec.healthCheckNodePort", "invalid_value", "70000"],
            &[v4, v6],
        ),
        of_service(
            [
                bench.bad(json!({ "externalIPs": [&node_address] })),
                vec![node],
            ]
            .concat(),
            ["spec.externalIPs", "node_address", "is an address of Node"],
            &[v4, v6],
        ),
    ]
}

fn slice_cases(bench: &Bench) -> Vec<Case> {
    let [v4, v6] = BAD.map(|ip| address(ip, 80));
    // Valid objects of each kind except the IPv4 slice, which is invalid.
    let with = |endpoints: &[Value], over: Value| {
        let mut objects = bench.bad(json!({}));
        objects[1] = slice_of("bad", Family::V4, endpoints);
        merge(&mut objects[1], over);
        objects
    };
    let endpoint = bench.b.endpoint(Family::V4, 1);
    let of_wrong_family = json!({ "addresses": ["fd00:244:2::9"] });
    let port_0 = json!([
        { "name": "http", "protocol": "TCP", "port": 0 },
        { "name": "dns", "protocol": "UDP", "port": EchoPod::PORT },
    ]);
    vec![
        of_slice(
            with(std::slice::from_ref(&endpoint), json!({ "ports": port_0 })),
            ["ports[0].port", "invalid_value", "0 is not a port"],
            (Protocol::Udp, v4),
        ),
        of_slice(
            with(&[endpoint.clone(), of_wrong_family], json!({})),
            [
                "endpoints[1].addresses[0]",
                "wrong_family",
                "fd00:244:2::9 is IPv6: expected IPv4",
            ],
            (TCP, v4),
        ),
        // Not even the family is known: the last good version stays.
        of_slice(
            with(&[endpoint], json!({ "addressType": "IPv5" })),
            ["addressType", "malformed", "\"IPv5\""],
            (TCP, v4),
        ),
        of_slice(
            with(&[json!({ "addresses": ["10.244.2"] })], json!({})),
            ["endpoints[0].addresses[0]", "invalid_value", "\"10.244.2\""],
            (TCP, v6),
        ),
    ]
}

/// Objects as YAML documents.
fn documents(objects: &[Value]) -> String {
    objects
        .iter()
        .map(|object| format!("---\n{object}\n"))
        .collect()
}

fn check(bench: &mut Bench, case: &Case) {
    let Case { object, field, .. } = *case;
    let labels = format!("{{kind=\"{}\",reason=\"{}\"}}", case.kind, case.reason);
    let total = format!("portolan_controller_problems_total{labels}");
    let current = format!("portolan_controller_problems_current{labels}");
    let counted = bench.metric(&total);
    let start = bench.log_length();

    bench
        .cluster
        .write("bad.yaml", &documents(&case.objects))
        .unwrap();
    let problems = bench.wait_for_problems("objects");
    assert_eq!(problems.len(), 1, "{problems:#?}");
    let problem = &problems[0];
    assert!(
        problem.starts_with(&format!("{object}: {field}: ")),
        "{problem}"
    );
    assert!(problem.contains(case.says), "{problem}");
    println!("{problem}");

    // The same objects in a changed file: the message is not repeated.
    bench
        .cluster
        .write("bad.yaml", &(documents(&case.objects) + "# touched\n"))
        .unwrap();
    bench.change_something_else();
    assert_eq!(bench.problems("objects"), problems);
    assert!(bench.problems("files").is_empty());
    let warned = bench.logged(start, "WARN", &[]);
    assert_eq!(warned.len(), 1, "{warned:#?}");
    assert!(warned[0].contains(problem), "{warned:#?}");
    assert_eq!(bench.metric(&total), counted + 1, "{total}");
    assert_eq!(bench.metric(&current), 1, "{current}");

    bench.assert_good_works();
    for (protocol, to) in &case.works {
        answers(&bench.visitor.pod, *protocol, *to, "b");
    }

    let mended = documents(&bench.bad(json!({})));
    bench.cluster.write("bad.yaml", &mended).unwrap();
    bench.wait_until_solved();
    let solved = bench.logged(
        start,
        "INFO",
        &[object, "solved: ", &problem[object.len()..]],
    );
    assert_eq!(solved.len(), 1, "{solved:#?}");
    assert_eq!(bench.metric(&total), counted + 1, "{total}");
    assert_eq!(bench.metric(&current), 0, "{current}");
    bench.change_something_else();
    for ip in BAD {
        answers(&bench.visitor.pod, TCP, address(ip, 80), "b");
    }
}

#[test]
fn bad_fields_are_named_once_and_affect_no_other_object() {
    let Some(mut bench) = Bench::new("bad_fields_are_named_once_and_affect_no_other_object") else {
        return;
    };
    let good = documents(&bench.bad(json!({})));
    bench.cluster.put_text("bad.yaml", &good).unwrap();
    let (of_service, of_slice) = (service_cases(&bench), slice_cases(&bench));
    let others = other_cases(&bench);
    for case in of_service.iter().chain(&of_slice).chain(&others) {
        check(&mut bench, case);
    }
}

/// The Service `cut` and its slice, whose pod is `b`.
const CUT: &str = "\
apiVersion: v1
kind: Service
metadata:
  name: cut
  namespace: default
spec:
  clusterIP: 10.96.0.77
  clusterIPs: [10.96.0.77]
  ports:
  - {name: http, port: 80}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: cut-v4
  namespace: default
  labels: {kubernetes.io/service-name: cut}
addressType: IPv4
ports:
- {name: http, port: 8080}
endpoints:
- addresses: [10.244.2.2]
";

#[test]
fn a_truncated_file_keeps_its_last_objects() {
    let Some(mut bench) = Bench::new("a_truncated_file_keeps_its_last_objects") else {
        return;
    };
    assert_eq!(bench.b.pod.v4().to_string(), "10.244.2.2");
    bench.cluster.put_text("cut.yaml", CUT).unwrap();
    // The end of the file, the dump with the message, the beginning of the message, and the
    // position that it names.
    let cuts = [
        (
            "- addresses: [10.24",
            "objects",
            "EndpointSlice default/cut-v4: ",
            "/cut.yaml:22:",
        ),
        (
            "clusterIPs: [10.96",
            "objects",
            "Service default/cut: ",
            "/cut.yaml:8:",
        ),
        ("apiVersion: v1\nki", "files", "", "/cut.yaml:2:"),
    ];
    for (end, what, begins, place) in cuts {
        let start = bench.log_length();
        let cut = &CUT[..CUT.find(end).unwrap() + end.len()];
        bench.cluster.write("cut.yaml", cut).unwrap();
        let problems = bench.wait_for_problems(what);
        assert_eq!(problems.len(), 1, "{problems:#?}");
        let problem = &problems[0];
        println!("{problem}");
        assert!(
            problem.starts_with(begins) && problem.contains(place),
            "{problem}"
        );

        bench.change_something_else();
        assert_eq!(bench.problems(what), problems);
        let warned = bench.logged(start, "WARN", &[]);
        assert_eq!(warned.len(), 1, "{warned:#?}");
        assert!(warned[0].contains(problem), "{warned:#?}");
        let of_files = bench.metric(FILE_PROBLEMS);
        assert_eq!(of_files, u64::from(what == "files"), "{FILE_PROBLEMS}");
        bench.assert_good_works();
        answers(&bench.visitor.pod, TCP, address("10.96.0.77", 80), "b");

        bench.cluster.write("cut.yaml", CUT).unwrap();
        bench.wait_until_solved();
        bench.change_something_else();
        let solved = bench.logged(start, "INFO", &["solved: ", &problem[begins.len()..]]);
        assert_eq!(solved.len(), 1, "{solved:#?}");
        assert_eq!(bench.metric(FILE_PROBLEMS), 0);
        answers(&bench.visitor.pod, TCP, address("10.96.0.77", 80), "b");
    }
}
