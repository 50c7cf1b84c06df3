// SPDX-License-Identifier: Apache-2.0

//! Two nodes, two controllers and a relay, with certificates, and traffic that must not be
//! interrupted.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use portolan_e2e::cluster::{Cluster, EchoPod, agent_is_ready, control, http_get};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{ports, service, slices};
use portolan_e2e::programs::{self, AGENT_ADMIN, Source, program};
use portolan_e2e::rig::{Load, LoadConfig, Process, Protocol, Rig, RigConfig};
use portolan_e2e::wait::{wait_for, wait_with_pauses};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::churn::Churn;

/// While a program is away, most objects may change: the guard would hold their deletions back.
const GUARD: &str = "--deletion-guard-objects=1000";
/// Long enough for anything on an emulated guest of a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Limit of the drains' end. The agent deletes 1,000 real servers in 190 s, and the others wait at weight 0.
const DRAINS: Duration = Duration::from_secs(1200);
/// The pause between two reads of whole tables.
const LOOK: Duration = Duration::from_millis(50);

const STEADY: [&str; 2] = ["10.96.0.11", "fd00:10:96::11"];
const NODE_PORT: u16 = 30_081;

const REPLICA_PORTS: [u16; 3] = [9443, 9453, 9463];
const RELAY_PORT: u16 = 9473;

/// All processes and the rig. Fields drop in this order: clients before the servers they use.
pub(crate) struct World {
    loads: Vec<(&'static str, Load)>,
    _visitors: [EchoPod; 2],
    agents: Vec<Process>,
    relay: Process,
    replicas: Vec<Process>,
    stamps: Churn,
    pods: [EchoPod; 2],
    directory: TempDir,
    rig: Rig,
}

impl World {
    pub(crate) fn start_or_skip(test: &str) -> Option<Self> {
        if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
            return None;
        }
        let directory = TempDir::new().unwrap();
        let rig = Rig::new(RigConfig::CLUSTER).unwrap();
        let at = directory.path();
        std::fs::create_dir(at.join("objects")).unwrap();
        certify(&rig, at);
        let pod = |node, name| EchoPod::new(rig.node(node), name).unwrap();
        let pods = [pod(0, "a"), pod(1, "b")];
        let visitors = [pod(0, "v0"), pod(1, "v1")];
        let mut stamps = Churn::new();
        write(at, &pods, &mut stamps, &Churn::new());
        let replicas = [0, 1].map(|number| replica(number, &rig, at)).into();
        let relay = relay(&rig, at);
        let agents = (0..2).map(|node| agent(node, &rig, at)).collect();
        for node in rig.nodes() {
            agent_is_ready(node, LONG).unwrap();
        }
        Some(Self {
            loads: loads(&rig, &visitors),
            _visitors: visitors,
            agents,
            relay,
            replicas,
            stamps,
            pods,
            directory,
            rig,
        })
    }

    /// Names and ids of the processes that are never restarted.
    pub(crate) fn steady_processes(&self) -> Vec<(String, u32)> {
        vec![
            ("controller".to_owned(), self.replicas[0].id()),
            ("agent".to_owned(), self.agents[0].id()),
        ]
    }

    pub(crate) fn restart_agent(&mut self) {
        self.agents[1].kill9().unwrap();
        self.agents[1] = agent(1, &self.rig, self.directory.path());
        agent_is_ready(self.rig.node(1), LONG).unwrap();
    }

    pub(crate) fn restart_replica(&mut self) {
        self.replicas[1].kill9().unwrap();
        self.replicas[1] = replica(1, &self.rig, self.directory.path());
    }

    pub(crate) fn restart_relay(&mut self) {
        self.relay.kill9().unwrap();
        self.relay = relay(&self.rig, self.directory.path());
    }

    pub(crate) fn renew_certificates(&self) {
        certify(&self.rig, self.directory.path());
    }

    /// Writes all objects, with a new stamp.
    pub(crate) fn write(&mut self, churn: &Churn) {
        write(self.directory.path(), &self.pods, &mut self.stamps, churn);
    }

    /// Returns when both agents have the newest table of the controller that is never restarted.
    pub(crate) fn wait_for_newest(&self) {
        let stamp = self.stamps.stamped().to_string();
        for number in 0..2 {
            wait_with_pauses("the newest table", LONG, LOOK, || {
                let wanted = self.table_of(REPLICA_PORTS[0], number)?;
                let newest = wanted.to_string().contains(&stamp);
                (newest && self.agent_table(number)? == wanted).then_some(())
            })
            .unwrap_or_else(|error| panic!("node {number}: {error}"));
        }
    }

    fn table_of(&self, controller: u16, number: usize) -> Option<Value> {
        let path = format!("/debug/table/{}", Cluster::node_name(number));
        let namespace = control(&self.rig).namespace();
        serde_json::from_str(&http_get(namespace, controller + 1, &path).ok()?).ok()
    }

    fn agent_table(&self, number: usize) -> Option<Value> {
        let namespace = self.rig.node(number).namespace();
        serde_json::from_str(&http_get(namespace, AGENT_ADMIN, "/debug/table").ok()?).ok()
    }

    /// Returns when every load has had more answers; none may have failed.
    pub(crate) fn traffic_flows(&self) {
        for (name, load) in &self.loads {
            let before = load.answered();
            wait_for(name, LONG, || (load.answered() > before).then_some(())).unwrap();
            let failures = load.failures();
            assert!(failures.is_empty(), "{name}: {failures:?}");
        }
    }

    /// Ends the traffic, and compares tables and kernels with those made from scratch.
    pub(crate) fn finish(mut self) {
        for (name, load) in self.loads.drain(..) {
            let report = load.stop();
            println!(
                "{name}: {} requests, slowest {}",
                report.requests, report.slowest
            );
            assert!(report.failures.is_empty(), "{name}: {:?}", report.failures);
        }
        // A controller without any history.
        let fresh = replica(2, &self.rig, self.directory.path());
        self.replicas.push(fresh);
        for number in 0..2 {
            wait_with_pauses("the table from scratch", LONG, LOOK, || {
                (self.table_of(REPLICA_PORTS[2], number)? == self.agent_table(number)?)
                    .then_some(())
            })
            .unwrap_or_else(|error| panic!("node {number}: {error}"));
        }
        for number in 0..2 {
            self.compare_with_rebuild(number);
        }
    }

    fn compare_with_rebuild(&mut self, number: usize) {
        let node = self.rig.node(number);
        wait_with_pauses("the drains to end", DRAINS, LOOK, || {
            let state = node.kernel_state().ok()?;
            state
                .iter()
                .all(|line| !line.contains(" -w 0"))
                .then_some(())
        })
        .unwrap();
        let was = node.kernel_state().unwrap();
        assert!(was.iter().any(|line| line.contains(STEADY[0])), "{was:?}");
        self.agents[number].kill9().unwrap();
        let cleanup = program("portolan-agent").unwrap();
        node.exec(&[cleanup.to_str().unwrap(), "cleanup"]).unwrap();
        self.agents[number] = agent(number, &self.rig, self.directory.path());
        agent_is_ready(node, LONG).unwrap();
        wait_with_pauses("the kernel from scratch", LONG, LOOK, || {
            (node.kernel_state().ok()? == was).then_some(())
        })
        .unwrap_or_else(|error| {
            let now = node.kernel_state().unwrap();
            let (gone, new): (Vec<_>, Vec<_>) = (
                was.difference(&now).collect(),
                now.difference(&was).collect(),
            );
            panic!("node {number}: {error}: gone {gone:?}, new {new:?}")
        });
    }
}

/// Makes the authority if there is none, and new certificates for all.
fn certify(rig: &Rig, directory: &Path) {
    let server = control(rig).v4().to_string();
    let nodes = [0, 1].map(Cluster::node_name).join(",");
    let mut command = Command::new(program("portolan-controller").unwrap());
    command.args([
        "certs",
        "--server-name",
        &server,
        "--relay",
        &server,
        "--node",
        &nodes,
        "--dir",
    ]);
    let made = command.arg(directory.join("certs")).output().unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
}

fn address(rig: &Rig, port: u16) -> SocketAddr {
    (control(rig).v4(), port).into()
}

fn replica(number: usize, rig: &Rig, directory: &Path) -> Process {
    let source = Source::Files(directory.join("objects"));
    let mut command = programs::controller(&source, REPLICA_PORTS[number]).unwrap();
    command
        .arg("--tls-dir")
        .arg(directory.join("certs/controller"))
        .arg(GUARD);
    let namespace = control(rig).namespace();
    Process::spawn(
        namespace,
        &format!("controller{number}"),
        &mut command,
        directory,
    )
    .unwrap()
}

fn relay(rig: &Rig, directory: &Path) -> Process {
    let name = control(rig).v4().to_string();
    let certificate = directory.join("certs/relays").join(&name);
    let mut command = Command::new(program("portolan-controller").unwrap());
    command
        .args(["--source=controller", "--relay-name", &name])
        .arg(format!("--listen=[::]:{RELAY_PORT}"))
        .arg(format!("--admin-listen=[::]:{}", RELAY_PORT + 1))
        .arg("--tls-dir")
        .arg(&certificate)
        .arg("--upstream-tls-dir")
        .arg(&certificate)
        .arg(GUARD);
    for port in &REPLICA_PORTS[..2] {
        command.arg(format!("--upstream={}", address(rig, *port)));
    }
    Process::spawn(control(rig).namespace(), "relay", &mut command, directory).unwrap()
}

/// The agent of a node: the first one's connects to the controllers, the second one's to the relay.
fn agent(number: usize, rig: &Rig, directory: &Path) -> Process {
    let name = Cluster::node_name(number);
    let controllers: Vec<_> = match number {
        0 => REPLICA_PORTS.map(|port| address(rig, port)).into(),
        _ => vec![address(rig, RELAY_PORT)],
    };
    let mut command = programs::agent(&name, &controllers, directory).unwrap();
    let certificate = directory.join("certs/nodes").join(&name);
    command
        .arg("--tls-dir")
        .arg(certificate)
        .args(["--drain-timeout=5", GUARD]);
    let namespace = rig.node(number).namespace();
    Process::spawn(namespace, &name, &mut command, directory).unwrap()
}

fn write(directory: &Path, pods: &[EchoPod; 2], stamps: &mut Churn, churn: &Churn) {
    let spec = json!({ "type": "NodePort", "ports": ports(Some(NODE_PORT)) });
    let mut objects = vec![service("steady", STEADY, spec), stamps.stamp()];
    objects.extend(slices("steady", &[(&pods[0], 0), (&pods[1], 1)]));
    for number in 0..2 {
        let metadata = json!({ "name": Cluster::node_name(number) });
        objects.push(json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }));
    }
    objects.extend(churn.objects().cloned());
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    let objects = directory.join("objects");
    std::fs::write(objects.join(".all.json"), list.to_string()).unwrap();
    std::fs::rename(objects.join(".all.json"), objects.join("all.json")).unwrap();
}

fn loads(rig: &Rig, visitors: &[EchoPod; 2]) -> Vec<(&'static str, Load)> {
    let vip = SocketAddr::new(STEADY[0].parse().unwrap(), 80);
    let ports: Vec<SocketAddr> = rig
        .nodes()
        .iter()
        .map(|node| (node.v4(), NODE_PORT).into())
        .collect();
    let config = |protocol| LoadConfig {
        protocol,
        workers: 1,
        limit: 10_000_000,
        pause: Duration::from_millis(50),
        timeout: Duration::from_secs(10),
    };
    let load = |from, to: &[SocketAddr], protocol| Load::start(from, to, config(protocol)).unwrap();
    vec![
        ("node 0", load(&visitors[0].pod, &[vip], Protocol::Tcp)),
        ("node 1", load(&visitors[1].pod, &[vip], Protocol::Tcp)),
        ("node 0, UDP", load(&visitors[0].pod, &[vip], Protocol::Udp)),
        ("node ports", load(rig.client(), &ports, Protocol::Tcp)),
    ]
}
