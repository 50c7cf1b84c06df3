//! Two nodes, three controllers on one machine, a real control plane beside them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use portolan_e2e::cluster::{Cluster, EchoPod, POD_RANGES, http_get, program};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{ports, service};
use portolan_e2e::rig::{Host, Process, Rig, RigConfig};
use portolan_e2e::servers::{ApiProxy, Servers, slice_path};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::churn::Churn;
use crate::observe::Observer;
use crate::traffic::{Targets, Traffic};

/// Long enough for anything on a guest that is emulated, on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// How many controllers there are.
pub(crate) const REPLICAS: usize = 3;

const STEADY: [&str; 2] = ["10.96.0.11", "fd00:10:96::11"];
const CHURN: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const AGENT_ADMIN: u16 = 10249;

/// All that runs.
pub(crate) struct World {
    // Fields drop in this order: clients before the servers they use.
    pub(crate) traffic: Traffic,
    pub(crate) observer: Observer,
    agents: Vec<Process>,
    replicas: Vec<Option<Process>>,
    churn: Churn,
    api: ApiProxy,
    servers: Servers,
    directory: TempDir,
    rig: Rig,
}

impl World {
    pub(crate) fn start_or_skip(test: &str) -> Option<Self> {
        if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
            return None;
        }
        let directory = TempDir::new().unwrap();
        let config = RigConfig {
            nodes: 2,
            clients: 2,
        };
        let rig = Rig::new(config).unwrap();
        let control = rig.clients()[1].namespace().clone();
        let servers = control
            .run(|| Servers::start_or_skip(test, directory.path()))
            .unwrap()?;
        let churn = Churn::new([rig.node(0), rig.node(1)]);
        let to = targets(&rig);
        let visitor = |number, name| EchoPod::new(rig.node(number), name).unwrap();
        let visitors = [visitor(0, "v0"), visitor(1, "v1")];
        let nodes = rig.nodes().iter().map(|node| node.namespace().clone());
        let IpAddr::V4(vip) = to.churn.ip() else {
            unreachable!("an IPv4 address");
        };
        write_objects(&control, &servers, &churn);
        let host = control_host(&rig);
        let api = ApiProxy::start(&host, servers.kubeconfig(), directory.path()).unwrap();
        let mut replicas = Vec::new();
        for number in 0..REPLICAS {
            replicas.push(Some(replica(
                number,
                &control_host(&rig),
                &servers,
                &directory,
            )));
        }
        let agents = (0..2).map(|node| agent(node, REPLICAS, &rig, &directory));
        let agents: Vec<_> = agents.collect();
        for node in rig.nodes() {
            wait_for("an agent to be ready", LONG, || {
                http_get(node.namespace(), AGENT_ADMIN, "/readyz").ok()
            })
            .unwrap();
        }
        Some(Self {
            observer: Observer::start(nodes.collect(), vip),
            traffic: Traffic::start(visitors, rig.client(), &to),
            agents,
            replicas,
            churn,
            api,
            servers,
            directory,
            rig,
        })
    }

    /// Endpoints come and go, in the API.
    pub(crate) fn try_change(&mut self) -> Result<()> {
        self.churn.advance();
        let written = self.write_slices();
        if written.is_err() {
            self.churn.take_back();
        }
        written
    }

    fn write_slices(&self) -> Result<()> {
        for (slice, endpoints) in [("tcp", self.churn.tcp()), ("udp", self.churn.udp())] {
            let path = slice_path(&format!("churn-{slice}"));
            self.api.patch(&path, &json!({ "endpoints": endpoints }))?;
        }
        Ok(())
    }

    /// Endpoints come and go, until it is so on these nodes.
    pub(crate) fn change(&mut self, nodes: &[usize]) {
        self.try_change().unwrap();
        self.wait_for_newest(nodes);
    }

    /// Returns when new connections of these nodes go where they should.
    pub(crate) fn wait_for_newest(&self, nodes: &[usize]) {
        let stay = self.churn.stay.iter().map(|pod| pod.pod.v4());
        let expected: BTreeSet<_> = stay.chain(self.churn.rovers()).collect();
        for node in nodes {
            wait_for("the newest endpoints", LONG, || {
                (self.observer.present(*node) == expected).then_some(())
            })
            .unwrap_or_else(|error| {
                let present = self.observer.present(*node);
                let kernel = kernel(self.rig.node(*node));
                panic!("node {node} has {present:?}, not {expected:?}: {error}; {kernel:#?}")
            });
        }
    }

    pub(crate) fn kill_replica(&mut self, number: usize) {
        self.replicas[number].take().unwrap().kill9().unwrap();
    }

    pub(crate) fn start_replica(&mut self, number: usize) {
        let host = control_host(&self.rig);
        let replica = replica(number, &host, &self.servers, &self.directory);
        self.replicas[number] = Some(replica);
    }

    pub(crate) fn is_ready(&self, number: usize) -> bool {
        self.answers(number, "/readyz")
    }

    pub(crate) fn answers(&self, number: usize, path: &str) -> bool {
        let control = control_host(&self.rig);
        http_get(control.namespace(), admin_port(number), path).is_ok()
    }

    /// Whether a node's agent has a stream, as it says itself.
    pub(crate) fn is_connected(&self, number: usize) -> bool {
        let namespace = self.rig.node(number).namespace();
        let metrics = http_get(namespace, AGENT_ADMIN, "/metrics").unwrap();
        metrics.contains("\nportolan_agent_connected 1\n")
    }

    /// Cuts node 1 off from the controllers' machine, or no more.
    pub(crate) fn cut(&self, cut: bool) {
        let ends = [&**self.rig.node(1), &self.rig.clients()[1]];
        self.rig.cut(ends, cut).unwrap();
    }

    pub(crate) fn kill_api(&mut self) {
        self.servers.kill_api().unwrap();
    }

    pub(crate) fn start_api(&mut self) {
        let control = self.rig.clients()[1].namespace().clone();
        let started = control.run(|| self.servers.start_api());
        started.unwrap().unwrap();
    }

    /// Ends all, and compares each node with one that is programmed from scratch.
    pub(crate) fn finish(mut self) {
        self.traffic.stop();
        let looks = self.observer.stop();
        assert!(looks > 100, "only {looks} looks at the kernels");
        // A controller that has seen nothing of it all.
        let host = control_host(&self.rig);
        let fresh = replica(REPLICAS, &host, &self.servers, &self.directory);
        self.replicas.push(Some(fresh));
        let namespace = host.namespace();
        wait_for("a fresh controller", LONG, || {
            http_get(namespace, admin_port(REPLICAS), "/readyz").ok()
        })
        .unwrap();
        for number in 0..2 {
            let path = format!("/debug/table/{}", Cluster::node_name(number));
            let expected = http_get(namespace, admin_port(REPLICAS), &path).unwrap();
            let expected: Value = serde_json::from_str(&expected).unwrap();
            assert!(expected["records"].as_array().unwrap().len() >= 4);
            let node = self.rig.node(number);
            let has = http_get(node.namespace(), AGENT_ADMIN, "/debug/table").unwrap();
            let has: Value = serde_json::from_str(&has).unwrap();
            assert_eq!(has, expected, "node {number}");
        }
        for number in 0..2 {
            self.compare_with_rebuild(number);
        }
    }

    fn compare_with_rebuild(&mut self, number: usize) {
        let node = self.rig.node(number);
        wait_for("the drains to end", LONG, || {
            let drained = kernel(node).iter().all(|line| !line.contains(" -w 0"));
            drained.then_some(())
        })
        .unwrap();
        let was = kernel(node);
        self.agents[number].kill9().unwrap();
        let cleanup = program("portolan-agent").unwrap();
        node.exec(&[cleanup.to_str().unwrap(), "cleanup"]).unwrap();
        assert!(!kernel(node).iter().any(|line| line.contains(CHURN[0])));
        self.agents[number] = agent(number, REPLICAS + 1, &self.rig, &self.directory);
        let namespace = node.namespace();
        wait_for("the agent to be ready", LONG, || {
            http_get(namespace, AGENT_ADMIN, "/readyz").ok()
        })
        .unwrap();
        assert!(was.len() > 20, "{was:?}");
        assert_eq!(kernel(node), was, "node {number}");
    }
}

/// All virtual servers, real servers and entries of sets, in words.
fn kernel(node: &Host) -> BTreeSet<String> {
    let servers = node.exec(&["ipvsadm", "-Sn"]).unwrap();
    let sets = node.exec(&["ipset", "save"]).unwrap();
    let entries = sets.lines().filter(|line| line.starts_with("add "));
    let lines = servers.lines().chain(entries);
    lines.map(str::to_owned).collect()
}

fn control_host(rig: &Rig) -> Host {
    rig.clients()[1].clone()
}

fn targets(rig: &Rig) -> Targets {
    let vip = |ips: [&str; 2]| SocketAddr::new(ips[0].parse().unwrap(), 80);
    let nodes = |port: u16| -> Vec<SocketAddr> {
        let nodes = rig.nodes().iter();
        nodes.map(|node| (node.v4(), port).into()).collect()
    };
    Targets {
        steady: vip(STEADY),
        churn: vip(CHURN),
        steady_ports: nodes(30081),
        churn_ports: nodes(30080),
    }
}

fn agents_port(number: usize) -> u16 {
    9443 + 10 * u16::try_from(number).unwrap()
}

fn admin_port(number: usize) -> u16 {
    agents_port(number) + 1
}

fn replica(number: usize, host: &Host, servers: &Servers, directory: &TempDir) -> Process {
    let mut command = Command::new(program("portolan-controller").unwrap());
    command
        .args(["--plaintext", "--source=kubernetes", "--kubeconfig"])
        .arg(servers.kubeconfig())
        .arg(format!("--listen=[::]:{}", agents_port(number)))
        .arg(format!("--admin-listen=[::]:{}", admin_port(number)));
    let name = format!("controller{number}");
    Process::spawn(host.namespace(), &name, &mut command, directory.path()).unwrap()
}

/// An agent that knows so many controllers.
fn agent(number: usize, replicas: usize, rig: &Rig, directory: &TempDir) -> Process {
    let name = Cluster::node_name(number);
    let mut command = Command::new(program("portolan-agent").unwrap());
    command
        .args(["--plaintext", "--drain-timeout=5"])
        .arg(format!("--node-name={name}"))
        .arg(format!("--cluster-cidr={POD_RANGES}"))
        .arg(format!("--admin-listen=[::]:{AGENT_ADMIN}"))
        .arg("--state-dir")
        .arg(directory.path().join(&name));
    for replica in 0..replicas {
        let (address, port) = (rig.clients()[1].v4(), agents_port(replica));
        command.arg(format!("--controller={address}:{port}"));
    }
    let namespace = rig.node(number).namespace();
    Process::spawn(namespace, &name, &mut command, directory.path()).unwrap()
}

/// A Service whose endpoints never change, and one whose endpoints change all the time.
fn write_objects(control: &portolan_e2e::rig::Namespace, servers: &Servers, churn: &Churn) {
    let mut objects: Vec<Value> = (0..2)
        .map(|number| {
            let metadata = json!({ "name": Cluster::node_name(number) });
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata })
        })
        .collect();
    let staying: Vec<_> = churn.staying().collect();
    for (name, ips, port) in [("steady", STEADY, 30081), ("churn", CHURN, 30080)] {
        let spec = json!({ "type": "NodePort", "ports": ports(Some(port)) });
        let mut object = service(name, ips, spec);
        object["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
        objects.push(object);
        objects.push(slice(name, "tcp", ("http", "TCP"), &staying));
        objects.push(slice(name, "udp", ("dns", "UDP"), &staying));
    }
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
    let apply = ["apply", "--server-side", "-f", "-"];
    let applied = control.run(|| servers.kubectl_with_input(&apply, &list));
    let applied = applied.unwrap().unwrap();
    ensure_all(&applied, objects.len()).unwrap();
}

fn ensure_all(said: &str, count: usize) -> Result<()> {
    let applied = said.lines().filter(|line| line.contains("applied"));
    ensure!(applied.count() == count, "{said}");
    Ok(())
}

fn slice(service: &str, suffix: &str, port: (&str, &str), endpoints: &[Value]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-{suffix}"),
            "namespace": "default",
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": "IPv4",
        "ports": [{ "name": port.0, "protocol": port.1, "port": EchoPod::PORT }],
        "endpoints": endpoints,
    })
}
