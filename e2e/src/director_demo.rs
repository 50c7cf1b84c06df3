// SPDX-License-Identifier: Apache-2.0

//! The demo of a director: one script, which `make demo-director` prints and a test runs.
//!
//! The file names the addresses of the rig: [`VIP`], and the second and third client as real servers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::cluster::{PATIENT, program};
use crate::rig::{EchoServer, Host, Process, Protocol, Rig, RigConfig};
use crate::wait::wait_for;

/// The address of the load balancer in the file.
const VIP: &str = "192.0.2.10:80";
/// The port of the real servers in the file.
const PORT: u16 = 8080;
/// Requests of each round.
const REQUESTS: usize = 6;
const PROMPT: Duration = Duration::from_secs(10);

/// Runs the demo with a file, and passes on what it shows.
///
/// # Errors
/// If anything is not as it must be.
pub fn run(file: &Path, show: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let rig = Rig::new(RigConfig {
        nodes: 1,
        clients: 3,
    })?;
    let directory = tempfile::tempdir()?;
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    std::fs::write(directory.path().join("lb.yaml"), &text)?;
    let mut demo = Demo {
        rig,
        directory,
        show,
    };
    let to_clients = demo.director().v4().into();
    demo.client().add_route("192.0.2.0/24", to_clients)?;
    demo.play(&text)
}

struct Demo<F> {
    rig: Rig,
    directory: tempfile::TempDir,
    show: F,
}

impl<F: FnMut(&str) -> Result<()>> Demo<F> {
    fn director(&self) -> &Host {
        self.rig.node(0)
    }

    fn client(&self) -> &Host {
        self.rig.client()
    }

    fn play(&mut self, text: &str) -> Result<()> {
        let [a, b] = [1, 2].map(|number| self.rig.clients()[number].clone());
        let machines = format!(
            "director {}: portolan-agent; client {}; real servers {} and {}\n\n{text}\n",
            self.director().v4(),
            self.client().v4(),
            a.v4(),
            b.v4(),
        );
        (self.show)(&machines)?;
        let _serving_a = serve(&a)?;
        let serving_b = serve(&b)?;
        let _agent = self.start_agent()?;
        self.wait_for_servers("both real servers", &[a.name(), b.name()])?;
        self.show_requests(&[a.name(), b.name()])?;
        self.show_status(&["status"])?;

        (self.show)(&format!("\n# the server on {} ends\n", b.v4()))?;
        drop(serving_b);
        self.wait_for_servers("the one that is left", &[a.name()])?;
        self.show_requests(&[a.name()])?;
        let shown = self.show_status(&["status", "web"])?;
        let down = shown
            .lines()
            .find(|line| line.contains(&format!("{}:{PORT}", b.v4())));
        let down = down.context("the backend is shown")?;
        ensure!(
            ["down", "0 of 1", "connection refused"]
                .iter()
                .all(|part| down.contains(part)),
            "{down}"
        );

        (self.show)(&format!("\n# the server on {} is back\n", b.v4()))?;
        let _serving_b = serve(&b)?;
        self.wait_for_servers("both again", &[a.name(), b.name()])?;
        self.show_requests(&[a.name(), b.name()])?;
        self.command(&["status", "--healthy"])?;
        (self.show)("$ portolan-agent status --healthy; echo $?\n0\n")
    }

    fn start_agent(&self) -> Result<Process> {
        let directory = self.directory.path();
        let mut command = Command::new(program("portolan-agent")?);
        command.args(["--source=file", "--node-name=director"]);
        command.arg("--file").arg(directory.join("lb.yaml"));
        command.arg("--state-dir").arg(directory.join("state"));
        command.arg(format!("--debug-listen={}", self.socket()));
        let namespace = self.director().namespace();
        Process::spawn(namespace, "agent", &mut command, directory)
    }

    fn socket(&self) -> String {
        format!(
            "unix://{}",
            self.directory.path().join("agent.sock").display()
        )
    }

    /// The output of a command of the agent; an error if it fails.
    fn command(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program("portolan-agent")?);
        command.args(arguments).arg("--address").arg(self.socket());
        let output = command.output()?;
        ensure!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    fn show_status(&mut self, arguments: &[&str]) -> Result<String> {
        let text = self.command(arguments)?;
        let command = arguments.join(" ");
        (self.show)(&format!("$ portolan-agent {command}\n{text}"))?;
        Ok(text)
    }

    /// Waits until all requests are answered by these servers, and by each of them.
    fn wait_for_servers(&self, what: &str, expected: &[&str]) -> Result<()> {
        wait_for(what, PATIENT, || {
            let counts = self.count().ok()?;
            let names: Vec<_> = counts.keys().map(String::as_str).collect();
            (names == expected).then_some(())
        })
    }

    fn show_requests(&mut self, expected: &[&str]) -> Result<()> {
        let counts = self.count()?;
        let names: Vec<_> = counts.keys().map(String::as_str).collect();
        if names != expected {
            bail!("{counts:?}, expected {expected:?}");
        }
        let counts = counts.iter();
        let counts: Vec<_> = counts
            .map(|(name, count)| format!("{count} by {name}"))
            .collect();
        (self.show)(&format!(
            "# {REQUESTS} requests to {VIP}: answered {}\n",
            counts.join(", ")
        ))
    }

    /// Answers to requests, each over a new connection, by server.
    fn count(&self) -> Result<BTreeMap<String, usize>> {
        let mut counts = BTreeMap::new();
        for _ in 0..REQUESTS {
            let answer = self.client().request(Protocol::Tcp, VIP.parse()?, PROMPT);
            let answer = answer.map_err(|error| anyhow!("{VIP}: {error}"))?;
            *counts.entry(answer.name).or_default() += 1;
        }
        Ok(counts)
    }
}

fn serve(host: &Host) -> Result<EchoServer> {
    host.serve(Protocol::Tcp, PORT)
}
