// SPDX-License-Identifier: Apache-2.0

//! A pair of directors of which one dies under load: connections lost with synchronised connections, with stateless
//! failover, and with neither.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use portolan_e2e::cluster::{PATIENT, program};
use portolan_e2e::figure::figure;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{
    Connection, EchoServer, Host, Load, LoadConfig, Process, Protocol, Rig, RigConfig,
};
use portolan_e2e::wait::wait_for;

/// The virtual address, on the LAN.
const VIP: &str = "192.168.77.240";
const PORT: u16 = 8080;
/// Connections that are open while a director dies.
const LONG: usize = 50;
/// Time for one question.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How connections outlive their director.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Survival {
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
struct Pair {
    rig: Rig,
    directory: tempfile::TempDir,
    survival: Survival,
    _agents: [Process; 2],
    _servers: [EchoServer; 2],
}

impl Pair {
    /// Both directors are programmed; the first one answers for the address.
    fn start(survival: Survival) -> Self {
        let rig = Rig::new(RigConfig {
            nodes: 2,
            clients: 3,
        })
        .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lb.yaml");
        std::fs::write(&file, text(&rig, survival)).unwrap();
        let servers = [1, 2].map(|number| real_server(&rig.clients()[number]));
        let agents = [0, 1].map(|number| start_agent(&rig, directory.path().to_owned(), number));
        let pair = Self {
            rig,
            directory,
            survival,
            _agents: agents,
            _servers: servers,
        };
        for number in 0..2 {
            wait_for("a programmed director", PATIENT, || {
                let shown = pair.rig.node(number).exec(&["ipvsadm", "-Sn"]).ok()?;
                (shown.matches("-a -t").count() == 2).then_some(())
            })
            .unwrap();
        }
        pair.command(0, "active");
        pair
    }

    fn client(&self) -> &Host {
        self.rig.client()
    }

    /// Runs `portolan-agent director` on a director.
    fn command(&self, number: usize, role: &str) {
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
    fn connect(&self) -> Vec<(Connection, String)> {
        let open = |_| {
            let connection = self.client().connect(Protocol::Tcp, vip(), TIMEOUT);
            let mut connection = connection.unwrap();
            let name = connection.ask().unwrap().name;
            (connection, name)
        };
        (0..LONG).map(open).collect()
    }

    /// Returns when a director knows all connections, if it is told of them.
    fn wait_until_synchronised(&self, number: usize) {
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

fn vip() -> SocketAddr {
    SocketAddr::new(VIP.parse().unwrap(), PORT)
}

fn socket(directory: &std::path::Path, number: usize) -> String {
    format!("unix://{}/{number}.sock", directory.display())
}

/// The load balancer and both directors, in one file for both.
fn text(rig: &Rig, survival: Survival) -> String {
    let director = |name: &str| {
        format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {{name: {name}}}\nspec:\n  \
             vips: {{interface: eth0, role: Command}}\n{}---\n",
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

fn start_agent(rig: &Rig, directory: PathBuf, number: usize) -> Process {
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

/// Kills the first director under load, and has the second one answer. Returns the lost connections: long and
/// short ones, and the number of short ones.
fn lost(survival: Survival) -> (usize, usize, u64) {
    let pair = Pair::start(survival);
    let mut long = pair.connect();
    pair.wait_until_synchronised(1);
    // About 200 new connections a second.
    let short = LoadConfig {
        workers: 2,
        pause: Duration::from_millis(10),
        timeout: TIMEOUT,
        ..LoadConfig::default()
    };
    let load = Load::start(pair.client(), &[vip()], short).unwrap();
    let more = |answered: u64| {
        wait_for("the load", PATIENT, || {
            (load.answered() > answered).then_some(())
        })
    };
    more(200).unwrap();

    // A host that dies takes its announcements and its packets with it.
    pair.rig
        .node(0)
        .exec(&["ip", "link", "set", "eth0", "down"])
        .unwrap();
    pair.command(1, "active");
    more(load.answered() + 200).unwrap();
    let report = load.stop();
    let mut lost = 0;
    for (connection, name) in &mut long {
        // The one that answered before, or the connection is another one.
        lost += usize::from(!matches!(connection.ask(), Ok(answer) if answer.name == *name));
    }
    (lost, report.failures.len(), report.requests)
}

fn count(survival: Survival, test: &str) -> Option<usize> {
    if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
        return None;
    }
    let (long, short, of) = lost(survival);
    let name = format!("{survival:?}").to_lowercase();
    println!("{name}: {long} of {LONG} long and {short} of {of} short connections lost");
    figure(
        &format!("failover_{name}_long_lost"),
        long as f64,
        "connections",
        None,
    );
    figure(
        &format!("failover_{name}_short_lost"),
        short as f64,
        "connections",
        None,
    );
    Some(long)
}

#[test]
fn synchronised_connections_outlive_their_director() {
    let lost = count(
        Survival::Synchronised,
        "synchronised_connections_outlive_their_director",
    );
    assert!(lost.is_none_or(|lost| lost == 0), "{lost:?} lost");
}

#[test]
fn stateless_failover_keeps_connections_that_nobody_told_of() {
    let lost = count(
        Survival::Stateless,
        "stateless_failover_keeps_connections_that_nobody_told_of",
    );
    assert!(lost.is_none_or(|lost| lost == 0), "{lost:?} lost");
}

/// Without it the tests above would prove nothing.
#[test]
fn connections_end_with_their_director_otherwise() {
    let lost = count(
        Survival::Neither,
        "connections_end_with_their_director_otherwise",
    );
    assert!(lost.is_none_or(|lost| lost == LONG), "only {lost:?} lost");
}
