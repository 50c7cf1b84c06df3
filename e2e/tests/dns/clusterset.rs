// SPDX-License-Identifier: Apache-2.0

//! Names of imported Services: a real CoreDNS that reads Portolan's records in each way gives the answers of its own
//! kubernetes plugin with `multicluster`, on the ServiceImports and EndpointSlices that the controller wrote.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use portolan_e2e::cluster::program;
use portolan_e2e::ports;
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::wait_for;
use serde_json::json;

use crate::agent::{self, Agent};
use crate::ask::{Question, Seen, ask};
use crate::compare::{Comparison, Why, data_only};
use crate::differences::{from_etcd, from_files};
use crate::fixtures::clusterset as fixtures;
use crate::programs::{HOST, PATIENT, Running, coredns_or_skip, etcd, local, url};
use crate::questions;

const ZONE: &str = "clusterset.local.";
/// The cluster whose imports are asked for.
const HERE: &str = "eu-1";

/// Ports of the name servers.
struct Ports {
    plugin: u16,
    grpc: u16,
    agent: u16,
    files: u16,
    etcd: u16,
    etcd_itself: u16,
    /// The controller's, for agents.
    agents: u16,
}

struct World {
    // Fields drop in this order: clients before the servers they use.
    _agent: Agent,
    _controller: Running,
    _coredns: Option<Running>,
    _etcd: Running,
    servers: Servers,
    ports: Ports,
    coredns: PathBuf,
    directory: tempfile::TempDir,
}

impl World {
    fn start_or_skip() -> Option<Self> {
        let test = "dns clusterset";
        let coredns = coredns_or_skip(test)?;
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path();
        let servers = Servers::start_or_skip(test, directory)?;
        let [plugin, grpc, agent, files, etcd_port, etcd_itself, agents] =
            ports::reserve().unwrap();
        let ports = Ports {
            plugin,
            grpc,
            agent,
            files,
            etcd: etcd_port,
            etcd_itself,
            agents,
        };
        let _etcd = etcd(directory, ports.etcd_itself).unwrap();
        fs::write(directory.join("policy.yaml"), fixtures::policy(directory)).unwrap();
        fs::write(directory.join("us-1.yaml"), fixtures::of_files()).unwrap();
        let controller = controller(directory, &ports);
        let agent = Agent::of_cluster(directory, ports.agents, HERE, &[]);
        Some(Self {
            _agent: agent,
            _controller: controller,
            _coredns: None,
            _etcd,
            servers,
            ports,
            coredns,
            directory: temporary,
        })
    }

    /// Has CoreDNS serve these parts of a Corefile.
    fn serve(&mut self, name: &str, parts: &str) {
        let directory = self.directory.path();
        let path = directory.join(name);
        fs::write(&path, parts).unwrap();
        let mut command = Command::new(&self.coredns);
        command.arg("-conf").arg(path);
        self._coredns = Some(Running::start(directory, name, &mut command).unwrap());
    }

    fn apply(&self, objects: &[serde_json::Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let apply = ["apply", "--server-side", "-f", "-"];
        let text = list.to_string();
        self.servers.kubectl_with_input(&apply, &text).unwrap();
    }

    /// Returns when a question has an answer, or none, in all ways.
    fn settle(&self, question: &Question, has_answer: bool) {
        let ports = &self.ports;
        let mut all = vec![
            ports.plugin,
            ports.grpc,
            ports.agent,
            ports.files,
            ports.etcd,
        ];
        let waited = wait_for(&question.to_string(), PATIENT, || {
            all.retain(|port| {
                let seen = ask(local(*port), question, Duration::from_secs(2));
                !seen.is_ok_and(|seen| seen.answers.is_empty() != has_answer)
            });
            all.is_empty().then_some(())
        });
        assert!(waited.is_ok(), "{waited:?}: {all:?}");
    }

    fn comparisons(&self) -> [Comparison; 4] {
        let ports = &self.ports;
        let of = |what: &str, ours: u16, theirs: u16, why: Why| Comparison {
            what: format!("clusterset: {what}"),
            ours: local(ours),
            theirs: local(theirs),
            why,
            reduce: |seen| seen,
        };
        [
            of("grpc and plugin", ports.grpc, ports.plugin, from_plugin),
            of("an agent and grpc", ports.agent, ports.grpc, |_, _, _| None),
            Comparison {
                reduce: |mut seen| {
                    seen.additionals.clear();
                    if !seen.answers.is_empty() {
                        seen.authorities.clear();
                    }
                    seen
                },
                ..of("zone file and grpc", ports.grpc, ports.files, in_file)
            },
            Comparison {
                reduce: data_only,
                ..of("etcd and grpc", ports.grpc, ports.etcd, from_etcd)
            },
        ]
    }
}

fn controller(directory: &Path, ports: &Ports) -> Running {
    let mut command = Command::new(program("portolan-controller").unwrap());
    command
        .args(["--source=clusters", "--plaintext", "--file-poll=100ms"])
        .args(["--admin-listen=127.0.0.1:0", "--debug-listen="])
        .arg(format!("--listen={}", local(ports.agents)))
        .arg(format!(
            "--policy-file={}",
            directory.join("policy.yaml").display()
        ))
        .args([
            "--dns-clusterset-zone=clusterset.local",
            "--dns-zone-interval=1",
        ])
        .arg(format!(
            "--dns-clusterset-listen={HERE}={}",
            socket(directory)
        ))
        .arg(format!(
            "--dns-zone-dir={}",
            directory.join("zones").display()
        ))
        .arg(format!("--dns-etcd-endpoint={}", url(ports.etcd_itself)));
    Running::start(directory, "controller", &mut command).unwrap()
}

fn socket(directory: &Path) -> String {
    format!("unix://{}/clusterset.sock", directory.display())
}

fn corefile(directory: &Path, kubeconfig: &Path, ports: &Ports) -> String {
    let file = directory
        .join("zones")
        .join(HERE)
        .join("db.clusterset.local");
    let server = |port: u16, rest: String| format!(".:{port} {{\n errors\n {rest}\n}}\n");
    let bound = |port: u16, rest: String| server(port, format!("bind {HOST}\n {rest}"));
    let plugin = format!(
        "kubernetes clusterset.local {{\n  kubeconfig {} test\n  multicluster clusterset.local\n }}",
        kubeconfig.display()
    );
    let etcd = format!("path /skydns-{HERE}\n  endpoint {}", url(ports.etcd_itself));
    [
        server(ports.plugin, plugin),
        bound(ports.grpc, format!("grpc . {}", socket(directory))),
        bound(ports.agent, format!("grpc . {}", agent::socket(directory))),
        bound(
            ports.files,
            format!(
                "file {} clusterset.local {{\n  reload 1s\n }}",
                file.display()
            ),
        ),
        bound(
            ports.etcd,
            format!("etcd clusterset.local {{\n  {etcd}\n }}"),
        ),
    ]
    .concat()
}

/// Reason why answers may differ from the plugin's. `None` if they must be equal.
fn from_plugin(question: &Question, ours: &Seen, theirs: &Seen) -> Option<&'static str> {
    let name = question.name.to_lowercase();
    if name == format!("dns-version.{ZONE}") && question.kind == RecordType::TXT {
        let version = |seen: &Seen| seen.answers.iter().any(|line| line.ends_with(" 1.0.0"));
        return (version(ours) && !version(theirs))
            .then_some("the version of the MCS API's schema");
    }
    let glue = question.kind == RecordType::NS && ours.answers == theirs.answers;
    let is_server = name.starts_with("ns.dns.");
    let address = is_server && [RecordType::A, RecordType::AAAA].contains(&question.kind);
    (glue || address).then_some("only CoreDNS knows the addresses of its machine")
}

fn in_file(question: &Question, grpc: &Seen, file: &Seen) -> Option<&'static str> {
    let is_cluster = question.name.starts_with("eu-1.") || question.name.starts_with("us-1.");
    let exists = file.is_nothing(ResponseCode::NoError);
    if is_cluster && grpc.is_nothing(ResponseCode::NXDomain) && exists {
        return Some("a name with others below it exists (RFC 8020)");
    }
    from_files(question, grpc, file)
}

fn crds() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/build");
    let built = Command::new(script).arg("mcs").output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let said = String::from_utf8(built.stdout).unwrap();
    let printer = Path::new(said.trim().lines().last().unwrap()).join("mcs");
    String::from_utf8(Command::new(printer).output().unwrap().stdout).unwrap()
}

#[test]
fn names_of_imports_equal_those_of_coredns_on_the_objects_that_are_written() {
    let start = Instant::now();
    let Some(mut world) = World::start_or_skip() else {
        return;
    };
    let apply = ["apply", "--server-side", "-f", "-"];
    world.servers.kubectl_with_input(&apply, &crds()).unwrap();

    // The cluster has no kubeconfig yet: a missing name would be a lie.
    let directory = world.directory.path().to_owned();
    let grpc = format!(
        ".:{} {{\n bind {HOST}\n errors\n grpc . {}\n}}\n",
        world.ports.grpc,
        socket(&directory)
    );
    world.serve("waiting", &grpc);
    let web = Question::a(&format!("web.testns.svc.{ZONE}"));
    let waiting = wait_for("CoreDNS", PATIENT, || {
        ask(local(world.ports.grpc), &web, Duration::from_secs(2)).ok()
    });
    assert_eq!(waiting.unwrap().code, ResponseCode::ServFail);

    world.apply(&fixtures::of_api());
    fs::copy(
        world.servers.kubeconfig(),
        directory.join("eu-1.kubeconfig"),
    )
    .unwrap();
    let file = directory
        .join("zones")
        .join(HERE)
        .join("db.clusterset.local");
    wait_for("a zone file", PATIENT, || file.exists().then_some(())).unwrap();
    let text = corefile(&directory, world.servers.kubeconfig(), &world.ports);
    world.serve("Corefile", &text);
    for name in fixtures::LAST {
        world.settle(&Question::a(&format!("{name}.testns.svc.{ZONE}")), true);
    }
    println!("settled after {:.1} s", start.elapsed().as_secs_f32());
    let asked = questions::of_clusterset(ZONE);
    let exported = questions::of_clusterset_exports(ZONE);
    let of_way = [&asked, &asked, &exported, &exported];
    // The controller writes EndpointSlices one by one, those of `plain` after those of `LAST`.
    let written = Instant::now() + PATIENT;
    for (comparison, questions) in world.comparisons().iter().zip(of_way) {
        let equal = comparison.run(questions, written);
        assert!(equal >= 200, "{}: only {equal}", comparison.what);
    }
    has_no_cluster(&world, &asked);

    // What leaves at run time leaves in all ways, and what another cluster has stays.
    let delete = ["delete", "--namespace=testns", "endpointslice/db-a"];
    world.servers.kubectl(&delete).unwrap();
    world.settle(
        &Question::a(&format!("db-0.eu-1.db.testns.svc.{ZONE}")),
        false,
    );
    world.settle(
        &Question::a(&format!("db-0.us-1.db.testns.svc.{ZONE}")),
        true,
    );
    let arrived = Instant::now() + PATIENT;
    for (comparison, questions) in world.comparisons().iter().zip(of_way) {
        comparison.run(questions, arrived);
    }
    println!("done after {:.1} s", start.elapsed().as_secs_f32());
}

/// `CLUSTER.SVC.NS` has no answer in any way.
fn has_no_cluster(world: &World, asked: &BTreeSet<Question>) {
    let of_cluster = asked
        .iter()
        .filter(|question| question.name.starts_with("us-1.db."));
    let ports = &world.ports;
    for question in of_cluster.filter(|question| question.kind != RecordType::SOA) {
        for port in [ports.grpc, ports.agent, ports.files, ports.etcd] {
            let seen = ask(local(port), question, Duration::from_secs(5)).unwrap();
            assert!(seen.answers.is_empty(), "{question}: {seen}");
        }
    }
}
