// SPDX-License-Identifier: Apache-2.0

//! A director with a client and real servers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;

use portolan_e2e::ask::PROMPT;
use portolan_e2e::cluster::{PATIENT, program};
use portolan_e2e::rig::{EchoServer, Host, Process, Protocol, Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use serde_json::Value;

/// The virtual address.
pub(crate) const VIP: &str = "192.0.2.10";
/// The port of frontends and backends.
pub(crate) const PORT: u16 = 8080;
/// Checks that are quick enough for a test.
pub(crate) const CHECKS: &str =
    "[{interval: 500ms, fastInterval: 200ms, timeout: 2s, rise: 2, fall: 2, tcp: {}}]";

/// A director, a client and real servers, each a machine of its own on one LAN.
pub(crate) struct World {
    rig: Rig,
    pub(crate) directory: tempfile::TempDir,
}

impl World {
    pub(crate) fn new(real_servers: u8) -> Self {
        let config = RigConfig {
            nodes: 1,
            clients: 1 + real_servers,
        };
        let world = Self {
            rig: Rig::new(config).unwrap(),
            directory: tempfile::tempdir().unwrap(),
        };
        let director = world.director().v4();
        world
            .client()
            .add_route("192.0.2.0/24", director.into())
            .unwrap();
        world
    }

    pub(crate) fn director(&self) -> &Host {
        self.rig.node(0)
    }

    pub(crate) fn client(&self) -> &Host {
        &self.rig.clients()[0]
    }

    pub(crate) fn real(&self, number: usize) -> &Host {
        &self.rig.clients()[1 + number]
    }

    /// Takes the carrier from the director's link, or gives it back.
    pub(crate) fn unplug(&self, unplugged: bool) {
        self.rig.unplug(self.director(), unplugged).unwrap();
    }

    pub(crate) fn write(&self, text: &str) {
        // As an editor does: the agent never reads half a file.
        let new = self.directory.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.directory.path().join("lb.yaml")).unwrap();
    }

    pub(crate) fn start_agent(&self) -> Process {
        self.start_agent_by(|_| ())
    }

    /// Starts an agent whose command is changed.
    pub(crate) fn start_agent_by(&self, change: impl FnOnce(&mut Command)) -> Process {
        let directory = self.directory.path();
        let mut command = Command::new(program("portolan-agent").unwrap());
        command.args(["--source=file", "--node-name=node1", "--file-poll=200ms"]);
        command.arg("--file").arg(directory.join("lb.yaml"));
        command.arg("--state-dir").arg(directory.join("state"));
        command.arg(format!("--debug-listen={}", self.socket()));
        // Connections of drained real servers end by it in a test's time.
        command.arg("--drain-timeout=5s");
        change(&mut command);
        let namespace = self.director().namespace();
        Process::spawn(namespace, "agent", &mut command, directory).unwrap()
    }

    /// Runs a command of the agent on the director; its exit code, and both of its outputs.
    pub(crate) fn agent(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(program("portolan-agent").unwrap());
        command.args(arguments);
        let namespace = self.director().namespace();
        let output = namespace.run(|| command.output()).unwrap().unwrap();
        let texts = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(texts).unwrap())
    }

    /// As [`Self::agent`], of the running agent.
    pub(crate) fn ask_agent(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let address = format!("--address={}", self.socket());
        self.agent(&[arguments, &[&address]].concat())
    }

    /// Runs a command that reads the file and the kernel, such as `plan`, without a running agent.
    pub(crate) fn once(&self, command: &[&str]) -> (Option<i32>, String) {
        let directory = self.directory.path();
        let file = format!("--file={}", directory.join("lb.yaml").display());
        let state = format!("--state-dir={}", directory.join("state").display());
        let rest = ["--node-name=node1", &file, &state, "--log-level=error"];
        self.agent(&[command, &rest].concat())
    }

    /// Runs a command line on the director.
    pub(crate) fn run(&self, command: &str) -> String {
        let words: Vec<_> = command.split(' ').collect();
        self.director().exec(&words).unwrap()
    }

    fn socket(&self) -> String {
        format!(
            "unix://{}",
            self.directory.path().join("agent.sock").display()
        )
    }

    pub(crate) fn ipvsadm(&self) -> String {
        self.director().exec(&["ipvsadm", "-Sn"]).unwrap()
    }

    /// Waits until all requests are answered by these servers, and by each of them.
    pub(crate) fn wait_for_answers(&self, expected: &[&str]) {
        let mut last = BTreeMap::new();
        let all = || {
            last = self.count(12);
            let names: Vec<_> = last.keys().map(String::as_str).collect();
            (names == expected).then_some(())
        };
        let waited = wait_for("the right servers", PATIENT, all);
        assert!(
            waited.is_ok(),
            "{last:?}, expected {expected:?}: {}",
            self.ipvsadm()
        );
    }

    /// Waits until the states of backends are on disk, from where the next run takes them: the agent saves them at most
    /// once a second.
    pub(crate) fn wait_for_saved(&self, expected: &[(&Host, &str)]) {
        let path = self.directory.path().join("state").join("health");
        let are_saved = || {
            let content = std::fs::read(&path).ok()?;
            // A line with the version comes first, and a checksum of 32 bytes.
            let line = content.iter().position(|byte| *byte == b'\n')?;
            let saved: Value = serde_json::from_slice(content.get(line + 33..)?).ok()?;
            let backends = saved["balancers"][0]["backends"].as_array()?;
            let is_saved = |(host, state): &(&Host, &str)| {
                let address = format!("{}:{PORT}", host.v4());
                let mut backends = backends.iter();
                backends.any(|each| each["address"] == address && each["state"] == *state)
            };
            expected.iter().all(is_saved).then_some(())
        };
        wait_for("the saved states", PATIENT, are_saved).unwrap();
    }

    /// Answers by server; failures under an empty name.
    pub(crate) fn count(&self, requests: usize) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for _ in 0..requests {
            let answer = self.client().request(Protocol::Tcp, vip(VIP), PROMPT);
            let name = answer.map(|answer| answer.name).unwrap_or_default();
            *counts.entry(name).or_default() += 1;
        }
        counts
    }
}

pub(crate) fn vip(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), PORT)
}

pub(crate) fn serve(host: &Host) -> EchoServer {
    host.serve(Protocol::Tcp, PORT).unwrap()
}

/// A load balancer with source NAT, so that the real servers need no route to the client.
pub(crate) fn balancer(spec: &str, backends: &[(&Host, &str)]) -> String {
    let backend = |(host, rest): &(&Host, &str)| {
        format!("  - {{address: {}, port: {PORT}{rest}}}\n", host.v4())
    };
    let backends: String = backends.iter().map(backend).collect();
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: web}}\nspec:\n  \
         frontends: [{{addresses: [{VIP}], port: {PORT}}}]\n  sourceNat: true\n{spec}  backends:\n{backends}"
    )
}
