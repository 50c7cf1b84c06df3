// SPDX-License-Identifier: Apache-2.0

//! The agent as a service of systemd, on this machine's own kernel: readiness, signs of life, log priorities.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use portolan_e2e::cluster::program;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Rig, RigConfig};
use rustix::process::{Pid, Signal, kill_process};

const BALANCER: &str = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, \
    spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80}]}}";

/// The manager's side of one service.
struct Manager {
    notify: UnixDatagram,
    /// Stream of the service's standard error, from its start on.
    stderr: UnixStream,
    child: Child,
}

impl Manager {
    /// Starts the agent as systemd would, with a limit of the watchdog.
    fn start(rig: &Rig, directory: &Path, limit: Duration) -> Self {
        let socket = directory.join("notify");
        let notify = UnixDatagram::bind(&socket).unwrap();
        notify
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let (stderr, theirs) = UnixStream::pair().unwrap();
        let stat = rustix::fs::fstat(&theirs).unwrap();
        let mut command = Command::new(program("portolan-agent").unwrap());
        command
            .args(["--source=file", "--dataplane=nftables", "--node-name=node1"])
            .args(["--file-poll=20ms", "--debug-listen="])
            .arg("--file")
            .arg(directory.join("web.yaml"))
            .arg("--state-dir")
            .arg(directory.join("state"))
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", limit.as_micros().to_string())
            .env("JOURNAL_STREAM", format!("{}:{}", stat.st_dev, stat.st_ino))
            .stderr(Stdio::from(OwnedFd::from(theirs)));
        let start = || command.spawn();
        let child = rig.node(0).namespace().run(start).unwrap().unwrap();
        Self {
            notify,
            stderr,
            child,
        }
    }

    fn next(&self) -> String {
        let mut buffer = [0; 1024];
        let length = self.notify.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    /// The next message that does not only say that the agent is alive.
    fn next_state(&self) -> String {
        std::iter::repeat_with(|| self.next())
            .find(|message| message != "WATCHDOG=1")
            .unwrap()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_manager_hears_of_the_first_table_of_life_and_of_the_end() {
    let test = "the_manager_hears_of_the_first_table_of_life_and_of_the_end";
    if !lane::provides(test, &[Need::Root, Need::Nftables]) {
        return;
    }
    let rig = Rig::new(RigConfig {
        nodes: 1,
        clients: 1,
    })
    .unwrap();
    let directory = tempfile::tempdir().unwrap();
    // There is no table while the file is missing.
    let mut manager = Manager::start(&rig, directory.path(), Duration::from_secs(2));
    assert_eq!(manager.next_state(), "STATUS=waits for first table");
    for _ in 0..3 {
        assert_eq!(manager.next(), "WATCHDOG=1", "alive, and not ready");
    }

    // Renamed into place, as an editor does.
    let new = directory.path().join("new");
    std::fs::write(&new, BALANCER).unwrap();
    std::fs::rename(new, directory.path().join("web.yaml")).unwrap();
    let ready = manager.next_state();
    assert!(
        ready.starts_with("READY=1\nSTATUS=the kernel has revision "),
        "{ready}"
    );
    let rules = rig.node(0).exec(&["nft", "list", "ruleset"]).unwrap();
    assert!(rules.contains("10.96.0.10"), "{rules}");

    kill_process(Pid::from_child(&manager.child), Signal::TERM).unwrap();
    let end = std::iter::repeat_with(|| manager.next_state())
        .find(|message| message.contains("STOPPING=1"));
    assert!(end.is_some());
    assert!(manager.child.wait().unwrap().success());
    // What the kernel has stays.
    let rules = rig.node(0).exec(&["nft", "list", "ruleset"]).unwrap();
    assert!(rules.contains("10.96.0.10"), "{rules}");
    let mut log = String::new();
    manager.stderr.read_to_string(&mut log).unwrap();
    let plain = log.lines().find(|line| !line.starts_with('<'));
    assert_eq!(plain, None, "{log}");
    assert!(
        log.lines()
            .any(|line| line.starts_with("<6>") && line.contains("SIGTERM")),
        "{log}"
    );
    assert!(
        log.lines()
            .any(|line| line.starts_with("<4>") || line.starts_with("<3>")),
        "{log}"
    );
}
