// SPDX-License-Identifier: Apache-2.0

//! A real CoreDNS that reads Portolan's records in each of the three ways gives the same answers as
//! its own kubernetes plugin, for the same objects of a real kube-apiserver.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod agent;
mod ask;
mod differences;
mod export;
mod fixtures;
mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use agent::Agent;
use ask::{Question, Seen, ask};
use hickory_proto::rr::RecordType;
use portolan_e2e::ports;
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::wait_for;
use programs::{
    HOST, PATIENT, Running, an_own_address, controller, coredns_or_skip, etcd, local, url,
};
use serde_json::json;

/// Equivalent settings of the plugin and of a controller.
struct Way {
    name: &'static str,
    zones: &'static str,
    /// The plugin's part of a Corefile.
    plugin: &'static str,
    /// The controller's flags.
    flags: &'static [&'static str],
}

const WAYS: [Way; 7] = [
    Way {
        name: "disabled",
        zones: "cluster.local",
        plugin: "pods disabled",
        flags: &["--dns-pods=disabled", NAME_SERVER],
    },
    Way {
        name: "insecure",
        zones: "cluster.local",
        plugin: "pods insecure",
        flags: &["--dns-pods=insecure", NAME_SERVER],
    },
    Way {
        name: "verified",
        zones: "cluster.local",
        plugin: "pods verified",
        flags: &["--dns-pods=verified", NAME_SERVER],
    },
    Way {
        name: "pod-names",
        zones: "cluster.local second.test",
        plugin: "pods verified\n  endpoint_pod_names\n  zonal\n  ttl 30",
        flags: &[
            "--dns-zone=second.test",
            "--dns-pods=verified",
            "--dns-endpoint-pod-names",
            "--dns-zonal",
            "--dns-ttl=30",
            NAME_SERVER,
        ],
    },
    Way {
        name: "ignore-empty",
        zones: "cluster.local",
        plugin: "ignore empty_service",
        flags: &["--dns-ignore-empty-service", NAME_SERVER],
    },
    Way {
        name: "namespaces",
        zones: "cluster.local",
        plugin: "pods verified\n  namespaces podns default",
        flags: &[
            "--dns-pods=verified",
            "--dns-namespace=podns",
            "--dns-namespace=default",
            NAME_SERVER,
        ],
    },
    // The plugin finds its own Service by its endpoints, so it does not find it here.
    Way {
        name: "no-endpoints",
        zones: "cluster.local",
        plugin: "pods insecure\n  noendpoints",
        flags: &["--dns-pods=insecure", "--dns-no-endpoints"],
    },
];

const NAME_SERVER: &str = "--dns-name-server=testns/name-servers";

/// The index of the way with zone files and etcd.
const EXPORTED: usize = 2;

/// The index of the way with an agent.
const COPIED: usize = 3;

/// The indexes of the ways without empty Services, with few Namespaces, and without endpoints.
const NOT_EMPTY: usize = 4;
const FEW_NAMESPACES: usize = 5;
const NO_ENDPOINTS: usize = 6;

/// The ports of all servers.
struct Ports {
    /// The kubernetes plugin.
    plugin: [u16; WAYS.len()],
    /// The grpc plugin, which queries the controllers.
    grpc: [u16; WAYS.len()],
    /// The grpc plugin, which queries the agent.
    agent: u16,
    /// The controller that the agent follows.
    agents: u16,
    files: u16,
    etcd: u16,
    etcd_itself: u16,
}

struct World {
    // Fields drop in this order: clients before the servers they use.
    _agent: Agent,
    _controllers: Vec<Running>,
    _coredns: Running,
    _etcd: Running,
    servers: Servers,
    ports: Ports,
    _directory: tempfile::TempDir,
}

fn choose_ports() -> Ports {
    let all: [u16; WAYS.len() + 5] = ports::reserve().unwrap();
    let (grpc, rest) = all.split_first_chunk().unwrap();
    let [agent, agents, files, etcd, etcd_itself] = *rest.first_chunk().unwrap();
    Ports {
        plugin: ports::reserve().unwrap(),
        grpc: *grpc,
        agent,
        agents,
        files,
        etcd,
        etcd_itself,
    }
}

/// The socket of a controller.
fn socket(directory: &Path, mode: &str) -> String {
    format!("unix://{}/{mode}.sock", directory.display())
}

fn corefile(directory: &Path, kubeconfig: &Path, ports: &Ports) -> String {
    let outside = format!("file {}/db.interwebs interwebs.test", directory.display());
    let mut text = String::new();
    for (index, way) in WAYS.iter().enumerate() {
        let (plugin, grpc) = (ports.plugin[index], ports.grpc[index]);
        let socket = socket(directory, way.name);
        // A plugin bound to all addresses looks for itself among the endpoints.
        text += &format!(
            ".:{plugin} {{\n errors\n {outside}\n kubernetes {} in-addr.arpa ip6.arpa {{\n  \
             kubeconfig {} test\n  {}\n }}\n}}\n.:{grpc} {{\n bind {HOST}\n errors\n grpc . {socket}\n}}\n",
            way.zones,
            kubeconfig.display(),
            way.plugin,
        );
    }
    let socket = agent::socket(directory);
    text += &format!(
        ".:{} {{\n bind {HOST}\n errors\n grpc . {socket}\n}}\n",
        ports.agent
    );
    for zone in ["cluster.local", "in-addr.arpa", "ip6.arpa"] {
        let (port, file) = (
            ports.files,
            directory.join("zones").join(format!("db.{zone}")),
        );
        text += &format!(
            "{zone}:{port} {{\n bind {HOST}\n errors\n file {} {{\n  reload 1s\n }}\n}}\n",
            file.display()
        );
    }
    let (files, etcd, itself) = (ports.files, ports.etcd, url(ports.etcd_itself));
    text + &format!(
        "interwebs.test:{files} {{\n bind {HOST}\n {outside}\n}}\n.:{etcd} {{\n bind {HOST}\n errors\n {outside}\n \
             etcd cluster.local in-addr.arpa ip6.arpa {{\n  path /skydns\n  endpoint {itself}\n }}\n}}\n"
    )
}

const INTERWEBS: &str = "$ORIGIN interwebs.test.\n@ 60 SOA ns hostmaster 1 60 60 60 60\n@ 60 NS ns\n\
    ns 60 A 192.0.2.53\next 60 A 192.0.2.80\n";

impl World {
    fn start_or_skip(test: &str) -> Option<Self> {
        let coredns = coredns_or_skip(test)?;
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path();
        let servers = Servers::start_or_skip(test, directory)?;
        let ports = choose_ports();
        std::fs::write(directory.join("db.interwebs"), INTERWEBS).unwrap();
        let etcd = etcd(directory, ports.etcd_itself).unwrap();
        let upstream = format!("--dns-upstream={}", local(ports.files));
        let start = |(index, way): (usize, &Way)| {
            let mut args = vec![
                format!("--dns-bind-address={}", socket(directory, way.name)),
                upstream.clone(),
            ];
            args.extend(way.flags.iter().map(|flag| (*flag).to_owned()));
            if index == EXPORTED {
                let zones = directory.join("zones");
                args.push(format!("--dns-zone-dir={}", zones.display()));
                args.push("--dns-zone-interval=1".to_owned());
                args.push(format!("--dns-etcd-endpoint={}", url(ports.etcd_itself)));
            }
            let listen = match index {
                COPIED => local(ports.agents),
                _ => local(0),
            };
            controller(directory, way.name, listen, servers.kubeconfig(), &args).unwrap()
        };
        let controllers = WAYS.iter().enumerate().map(start).collect();
        let agent = Agent::start(directory, ports.agents, &[upstream]);
        // CoreDNS does not start without its files.
        let last = directory.join("zones/db.ip6.arpa");
        wait_for("zone files", PATIENT, || last.exists().then_some(())).unwrap();
        let text = corefile(directory, servers.kubeconfig(), &ports);
        std::fs::write(directory.join("Corefile"), text).unwrap();
        let mut command = Command::new(coredns);
        command.arg("-conf").arg(directory.join("Corefile"));
        let coredns = Running::start(directory, "coredns", &mut command).unwrap();
        Some(Self {
            _agent: agent,
            _controllers: controllers,
            _coredns: coredns,
            _etcd: etcd,
            servers,
            ports,
            _directory: temporary,
        })
    }

    fn apply(&self, objects: &[serde_json::Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let apply = ["apply", "--server-side", "-f", "-"];
        self.servers
            .kubectl_with_input(&apply, &list.to_string())
            .unwrap();
    }

    fn set_addresses(&self) {
        for (namespace, pod, ip, ready) in fixtures::PODS {
            let ready = if ready { "True" } else { "False" };
            let conditions = json!([{"type": "Ready", "status": ready}]);
            let mut ips = ip.split(' ');
            let ip = ips.clone().next();
            let ips: Vec<_> = ips.by_ref().map(|ip| json!({"ip": ip})).collect();
            let status =
                json!({"phase": "Running", "podIP": ip, "podIPs": ips, "conditions": conditions});
            let patch = json!({ "status": status }).to_string();
            let what = ["patch", "pod", pod, "--namespace", namespace];
            let how = ["--subresource", "status", "--type", "merge", "-p", &patch];
            self.servers
                .kubectl(&[&what[..], &how[..]].concat())
                .unwrap();
        }
    }

    /// Returns when a name has an answer, or none, in all ways but `except`.
    fn settle(&self, name: &str, has_answer: bool, except: &[usize]) {
        let question = Question {
            name: name.to_owned(),
            kind: RecordType::A,
        };
        let ports = &self.ports;
        let rest = [ports.agent, ports.files, ports.etcd];
        let ways = (0..WAYS.len()).filter(|way| !except.contains(way));
        let ways = ways.flat_map(|way| [ports.plugin[way], ports.grpc[way]]);
        let mut all: Vec<_> = ways.chain(rest).collect();
        let waited = wait_for(name, PATIENT, || {
            all.retain(|port| {
                let seen = ask(local(*port), &question, Duration::from_secs(2));
                !seen.is_ok_and(|seen| seen.answers.is_empty() != has_answer)
            });
            all.is_empty().then_some(())
        });
        assert!(waited.is_ok(), "{waited:?}: {all:?}");
    }
}

type Why = fn(&Question, &Seen, &Seen) -> Option<&'static str>;
type Reduce = fn(Seen) -> Seen;

/// Two name servers whose answers are compared.
#[derive(Clone)]
struct Comparison {
    what: String,
    ours: SocketAddr,
    theirs: SocketAddr,
    why: Why,
    reduce: Reduce,
}

impl Comparison {
    /// Asks both all questions. A recent change may take until `deadline` to arrive at both.
    /// Prints the counts; returns how many answers were equal.
    fn run(&self, questions: &BTreeSet<Question>, deadline: Instant) -> usize {
        let mut equal = 0;
        let mut explained: BTreeMap<&str, usize> = BTreeMap::new();
        let mut unexplained = Vec::new();
        for question in questions {
            let one = |server| ask(server, question, Duration::from_secs(10)).map(self.reduce);
            let (ours, theirs, why) = loop {
                let (ours, theirs) = (one(self.ours).unwrap(), one(self.theirs).unwrap());
                let why = (self.why)(question, &ours, &theirs);
                if ours == theirs || why.is_some() || Instant::now() > deadline {
                    break (ours, theirs, why);
                }
            };
            if ours == theirs {
                equal += 1;
            } else if let Some(why) = why {
                *explained.entry(why).or_default() += 1;
            } else {
                unexplained.push(format!("{question}\n  ours   {ours}\n  theirs {theirs}"));
            }
        }
        println!(
            "{}: {} questions, {equal} equal",
            self.what,
            questions.len()
        );
        for (why, count) in explained {
            println!("  {count} differ: {why}");
        }
        assert!(
            unexplained.is_empty(),
            "{}: {} differ without a reason:\n{}",
            self.what,
            unexplained.len(),
            unexplained.join("\n")
        );
        equal
    }
}

/// Removes the parts that differ with etcd: TTLs, weights, glue, and the SOA's numbers.
fn data_only(mut seen: Seen) -> Seen {
    let shorten = |line: &String| {
        let mut words: Vec<_> = line.split(' ').collect();
        if words.len() == 8 && words[3] == "SRV" {
            words.drain(4..6);
        }
        words.remove(1);
        words.join(" ")
    };
    seen.answers = seen.answers.iter().map(shorten).collect();
    seen.authorities.clear();
    seen.additionals.clear();
    seen
}

/// With the kubernetes plugin: there must be no difference at all, but for addresses that only
/// CoreDNS knows.
fn with_plugin(ports: &Ports) -> Vec<Comparison> {
    let with = |index: usize, what: &str, ours: u16| Comparison {
        what: format!("kubernetes plugin and {what}, {}", WAYS[index].name),
        ours: local(ours),
        theirs: local(ports.plugin[index]),
        why: match index {
            NO_ENDPOINTS => differences::without_endpoints,
            _ => |_, _, _| None,
        },
        reduce: |seen| seen,
    };
    let grpc = ports.grpc.iter().enumerate();
    let mut all: Vec<_> = grpc
        .map(|(index, ours)| with(index, "grpc", *ours))
        .collect();
    all.push(with(COPIED, "grpc of an agent", ports.agent));
    all
}

/// Comparisons of zone files and of etcd with the gRPC answers of the same controller.
fn of_exports(ports: &Ports) -> Vec<Comparison> {
    let mut all = Vec::new();
    all.push(Comparison {
        what: "zone files and grpc".to_owned(),
        ours: local(ports.grpc[EXPORTED]),
        theirs: local(ports.files),
        why: differences::from_files,
        // The file plugin names the zone's servers in answers, and adds addresses in its own way.
        reduce: |mut seen| {
            seen.additionals.clear();
            if !seen.answers.is_empty() {
                seen.authorities.clear();
            }
            seen
        },
    });
    all.push(Comparison {
        what: "etcd and grpc".to_owned(),
        ours: local(ports.grpc[EXPORTED]),
        theirs: local(ports.etcd),
        why: differences::from_etcd,
        reduce: data_only,
    });
    all
}

#[test]
fn coredns_answers_equal_those_of_its_kubernetes_plugin() {
    let start = Instant::now();
    let Some(world) = World::start_or_skip("dns") else {
        return;
    };
    println!("all runs after {:.1} s", start.elapsed().as_secs_f32());
    world.apply(&fixtures::objects(&an_own_address().unwrap()));
    world.set_addresses();
    let without_headless = [FEW_NAMESPACES, NO_ENDPOINTS];
    world.settle(
        "set-1.set.testns.svc.cluster.local.",
        true,
        &without_headless,
    );
    world.settle(
        "_http._tcp.early.testns.svc.cluster.local.",
        true,
        &without_headless,
    );
    // The API server publishes no endpoint of its own here.
    world.settle("kubernetes.default.svc.cluster.local.", true, &[NOT_EMPTY]);
    world.settle("svc1.testns.svc.cluster.local.", true, &[FEW_NAMESPACES]);
    world.settle("fd00-240--6.podns.pod.cluster.local.", false, &[]);

    let exported = fixtures::questions_of_exports();
    for comparison in of_exports(&world.ports) {
        let equal = comparison.run(&exported, start);
        assert!(equal >= 500, "{}: only {equal}", comparison.what);
    }
    let asked = fixtures::questions();
    for (index, comparison) in with_plugin(&world.ports).iter().enumerate() {
        // Names of Pods differ in the first way only.
        let questions = if index == 0 { &exported } else { &asked };
        let equal = comparison.run(questions, start);
        let unequal = questions.len() - equal;
        assert!(
            equal >= 500 && (unequal == 0 || index == NO_ENDPOINTS),
            "{unequal}"
        );
    }
    let second = fixtures::questions_of("second.test.");
    let with_second = [world.ports.grpc[COPIED], world.ports.agent];
    for comparison in with_plugin(&world.ports) {
        if with_second.contains(&comparison.ours.port()) {
            comparison.run(&second, start);
        }
    }

    // A change at run time arrives in all ways.
    let delete = [
        "delete",
        "--namespace=testns",
        "service/svc1",
        "endpointslice/hdls1-b",
    ];
    world.servers.kubectl(&delete).unwrap();
    world
        .servers
        .kubectl(&["delete", "namespace", "emptyns"])
        .unwrap();
    world.settle("svc1.testns.svc.cluster.local.", false, &[]);
    world.settle("ep1a.svc1.testns.svc.cluster.local.", false, &[]);
    let arrived = Instant::now() + PATIENT;
    for comparison in [with_plugin(&world.ports), of_exports(&world.ports)].concat() {
        comparison.run(&exported, arrived);
    }
    println!("done after {:.1} s", start.elapsed().as_secs_f32());
}
