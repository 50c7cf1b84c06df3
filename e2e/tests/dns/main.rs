//! A real CoreDNS that gets its records from us in each of the three ways answers what its own
//! kubernetes plugin answers: of the same objects, in a real kube-apiserver.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod agent;
mod ask;
mod differences;
mod fixtures;
mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ask::{Question, Seen, ask};
use hickory_proto::rr::RecordType;
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::wait_for;
use programs::{HOST, PATIENT, Running, controller, coredns_or_skip, etcd, free_ports, local, url};
use serde_json::json;

const MODES: [&str; 3] = ["disabled", "insecure", "verified"];

/// Who answers on which port.
struct Ports {
    /// The kubernetes plugin, by mode of Pods.
    plugin: [u16; 3],
    /// The grpc plugin, which asks our controllers, by mode of Pods.
    grpc: [u16; 3],
    files: u16,
    etcd: u16,
    etcd_itself: u16,
}

struct World {
    // Fields drop in this order: who watches the servers first.
    _controllers: Vec<Running>,
    _coredns: Running,
    _etcd: Running,
    servers: Servers,
    ports: Ports,
    _directory: tempfile::TempDir,
}

fn ports() -> Ports {
    let [a, b, c, d, e, f, files, etcd, etcd_itself] = free_ports().unwrap();
    Ports {
        plugin: [a, b, c],
        grpc: [d, e, f],
        files,
        etcd,
        etcd_itself,
    }
}

/// Where a controller answers.
fn socket(directory: &Path, mode: &str) -> String {
    format!("unix://{}/{mode}.sock", directory.display())
}

fn corefile(directory: &Path, kubeconfig: &Path, ports: &Ports) -> String {
    let outside = format!("file {}/db.interwebs interwebs.test", directory.display());
    let mut text = String::new();
    for (index, mode) in MODES.into_iter().enumerate() {
        let (plugin, grpc) = (ports.plugin[index], ports.grpc[index]);
        let socket = socket(directory, mode);
        text += &format!(
            ".:{plugin} {{\n bind {HOST}\n errors\n {outside}\n kubernetes cluster.local in-addr.arpa ip6.arpa {{\n  \
             kubeconfig {} test\n  pods {mode}\n }}\n}}\n.:{grpc} {{\n bind {HOST}\n errors\n grpc . {socket}\n}}\n",
            kubeconfig.display()
        );
    }
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
        let ports = ports();
        std::fs::write(directory.join("db.interwebs"), INTERWEBS).unwrap();
        let etcd = etcd(directory, ports.etcd_itself).unwrap();
        let start = |mode: &str| {
            let mut args = vec![
                format!("--dns-pods={mode}"),
                format!("--dns-bind-address={}", socket(directory, mode)),
                format!("--dns-upstream={}", local(ports.files)),
            ];
            if mode == "verified" {
                args.push(format!(
                    "--dns-zone-dir={}",
                    directory.join("zones").display()
                ));
                args.push("--dns-zone-interval=1".to_owned());
                args.push(format!("--dns-etcd-endpoint={}", url(ports.etcd_itself)));
            }
            controller(directory, mode, servers.kubeconfig(), &args).unwrap()
        };
        let controllers = MODES.into_iter().map(start).collect();
        // CoreDNS does not start without its files.
        let last = directory.join("zones/db.ip6.arpa");
        wait_for("zone files", PATIENT, || last.exists().then_some(())).unwrap();
        let text = corefile(directory, servers.kubeconfig(), &ports);
        std::fs::write(directory.join("Corefile"), text).unwrap();
        let mut command = Command::new(coredns);
        command.arg("-conf").arg(directory.join("Corefile"));
        let coredns = Running::start(directory, "coredns", &mut command).unwrap();
        Some(Self {
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
            let status = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions});
            let patch = json!({ "status": status }).to_string();
            let what = ["patch", "pod", pod, "--namespace", namespace];
            let how = ["--subresource", "status", "--type", "merge", "-p", &patch];
            self.servers
                .kubectl(&[&what[..], &how[..]].concat())
                .unwrap();
        }
    }

    /// Returns when a name has an answer, or none, in all ways.
    fn settle(&self, name: &str, has_answer: bool) {
        let question = Question {
            name: name.to_owned(),
            kind: RecordType::A,
        };
        let ports = &self.ports;
        let mut all = [
            &ports.plugin[..],
            &ports.grpc[..],
            &[ports.files, ports.etcd],
        ]
        .concat();
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

/// Two ways that are compared.
struct Comparison {
    what: String,
    ours: SocketAddr,
    theirs: SocketAddr,
    why: Why,
    reduce: Reduce,
}

impl Comparison {
    /// Asks both everything. Prints the counts; returns how many answers were equal.
    fn run(&self, questions: &BTreeSet<Question>) -> usize {
        let mut equal = 0;
        let mut explained: BTreeMap<&str, usize> = BTreeMap::new();
        let mut unexplained = Vec::new();
        for question in questions {
            let one = |server| ask(server, question, Duration::from_secs(10)).map(self.reduce);
            let (ours, theirs) = (one(self.ours).unwrap(), one(self.theirs).unwrap());
            if ours == theirs {
                equal += 1;
            } else if let Some(why) = (self.why)(question, &ours, &theirs) {
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

/// Without what etcd has in its own way: TTLs, weights, glue, and the SOA's numbers.
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

fn comparisons(ports: &Ports) -> Vec<Comparison> {
    let mut all: Vec<_> = (0..3)
        .map(|index| Comparison {
            what: format!("kubernetes plugin and grpc, pods {}", MODES[index]),
            ours: local(ports.grpc[index]),
            theirs: local(ports.plugin[index]),
            why: differences::from_plugin,
            reduce: |seen| seen,
        })
        .collect();
    all.push(Comparison {
        what: "zone files and grpc".to_owned(),
        ours: local(ports.grpc[2]),
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
        ours: local(ports.grpc[2]),
        theirs: local(ports.etcd),
        why: differences::from_etcd,
        reduce: data_only,
    });
    all
}

#[test]
fn coredns_answers_in_all_ways_what_its_kubernetes_plugin_answers() {
    let start = Instant::now();
    let Some(world) = World::start_or_skip("dns") else {
        return;
    };
    println!("all runs after {:.1} s", start.elapsed().as_secs_f32());
    world.apply(&fixtures::objects());
    world.set_addresses();
    world.settle("set-1.set.testns.svc.cluster.local.", true);
    world.settle("10-240-1-21.early.testns.svc.cluster.local.", true);
    world.settle("fd00-240--6.podns.pod.cluster.local.", false);

    let questions = fixtures::questions();
    let etcd_kinds = [
        RecordType::A,
        RecordType::AAAA,
        RecordType::SRV,
        RecordType::CNAME,
        RecordType::TXT,
        RecordType::PTR,
    ];
    let of_etcd = questions.iter().filter(|q| etcd_kinds.contains(&q.kind));
    let of_etcd: BTreeSet<_> = of_etcd.cloned().collect();
    for comparison in comparisons(&world.ports) {
        let asked = if comparison.what.starts_with("etcd") {
            &of_etcd
        } else {
            &questions
        };
        let equal = comparison.run(asked);
        assert!(equal >= 500, "{}: only {equal}", comparison.what);
    }

    // What changes while all run arrives in all ways.
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
    world.settle("svc1.testns.svc.cluster.local.", false);
    world.settle("ep1a.svc1.testns.svc.cluster.local.", false);
    for mut comparison in comparisons(&world.ports).into_iter().take(3) {
        comparison.why = differences::from_plugin_without_svc1;
        comparison.run(&questions);
    }
    println!("done after {:.1} s", start.elapsed().as_secs_f32());
}
