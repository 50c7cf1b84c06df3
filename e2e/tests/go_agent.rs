// SPDX-License-Identifier: Apache-2.0

//! An agent written in Go from the `.proto` file and `docs/protocol.md` follows a real controller.
//!
//! After each change its table has the hashes that the controller states for the node, computed from
//! the content that it holds.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use portolan_e2e::cluster::http_get_from;
use portolan_e2e::lane;
use portolan_e2e::programs::{self, Source, Trust};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A deadline that only a failure reaches.
const PATIENT: Duration = Duration::from_secs(60);
const NODE: &str = "node-a";

/// A program that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The agent in Go, built by `e2e/tools/build`. Without Go the test is skipped.
fn go_agent_or_skip(test: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/build");
    let built = Command::new(script).arg("go-agent").output().unwrap();
    if built.status.code() == Some(3) {
        lane::missing(test, "no Go to build the agent with");
        return None;
    }
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
    let output = String::from_utf8(built.stdout).unwrap();
    Some(Path::new(output.lines().last().unwrap()).join("go-agent"))
}

/// A controller with certificates, and the agent of one of its nodes.
struct World {
    directory: TempDir,
    port: u16,
    trust: Trust,
    controller: Option<Running>,
    _agent: Running,
}

impl World {
    fn start(program: &Path) -> Self {
        let directory = TempDir::new().unwrap();
        fs::create_dir(directory.path().join("objects")).unwrap();
        let certificates = directory.path().join("certificates");
        let trust = Trust::certify(&certificates, "127.0.0.1", &[NODE.to_owned()]).unwrap();
        let port = two_free_ports();
        let output = fs::File::create(directory.path().join("agent.log")).unwrap();
        let agent = Command::new(program)
            .arg(format!("--controller=127.0.0.1:{port}"))
            .arg(format!("--node-name={NODE}"))
            .arg("--tls-dir")
            .arg(certificates.join("nodes").join(NODE))
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            directory,
            port,
            trust,
            controller: None,
            _agent: Running(agent),
        }
    }

    fn start_controller(&mut self) {
        let source = Source::Files(self.directory.path().join("objects"));
        let mut command = programs::controller(&source, self.port).unwrap();
        self.trust.of_controller(&mut command);
        let log = self.directory.path().join("controller.log");
        let log = fs::File::options().create(true).append(true).open(log);
        let running = command.stderr(log.unwrap()).stdin(Stdio::null()).spawn();
        self.controller = Some(Running(running.unwrap()));
    }

    /// Replaces the file of a Service and its slice; no addresses delete it.
    fn put(&self, service: &str, addresses: &[Ipv4Addr]) {
        let path = self.directory.path().join("objects").join(service);
        let path = path.with_extension("json");
        if addresses.is_empty() {
            fs::remove_file(path).unwrap();
            return;
        }
        let number = service.len();
        let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "v1", "kind": "Service",
                "metadata": { "name": service, "namespace": "default" },
                "spec": {
                    "type": "LoadBalancer",
                    "clusterIP": format!("10.96.0.{number}"),
                    "externalTrafficPolicy": "Local",
                    "loadBalancerSourceRanges": ["192.0.2.0/24"],
                    "sessionAffinity": "ClientIP",
                    "ports": [{ "name": "http", "port": 80, "nodePort": 30000 + number }],
                },
                "status": { "loadBalancer": { "ingress": [{ "ip": format!("203.0.113.{number}") }] } },
            },
            {
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{service}-1"), "namespace": "default",
                    "labels": { "kubernetes.io/service-name": service },
                },
                "addressType": "IPv4",
                "ports": [{ "name": "http", "port": 8080 }],
                "endpoints": addresses.iter().enumerate().map(|(i, address)| json!({
                    "addresses": [address],
                    "nodeName": if i % 10 == 0 { NODE } else { "node-b" },
                })).collect::<Vec<_>>(),
            },
        ]});
        let temporary = path.with_extension("new");
        fs::write(&temporary, objects.to_string()).unwrap();
        fs::rename(temporary, path).unwrap();
    }

    fn debug(&self, dump: &str) -> Option<Value> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port + 1));
        let body = http_get_from(address, &format!("/debug/{dump}")).ok()?;
        serde_json::from_str(&body).ok()
    }

    /// Waits until the agent has exactly the node's table with `records` records. Returns the line
    /// that it printed for the table.
    fn agrees(&self, step: &str, records: usize) -> String {
        let waited = wait_for(step, PATIENT, || {
            let table = self.debug(&format!("table/{NODE}"))?;
            let standing = self.debug(&format!("diff/{NODE}"))?;
            let agreed = table["records"].as_array().map(Vec::len) == Some(records)
                && standing["records_equal"] == true
                && standing["own_equal"] == true
                && standing["programmed"] == standing["revision"];
            let line = agreed.then(|| self.last_commit())??;
            let nodes = self.debug("nodes")?;
            let status = &nodes["nodes"][0];
            let hash = |name: &str| status[name].as_str().map(|hash| format!("{name}={hash}"));
            let hashes = [hash("records_hash")?, hash("own_hash")?];
            hashes
                .iter()
                .all(|hash| line.contains(hash))
                .then_some(line)
        });
        let line = waited.unwrap_or_else(|error| panic!("{error}\n{}", self.output()));
        assert!(
            line.contains(&format!(" records={records} ")),
            "{step}: {line}"
        );
        assert!(line.contains(" wrong_content=0 "), "{step}: {line}");
        line
    }

    /// The reference of metrics is generated by a test that registers them separately. The running
    /// program must serve no others.
    fn serves_only_documented_metrics(&self) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port + 1));
        let served = http_get_from(address, "/metrics").unwrap();
        let page = include_str!("../../docs/reference/controller-metrics.md");
        let types = served
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "));
        let names: Vec<_> = types.filter_map(|rest| rest.split(' ').next()).collect();
        assert!(names.len() > 30, "{names:?}");
        for name in names {
            assert!(
                page.contains(&format!("| `{name}")),
                "{name} is not in docs/reference"
            );
        }
    }

    fn output(&self) -> String {
        fs::read_to_string(self.directory.path().join("agent.log")).unwrap()
    }

    fn last_commit(&self) -> Option<String> {
        let output = self.output();
        let mut commits = output.lines().filter(|line| line.starts_with("commit "));
        commits.next_back().map(str::to_owned)
    }
}

/// A free port whose successor is free as well.
fn two_free_ports() -> u16 {
    let pair = (20_000..32_000).step_by(2).find(|port| {
        let free = |port: u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
        free(*port).is_ok() && free(port + 1).is_ok()
    });
    pair.unwrap()
}

fn addresses(count: u8) -> Vec<Ipv4Addr> {
    (1..=count).map(|i| Ipv4Addr::new(10, 244, 0, i)).collect()
}

#[test]
fn a_go_agent_has_the_table_of_its_node_after_every_change() {
    let Some(program) = go_agent_or_skip("go_agent") else {
        return;
    };
    let mut world = World::start(&program);
    world.put("a", &addresses(3));
    world.put("big", &addresses(200));
    world.start_controller();
    let line = world.agrees("the snapshot", 2);
    assert!(line.contains(" snapshot=true "), "{line}");
    assert!(!line.contains(" overlays=0 "), "{line}");

    world.put("added", &addresses(1));
    let line = world.agrees("an added Service", 3);
    assert!(line.contains(" snapshot=false "), "{line}");

    // A record with so many destinations changes by a patch.
    let mut moved = addresses(201);
    moved.remove(7);
    world.put("big", &moved);
    world.agrees("an endpoint that moved", 3);

    world.put("a", &[]);
    world.agrees("a deleted Service", 2);

    // A new controller has a new epoch: hashes tell that the table is the same, or where it differs.
    world.controller = None;
    world.start_controller();
    let line = world.agrees("a controller that started anew", 2);
    assert!(line.contains(" snapshot=false "), "{line}");
    world.controller = None;
    world.put("while-away", &addresses(5));
    world.start_controller();
    world.agrees("a change while the controller was away", 3);
    world.serves_only_documented_metrics();
    let output = world.output();
    assert!(
        !output.contains("has hash"),
        "a table was dropped: {output}"
    );
}

#[test]
fn a_go_agent_computes_the_published_vectors() {
    let Some(program) = go_agent_or_skip("go_agent vectors") else {
        return;
    };
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol-vectors.json");
    let output = Command::new(program).arg("--vectors").arg(vectors).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
