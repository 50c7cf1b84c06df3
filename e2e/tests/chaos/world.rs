// SPDX-License-Identifier: Apache-2.0

//! Two nodes, three controllers on one machine, a real control plane beside them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use portolan_e2e::cluster::{Cluster, EchoPod, agent_is_ready, control, http_get};
use portolan_e2e::objects::{ports, service, slice_named};
use portolan_e2e::programs::{self, AGENT_ADMIN, Source, Trust, program};
use portolan_e2e::rig::{Host, Namespace, Process, Rig};
use portolan_e2e::servers::{ApiProxy, Servers, slice_path};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::churn::Churn;
use crate::observe::Observer;
use crate::traffic::{Targets, Traffic};

/// Long enough for anything on a guest that is emulated, on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// The number of controllers.
pub(crate) const REPLICAS: usize = 3;

const STEADY: [&str; 2] = ["10.96.0.11", "fd00:10:96::11"];
const CHURN: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

/// All processes of the test.
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
        let directory = TempDir::new().unwrap();
        let (rig, servers) = Servers::in_rig_or_skip(test, directory.path())?;
        let churn = Churn::new([rig.node(0), rig.node(1)]);
        let to = targets(&rig);
        let visitor = |number, name| EchoPod::new(rig.node(number), name).unwrap();
        let visitors = [visitor(0, "v0"), visitor(1, "v1"), visitor(1, "v2")];
        let nodes = rig.nodes().iter().map(|node| node.namespace().clone());
        let nodes: Vec<_> = nodes.collect();
        let IpAddr::V4(vip) = to.churn.ip() else {
            unreachable!("an IPv4 address");
        };
        let host = control(&rig);
        write_objects(host.namespace(), &servers, &churn);
        let api = ApiProxy::start(host, servers.kubeconfig(), directory.path()).unwrap();
        let start = |number| Some(replica(number, host, &servers, directory.path()));
        let replicas = (0..REPLICAS).map(start).collect();
        let agents = (0..2).map(|node| agent(node, REPLICAS, &rig, directory.path()));
        let agents = agents.collect();
        for node in rig.nodes() {
            agent_is_ready(node, LONG).unwrap();
        }
        Some(Self {
            observer: Observer::start(&nodes, vip),
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

    /// Changes endpoints, and waits until these nodes have programmed the change.
    pub(crate) fn change(&mut self, nodes: &[usize]) {
        self.try_change().unwrap();
        self.wait_for_newest(nodes);
    }

    /// Waits until new connections of these nodes go to the expected endpoints only.
    pub(crate) fn wait_for_newest(&self, nodes: &[usize]) {
        let stay = self.churn.stay.iter().map(|pod| pod.pod.v4());
        let expected: BTreeSet<_> = stay.chain(self.churn.rovers()).collect();
        for node in nodes {
            wait_for("the newest endpoints", LONG, || {
                (self.observer.present(*node) == expected).then_some(())
            })
            .unwrap_or_else(|error| {
                let present = self.observer.present(*node);
                let kernel = self.rig.node(*node).kernel_state().unwrap();
                panic!("node {node} has {present:?}, not {expected:?}: {error}; {kernel:#?}")
            });
        }
    }

    pub(crate) fn kill_replica(&mut self, number: usize) {
        self.replicas[number].take().unwrap().kill9().unwrap();
    }

    pub(crate) fn start_replica(&mut self, number: usize) {
        let replica = self.new_replica(number);
        self.replicas[number] = Some(replica);
    }

    fn new_replica(&self, number: usize) -> Process {
        let host = control(&self.rig);
        replica(number, host, &self.servers, self.directory.path())
    }

    pub(crate) fn is_ready(&self, number: usize) -> bool {
        self.answers(number, "/readyz")
    }

    pub(crate) fn answers(&self, number: usize, path: &str) -> bool {
        http_get(control(&self.rig).namespace(), admin_port(number), path).is_ok()
    }

    /// Returns `true` if a node's agent is connected, by its own metrics.
    pub(crate) fn is_connected(&self, number: usize) -> bool {
        let namespace = self.rig.node(number).namespace();
        let metrics = http_get(namespace, AGENT_ADMIN, "/metrics").unwrap();
        metrics.contains("\nportolan_agent_connected 1\n")
    }

    /// Cuts node 1 off from the controllers' machine, or connects it again.
    pub(crate) fn cut(&self, cut: bool) {
        let ends = [&**self.rig.node(1), control(&self.rig)];
        self.rig.cut(ends, cut).unwrap();
    }

    pub(crate) fn kill_api(&mut self) {
        self.servers.kill_api().unwrap();
    }

    pub(crate) fn start_api(&mut self) {
        let control = control(&self.rig).namespace().clone();
        let started = control.run(|| self.servers.start_api());
        started.unwrap().unwrap();
    }

    /// Stops the traffic, and compares each node with one that is programmed from scratch.
    pub(crate) fn finish(mut self) {
        self.traffic.stop();
        let looks = self.observer.stop();
        assert!(looks > 500, "only {looks} looks at the kernels");
        // A controller without any history.
        let fresh = self.new_replica(REPLICAS);
        self.replicas.push(Some(fresh));
        let namespace = control(&self.rig).namespace();
        wait_for("a fresh controller", LONG, || {
            self.is_ready(REPLICAS).then_some(())
        })
        .unwrap();
        for number in 0..2 {
            let path = format!("/debug/table/{}", Cluster::node_name(number));
            let expected = http_get(namespace, admin_port(REPLICAS), &path).unwrap();
            let expected: Value = serde_json::from_str(&expected).unwrap();
            assert!(expected["records"].as_array().unwrap().len() >= 4);
            let node = self.rig.node(number);
            let has = || -> Value {
                let has = http_get(node.namespace(), AGENT_ADMIN, "/debug/table").unwrap();
                serde_json::from_str(&has).unwrap()
            };
            // The endpoints over UDP, which are written last, may come later than those over TCP.
            let waited = wait_for("the newest table", LONG, || {
                (has() == expected).then_some(())
            });
            assert!(waited.is_ok(), "node {number}: {} != {expected}", has());
        }
        for number in 0..2 {
            self.compare_with_rebuild(number);
        }
    }

    fn compare_with_rebuild(&mut self, number: usize) {
        let node = self.rig.node(number);
        wait_for("the drains to end", LONG, || {
            let drained = node
                .kernel_state()
                .unwrap()
                .iter()
                .all(|line| !line.contains(" -w 0"));
            drained.then_some(())
        })
        .unwrap();
        let was = node.kernel_state().unwrap();
        self.agents[number].kill9().unwrap();
        let cleanup = program("portolan-agent").unwrap();
        node.exec(&[cleanup.to_str().unwrap(), "cleanup"]).unwrap();
        assert!(
            !node
                .kernel_state()
                .unwrap()
                .iter()
                .any(|line| line.contains(CHURN[0]))
        );
        self.agents[number] = agent(number, REPLICAS + 1, &self.rig, self.directory.path());
        agent_is_ready(node, LONG).unwrap();
        assert!(was.len() > 20, "{was:?}");
        assert_eq!(node.kernel_state().unwrap(), was, "node {number}");
    }
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

fn replica(number: usize, host: &Host, servers: &Servers, directory: &Path) -> Process {
    let source = Source::Kubernetes(servers.kubeconfig().to_owned());
    let mut command = programs::controller(&source, agents_port(number)).unwrap();
    Trust::Plaintext.of_controller(&mut command);
    let name = format!("controller{number}");
    Process::spawn(host.namespace(), &name, &mut command, directory).unwrap()
}

/// An agent that knows `replicas` controllers.
fn agent(number: usize, replicas: usize, rig: &Rig, directory: &Path) -> Process {
    let name = Cluster::node_name(number);
    let controller = |replica| SocketAddr::from((control(rig).v4(), agents_port(replica)));
    let controllers: Vec<_> = (0..replicas).map(controller).collect();
    let mut command = programs::agent(&name, &controllers, directory).unwrap();
    Trust::Plaintext.of_node(&name, &mut command);
    command.arg("--drain-timeout=5");
    let namespace = rig.node(number).namespace();
    Process::spawn(namespace, &name, &mut command, directory).unwrap()
}

/// A Service whose endpoints never change, and one whose endpoints change all the time.
fn write_objects(control: &Namespace, servers: &Servers, churn: &Churn) {
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
    let port = json!({ "name": port.0, "protocol": port.1, "port": EchoPod::PORT });
    let spec = json!({ "addressType": "IPv4", "ports": [port], "endpoints": endpoints });
    slice_named(service, suffix, spec)
}
