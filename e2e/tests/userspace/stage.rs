// SPDX-License-Identifier: Apache-2.0

//! A command whose Services an agent serves by sockets, pods behind them, and what tests ask from the command's side.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Output};

use portolan_e2e::ask::{PROMPT, address, ways};
use portolan_e2e::cluster::{EchoPod, PATIENT, http_get, program};
use portolan_e2e::objects::{service, slice_of, slices};
use portolan_e2e::rig::{Connection, Family, Host, Process, Protocol, Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

/// Pods on two nodes, files, and a command on the first node.
pub(crate) struct Stage {
    /// The command's side.
    pub(crate) inside: Host,
    agent: Process,
    files: TempDir,
    admin: u16,
    pub(crate) rig: Rig,
}

/// Two nodes, on which pods weigh 1 and 3.
fn nodes() -> Vec<Value> {
    let node = |(name, weight): (&str, &str)| {
        json!({ "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "annotations": { "portolan.dev/weight": weight } } })
    };
    [("node1", "1"), ("node2", "3")].map(node).into()
}

/// The command line of `run` with the files of a directory.
pub(crate) fn run(files: &Path) -> Command {
    let mut command = Command::new(program("portolan-agent").unwrap());
    command
        .args(["run", "--node-name=node1", "--file-poll=20ms", "--file"])
        .arg(files);
    command
}

impl Stage {
    /// Starts a command that only waits, in front of objects.
    pub(crate) fn new(rig: Rig, objects: &[Value], flags: &[&str]) -> Self {
        let files = tempfile::tempdir().unwrap();
        write(files.path(), objects);
        let ports = files.path().join("ports.txt");
        let mut command = run(files.path());
        command.args(flags).arg("--port-file").arg(&ports);
        command.args(["--", "sh", "-c", "echo command=$$; exec sleep 100000"]);
        let namespace = rig.node(0).namespace();
        let mut agent = Process::spawn(namespace, "run", &mut command, files.path()).unwrap();
        let line = agent.wait_for_log("command=", PATIENT).unwrap();
        let id = wait_for("the number of the command", PATIENT, || {
            let log = agent.log().unwrap_or_else(|_| line.clone());
            let (_, rest) = log.split_once("command=")?;
            rest.split_once('\n')?.0.trim().parse().ok()
        });
        let inside = Host::of_process("command", id.unwrap(), Ipv4Addr::LOCALHOST).unwrap();
        let text = std::fs::read_to_string(&ports).unwrap();
        let admin = text.lines().find_map(|line| line.strip_prefix("admin="));
        Self {
            inside,
            agent,
            files,
            admin: admin.unwrap().parse().unwrap(),
            rig,
        }
    }

    /// Replaces the objects.
    pub(crate) fn put(&self, objects: &[Value]) {
        write(self.files.path(), objects);
    }

    /// The value of a metric, summed over its labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let node = self.rig.node(0).namespace();
        let text = http_get(node, self.admin, "/metrics").unwrap();
        let samples = text.lines().filter(|line| line.starts_with(name));
        let values = samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>());
        values.map(Result::unwrap).sum()
    }

    /// Waits until requests of all families and protocols are answered by one of the pods, and by each of them.
    pub(crate) fn until_answered_by(&self, ips: [&str; 2], port: u16, pods: &[&str]) {
        for (family, protocol) in ways() {
            let web = address(ips, family, port);
            let mut seen = std::collections::BTreeSet::new();
            wait_for(
                &format!("{protocol:?} {web} to be answered by {pods:?}"),
                PATIENT,
                || {
                    let answer = self.inside.request(protocol, web, PROMPT).ok()?;
                    match pods.contains(&answer.name.as_str()) {
                        true => seen.insert(answer.name),
                        // An old list may be in force yet.
                        false => return None,
                    };
                    (seen.len() == pods.len()).then_some(())
                },
            )
            .unwrap();
        }
    }

    /// The name of the pod that answers.
    pub(crate) fn ask(&self, protocol: Protocol, to: SocketAddr) -> String {
        let answered = self.inside.request(protocol, to, PROMPT);
        answered
            .unwrap_or_else(|error| panic!("{protocol:?} {to}: {error}"))
            .name
    }

    /// The same for a client with a port of its own.
    pub(crate) fn ask_from(&self, port: u16, protocol: Protocol, to: SocketAddr) -> String {
        let ask = || Connection::open_from(port, protocol, to, PROMPT)?.ask();
        let answered = self.inside.namespace().run(ask).unwrap();
        answered
            .unwrap_or_else(|error| panic!("{protocol:?} from port {port} to {to}: {error}"))
            .name
    }

    /// Stops the command, and the agent with it.
    pub(crate) fn stop(mut self) {
        self.agent.signal(Signal::TERM).unwrap();
        let status = self.agent.wait(PATIENT).unwrap();
        // As a shell has it: 128 and the signal.
        assert_eq!(status.code(), Some(128 + 15));
    }
}

/// Writes all objects of a directory at once.
pub(crate) fn write(directory: &Path, objects: &[Value]) {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    // Renamed into place, as an editor does; a name that begins with a dot is no object's.
    let new = directory.join(".new");
    std::fs::write(&new, list.to_string()).unwrap();
    std::fs::rename(new, directory.join("objects.json")).unwrap();
}

/// Two nodes.
pub(crate) fn rig() -> Rig {
    let config = RigConfig {
        nodes: 2,
        clients: 1,
    };
    Rig::new(config).unwrap()
}

/// Pods `a` on the first node, `b` on the second.
pub(crate) fn pods(rig: &Rig) -> [EchoPod; 2] {
    [(0, "a"), (1, "b")].map(|(node, name)| EchoPod::new(rig.node(node), name).unwrap())
}

/// The Service `web` in front of pods on nodes.
pub(crate) fn web(spec: Value, pods: &[(&EchoPod, usize)]) -> Vec<Value> {
    let web = vec![service("web", WEB, spec)];
    [nodes(), web, slices("web", pods)].concat()
}

/// The EndpointSlices of `web` with an endpoint that nobody has besides those of pods.
pub(crate) fn with_dead(spec: Value, pods: &[(&EchoPod, usize)], dead: [&str; 2]) -> Vec<Value> {
    let slices = Family::ALL.map(|family| {
        let dead = match family {
            Family::V4 => dead[0],
            Family::V6 => dead[1],
        };
        let mut endpoints: Vec<_> = pods
            .iter()
            .map(|(pod, n)| pod.endpoint(family, *n))
            .collect();
        endpoints.push(json!({ "addresses": [dead], "nodeName": "node1",
            "conditions": { "ready": true } }));
        slice_of("web", family, &endpoints)
    });
    [nodes(), vec![service("web", WEB, spec)], slices.to_vec()].concat()
}

/// Runs a command to its end in front of files, on the first node.
pub(crate) fn output(rig: &Rig, command: &mut Command) -> Output {
    rig.node(0)
        .namespace()
        .run(|| command.output())
        .unwrap()
        .unwrap()
}
