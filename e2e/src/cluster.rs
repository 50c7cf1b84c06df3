// SPDX-License-Identifier: Apache-2.0

//! A cluster of namespaces with the real programs in it: one controller, an agent on each node.
//!
//! The controller runs on a machine of its own on the LAN (the rig's last client), so that killing
//! it takes nothing else along.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use crate::programs::program;
use crate::programs::{self, AGENT_ADMIN, Source, Trust};
use crate::rig::{Family, Host, Namespace, Node, Process, Protocol, Rig, RigConfig};
use crate::wait::wait_for;

/// Long enough for anything on a guest that is emulated, on a busy machine.
pub const PATIENT: Duration = Duration::from_secs(180);

/// The address ranges of pods, in all clusters of the rig.
pub const POD_RANGES: &str = "10.244.0.0/16,fd00:244::/32";

const AGENTS_PORT: u16 = 9443;
const CONTROLLER_ADMIN: u16 = AGENTS_PORT + 1;

/// The programs, in a rig.
#[derive(Debug)]
pub struct Cluster {
    agents: Vec<Option<Process>>,
    controller: Option<Process>,
    source: Source,
    trust: Trust,
    directory: TempDir,
    /// The agents' `--dataplane`.
    dataplane: &'static str,
    /// The machines.
    pub rig: Rig,
}

impl Cluster {
    /// Two nodes named `node1` and `node2`, an outside client, a controller on files.
    pub fn new() -> Result<Self> {
        Self::on("ipvs")
    }

    /// The same with agents that program another dataplane.
    pub fn on(dataplane: &'static str) -> Result<Self> {
        let (directory, source) = files()?;
        let rig = Rig::new(RigConfig::CLUSTER)?;
        let mut cluster = Self::controller_alone(rig, directory, source, Trust::Plaintext)?;
        cluster.dataplane = dataplane;
        cluster.start_agents()
    }

    /// The same with certificates, in [`Self::certificates`].
    pub fn with_certificates() -> Result<Self> {
        let (directory, source) = files()?;
        let rig = Rig::new(RigConfig::CLUSTER)?;
        let trust = certify(&rig, directory.path())?;
        Self::start(rig, directory, source, trust)
    }

    /// The programs in a rig of which the last client becomes the controller's machine.
    pub fn with(rig: Rig, source: Source) -> Result<Self> {
        Self::start(rig, TempDir::new()?, source, Trust::Plaintext)
    }

    fn start(rig: Rig, directory: TempDir, source: Source, trust: Trust) -> Result<Self> {
        Self::controller_alone(rig, directory, source, trust)?.start_agents()
    }

    fn start_agents(mut self) -> Result<Self> {
        for number in 0..self.rig.nodes().len() {
            self.start_agent(number)?;
        }
        self.wait_until_programmed(0)?;
        Ok(self)
    }

    /// The same with a controller alone; agents come by [`Self::start_agent`].
    pub fn without_agents(rig: Rig, source: Source) -> Result<Self> {
        let directory = TempDir::new()?;
        std::fs::create_dir(directory.path().join("objects"))?;
        Self::controller_alone(rig, directory, source, Trust::Plaintext)
    }

    fn controller_alone(
        rig: Rig,
        directory: TempDir,
        source: Source,
        trust: Trust,
    ) -> Result<Self> {
        let mut cluster = Self {
            agents: rig.nodes().iter().map(|_| None).collect(),
            controller: None,
            source,
            trust,
            directory,
            dataplane: "ipvs",
            rig,
        };
        cluster.start_controller()?;
        Ok(cluster)
    }

    /// Has the agents that start from now on program another dataplane.
    #[must_use]
    pub fn programming(self, dataplane: &'static str) -> Self {
        Self { dataplane, ..self }
    }

    /// As [`Self::programming`], in place.
    pub fn program(&mut self, dataplane: &'static str) {
        self.dataplane = dataplane;
    }

    /// The name of a node, by number.
    #[must_use]
    pub fn node_name(number: usize) -> String {
        format!("node{}", number + 1)
    }

    /// The machine that the controller runs on.
    ///
    /// # Panics
    /// If the rig has no clients.
    #[must_use]
    pub fn control(&self) -> &Host {
        control(&self.rig)
    }

    /// The directory of logs and objects.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The directory from which the controller reads objects.
    #[must_use]
    pub fn objects(&self) -> PathBuf {
        objects(self.directory.path())
    }

    /// The directory of certificates, if the cluster has any: `controller`, `nodes/NODE`, `ca`.
    #[must_use]
    pub fn certificates(&self) -> PathBuf {
        certificates(self.directory())
    }

    /// Replaces all certificates by new ones of the same authority.
    pub fn renew_certificates(&self) -> Result<()> {
        certify(&self.rig, self.directory()).map(|_| ())
    }

    /// The address at which agents reach the controller.
    #[must_use]
    pub fn agents_address(&self) -> SocketAddr {
        (self.control().v4(), AGENTS_PORT).into()
    }

    /// Starts the controller.
    pub fn start_controller(&mut self) -> Result<()> {
        self.start_controller_with(&[])
    }

    /// Starts the controller with more arguments.
    pub fn start_controller_with(&mut self, args: &[&str]) -> Result<()> {
        let mut command = programs::controller(&self.source, AGENTS_PORT)?;
        self.trust.of_controller(&mut command);
        command.args(args);
        let namespace = self.control().namespace().clone();
        let process = Process::spawn(&namespace, "controller", &mut command, self.directory())?;
        self.controller = Some(process);
        Ok(())
    }

    /// Starts the agent of a node.
    pub fn start_agent(&mut self, number: usize) -> Result<()> {
        self.start_agent_with(number, &[])
    }

    /// Starts the agent of a node with more arguments.
    pub fn start_agent_with(&mut self, number: usize, args: &[&str]) -> Result<()> {
        self.start_agent_by(number, |command| {
            command.args(args);
        })
    }

    /// Starts the agent of a node by a command that `change` may modify.
    pub fn start_agent_by(
        &mut self,
        number: usize,
        change: impl FnOnce(&mut Command),
    ) -> Result<()> {
        self.start_agent_of(self.agents_address(), number, change)
    }

    /// The same of another controller than that of the cluster.
    pub fn start_agent_of(
        &mut self,
        controller: SocketAddr,
        number: usize,
        change: impl FnOnce(&mut Command),
    ) -> Result<()> {
        let name = Self::node_name(number);
        let mut command = programs::agent(&name, &[controller], self.directory())?;
        command.arg(format!("--dataplane={}", self.dataplane));
        self.trust.of_node(&name, &mut command);
        change(&mut command);
        let namespace = self.rig.node(number).namespace().clone();
        let process = Process::spawn(&namespace, &name, &mut command, self.directory())?;
        self.agents[number] = Some(process);
        Ok(())
    }

    /// The controller's process.
    pub fn controller(&mut self) -> Result<&mut Process> {
        self.controller
            .as_mut()
            .context("the controller was not started")
    }

    /// The process of a node's agent.
    pub fn agent(&mut self, number: usize) -> Result<&mut Process> {
        self.agents[number]
            .as_mut()
            .context("the agent was not started")
    }

    /// Replaces the objects of one file atomically. Returns when every node has programmed the change.
    ///
    /// # Errors
    /// If nothing changed for the nodes, since no revision follows.
    pub fn put(&self, file: &str, objects: &[Value]) -> Result<()> {
        self.put_text(
            file,
            &json!({ "kind": "List", "items": objects }).to_string(),
        )
    }

    /// As [`Self::put`], with the text of the file.
    pub fn put_text(&self, file: &str, text: &str) -> Result<()> {
        let before = self.revision()?;
        self.write(file, text)?;
        wait_for("a new revision", PATIENT, || {
            (self.revision().ok()? > before).then_some(())
        })?;
        self.wait_until_programmed(before + 1)
    }

    /// Writes a file of objects, atomically, and does not wait.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let hidden = self.objects().join(format!(".{file}"));
        std::fs::write(&hidden, text)?;
        std::fs::rename(hidden, self.objects().join(file))?;
        Ok(())
    }

    /// The newest revision of the tables.
    pub fn revision(&self) -> Result<u64> {
        let nodes = self.nodes()?;
        nodes["revision"].as_u64().context("no revision")
    }

    /// The controller's dump of its nodes.
    pub fn nodes(&self) -> Result<Value> {
        self.controller_debug("nodes")
    }

    /// A dump of the controller.
    pub fn controller_debug(&self, dump: &str) -> Result<Value> {
        let text = http_get(
            self.control().namespace(),
            CONTROLLER_ADMIN,
            &format!("/debug/{dump}"),
        )?;
        Ok(serde_json::from_str(&text)?)
    }

    /// A dump of a node's agent.
    pub fn agent_debug(&self, number: usize, dump: &str) -> Result<Value> {
        let namespace = self.rig.node(number).namespace();
        let text = http_get(namespace, AGENT_ADMIN, &format!("/debug/{dump}"))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The controller's metrics.
    pub fn controller_metrics(&self) -> Result<String> {
        http_get(self.control().namespace(), CONTROLLER_ADMIN, "/metrics")
    }

    /// The metrics of a node's agent.
    pub fn agent_metrics(&self, number: usize) -> Result<String> {
        http_get(self.rig.node(number).namespace(), AGENT_ADMIN, "/metrics")
    }

    /// Returns when every agent is connected and has programmed the newest revision, which is at
    /// least this one, without errors.
    pub fn wait_until_programmed(&self, revision: u64) -> Result<()> {
        let names: Vec<_> = (0..self.agents.len()).map(Self::node_name).collect();
        let waited = wait_for("all nodes to program", PATIENT, || {
            let dump = self.nodes().ok()?;
            let head = dump["revision"].as_u64().filter(|head| *head >= revision)?;
            let good = |name: &String| {
                dump["nodes"].as_array().into_iter().flatten().any(|node| {
                    node["node"].as_str() == Some(name)
                        && node["connected"] == true
                        && node["programmed"].as_u64() == Some(head)
                        && node["errors_total"] == 0
                })
            };
            names.iter().all(good).then_some(())
        });
        waited.with_context(|| match self.nodes() {
            Ok(dump) => format!("nodes: {dump:#}"),
            Err(error) => format!("the controller does not answer: {error}"),
        })
    }

    /// Returns when a node's agent, just started, has programmed a table. The controller's list
    /// may still show the state of its predecessor.
    pub fn wait_until_ready(&self, number: usize) -> Result<()> {
        agent_is_ready(self.rig.node(number), PATIENT)
    }

    /// Runs the agent's cleanup on a node; its agent must not run.
    pub fn clean_up(&self, number: usize) -> Result<String> {
        let agent = program("portolan-agent")?;
        let agent = agent.to_str().context("path is not UTF-8")?;
        let dataplane = format!("--dataplane={}", self.dataplane);
        self.rig.node(number).exec(&[agent, "cleanup", &dataplane])
    }

    /// Adds a pod that echoes on port 8080 over both protocols. It listens until it is dropped.
    pub fn add_pod(&self, node: usize, name: &str) -> Result<EchoPod> {
        EchoPod::new(self.rig.node(node), name)
    }
}

fn files() -> Result<(TempDir, Source)> {
    let directory = TempDir::new()?;
    let objects = objects(directory.path());
    std::fs::create_dir(&objects)?;
    Ok((directory, Source::Files(objects)))
}

fn objects(directory: &Path) -> PathBuf {
    directory.join("objects")
}

fn certificates(directory: &Path) -> PathBuf {
    directory.join("certs")
}

fn certify(rig: &Rig, directory: &Path) -> Result<Trust> {
    let nodes: Vec<_> = (0..rig.nodes().len()).map(Cluster::node_name).collect();
    let server = control(rig).v4().to_string();
    Trust::certify(&certificates(directory), &server, &nodes)
}

/// The machine for controllers: the last client.
///
/// # Panics
/// If the rig has no clients.
#[must_use]
pub fn control(rig: &Rig) -> &Host {
    let last = rig.clients().last();
    last.expect("a cluster's rig has a client for the controller")
}

/// Returns when the agent of a node, just started, has programmed a table.
pub fn agent_is_ready(node: &Host, deadline: Duration) -> Result<()> {
    let ready = || http_get(node.namespace(), AGENT_ADMIN, "/readyz").ok();
    wait_for("the agent to be ready", deadline, ready).map(drop)
}

/// A pod that answers its name and the source that it saw, on port 8080.
#[derive(Debug)]
pub struct EchoPod {
    /// The pod.
    pub pod: crate::rig::Pod,
    servers: Vec<crate::rig::EchoServer>,
}

impl EchoPod {
    /// The port that it listens on.
    pub const PORT: u16 = 8080;

    /// A new pod on a node that serves TCP and UDP.
    pub fn new(node: &Node, name: &str) -> Result<Self> {
        Self::serving(node, name, &Protocol::ALL)
    }

    /// A new pod on a node that serves these protocols.
    pub fn serving(node: &Node, name: &str, protocols: &[Protocol]) -> Result<Self> {
        let pod = node.add_pod(name)?;
        let serve = |protocol: &Protocol| pod.serve(*protocol, Self::PORT);
        let servers = protocols.iter().map(serve).collect::<Result<_>>()?;
        Ok(Self { pod, servers })
    }

    /// Ends its servers, as if their process had died: the pod refuses connections from now on.
    pub fn die(&mut self) {
        self.servers.clear();
    }

    /// An endpoint of an EndpointSlice for this pod.
    #[must_use]
    pub fn endpoint(&self, family: Family, node: usize) -> Value {
        json!({
            "addresses": [self.pod.address(family).to_string()],
            "nodeName": Cluster::node_name(node),
            "conditions": { "ready": true },
        })
    }
}

/// GETs a path from a port of a namespace's loopback; the status.
pub fn http_status(namespace: &Namespace, port: u16, path: &str) -> Result<u16> {
    namespace.run(|| Ok(http_answer(SocketAddr::from(([127, 0, 0, 1], port)), path)?.0))?
}

/// GETs a path from a port of a namespace's loopback; the body, if the status is 200.
pub fn http_get(namespace: &Namespace, port: u16, path: &str) -> Result<String> {
    namespace.run(|| http_get_from(SocketAddr::from(([127, 0, 0, 1], port)), path))?
}

/// GETs a path from the calling thread's namespace; the body, if the status is 200.
pub fn http_get_from(address: SocketAddr, path: &str) -> Result<String> {
    let (status, body) = http_answer(address, path)?;
    ensure!(status == 200, "{path}: status {status}");
    Ok(body)
}

fn http_answer(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    // A server of this version sends no chunks, whose lengths would stand between the lines.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).context("no status")?;
    Ok((status.parse()?, body.to_owned()))
}
