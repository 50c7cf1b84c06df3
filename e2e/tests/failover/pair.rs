// SPDX-License-Identifier: Apache-2.0

//! Two directors with the same load balancer, and what is around them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use portolan_e2e::cluster::{PATIENT, program};
use portolan_e2e::rig::{Connection, EchoServer, Host, Process, Protocol, Rig, RigConfig};
use portolan_e2e::wait::wait_for;

/// The virtual address, on the LAN.
pub(super) const VIP: &str = "192.168.77.240";
const PORT: u16 = 8080;
/// Connections that are open while a director dies.
pub(super) const LONG: usize = 50;
/// Time for one question.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

/// Time for one of many questions.
const QUESTION: Duration = Duration::from_millis(200);

/// Means by which connections outlive their director.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Survival {
    Synchronised,
    Stateless,
    Neither,
}

impl Survival {
    fn director(self) -> &'static str {
        match self {
            Self::Synchronised => "  sync: {interface: eth0, id: 7}\n",
            Self::Stateless => "  statelessFailover: true\n",
            Self::Neither => "",
        }
    }

    fn scheduler(self) -> &'static str {
        match self {
            Self::Stateless => "mh",
            Self::Synchronised | Self::Neither => "rr",
        }
    }
}

/// Two directors, a client and two real servers on one LAN.
pub(super) struct Pair {
    pub(super) rig: Rig,
    pub(super) directory: tempfile::TempDir,
    survival: Survival,
    pub(super) agents: [Process; 2],
    _servers: [EchoServer; 2],
}

impl Pair {
    /// Both directors are programmed. They have these fields, as YAML.
    pub(super) fn start(survival: Survival, vips: &str) -> Self {
        let rig = Rig::new(RigConfig {
            nodes: 2,
            clients: 3,
        })
        .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lb.yaml");
        std::fs::write(&file, text(&rig, survival, vips)).unwrap();
        let servers = [1, 2].map(|number| real_server(&rig.clients()[number]));
        let agents = [0, 1].map(|number| start_agent(&rig, directory.path().to_owned(), number));
        let pair = Self {
            rig,
            directory,
            survival,
            agents,
            _servers: servers,
        };
        for number in 0..2 {
            wait_for("a programmed director", PATIENT, || {
                let shown = pair.rig.node(number).exec(&["ipvsadm", "-Sn"]).ok()?;
                (shown.matches("-a -t").count() == 2).then_some(())
            })
            .unwrap();
        }
        pair
    }

    pub(super) fn client(&self) -> &Host {
        self.rig.client()
    }

    /// Runs `portolan-agent director` on a director.
    pub(super) fn command(&self, number: usize, role: &str) {
        let mut command = Command::new(program("portolan-agent").unwrap());
        command.args(["director", role]);
        command.arg(format!(
            "--address={}",
            socket(self.directory.path(), number)
        ));
        let namespace = self.rig.node(number).namespace();
        let output = namespace.run(|| command.output()).unwrap().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Connections that each had an answer.
    pub(super) fn connect(&self) -> Vec<(Connection, String)> {
        let open = |_| {
            let connection = self.client().connect(Protocol::Tcp, vip(), TIMEOUT);
            let mut connection = connection.unwrap();
            let name = connection.ask().unwrap().name;
            (connection, name)
        };
        (0..LONG).map(open).collect()
    }

    /// Returns when a director knows all connections, if it is told of them.
    pub(super) fn wait_until_synchronised(&self, number: usize) {
        if self.survival != Survival::Synchronised {
            return;
        }
        wait_for("the synchronised connections", PATIENT, || {
            let shown = self.rig.node(number).exec(&["ipvsadm", "-Lnc"]).ok()?;
            let known = shown.lines().filter(|line| line.contains("ESTABLISHED"));
            (known.count() >= LONG).then_some(())
        })
        .unwrap();
    }
}

/// Returns the time from `from`, when no director answers any more, to the first answer. Each question has a connection of
/// its own, so that none waits for a packet to be repeated.
pub(super) fn first_answer(client: &Host, from: Instant) -> Duration {
    let ask = || client.request(Protocol::Tcp, vip(), QUESTION).ok();
    wait_for("an answer of the other director", PATIENT, ask).unwrap();
    from.elapsed()
}

pub(super) fn vip() -> SocketAddr {
    SocketAddr::new(VIP.parse().unwrap(), PORT)
}

pub(super) fn socket(directory: &std::path::Path, number: usize) -> String {
    format!("unix://{}/{number}.sock", directory.display())
}

/// The load balancer and both directors, in one file for both.
fn text(rig: &Rig, survival: Survival, vips: &str) -> String {
    let director = |name: &str| {
        format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {{name: {name}}}\nspec:\n  \
             {vips}\n{}---\n",
            survival.director()
        )
    };
    let backends = [1, 2].map(|number| rig.clients()[number].v4());
    format!(
        "{}{}apiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: web}}\nspec:\n  \
         frontends: [{{addresses: [{VIP}], port: {PORT}}}]\n  scheduler: {}\n  forwarding: {{method: Direct}}\n  \
         backends: [{{address: {}, port: {PORT}}}, {{address: {}, port: {PORT}}}]\n",
        director("node1"),
        director("node2"),
        survival.scheduler(),
        backends[0],
        backends[1],
    )
}

/// A real server with the virtual address, which it tells nobody of.
fn real_server(host: &Host) -> EchoServer {
    let quiet = [
        ("ipv4/conf/all/arp_ignore", "1"),
        ("ipv4/conf/all/arp_announce", "2"),
    ];
    host.namespace().sysctl(&quiet).unwrap();
    let address = format!("{VIP}/32");
    host.exec(&["ip", "addr", "add", &address, "dev", "lo"])
        .unwrap();
    host.serve(Protocol::Tcp, PORT).unwrap()
}

pub(super) fn start_agent(rig: &Rig, directory: PathBuf, number: usize) -> Process {
    let name = format!("node{}", number + 1);
    let mut command = Command::new(program("portolan-agent").unwrap());
    command.args(["--source=file", "--file-poll=200ms"]);
    command.arg(format!("--node-name={name}"));
    command.arg("--file").arg(directory.join("lb.yaml"));
    command.arg("--state-dir").arg(directory.join(&name));
    command.arg(format!("--debug-listen={}", socket(&directory, number)));
    let namespace = rig.node(number).namespace();
    Process::spawn(namespace, &name, &mut command, &directory).unwrap()
}
