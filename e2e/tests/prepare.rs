// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent prepare`, and agents without privileges on nodes that it has prepared.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::{Command, ExitStatus};

use portolan_e2e::cluster::{PATIENT, agent_is_ready, http_get};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::programs::program;
use portolan_e2e::rig::{Node, Process, Rig, RigConfig};

/// In a network namespace conntrack's maximum cannot be set.
const FLAGS: [&str; 3] = [
    "--node-name=x",
    "--conntrack-max-per-core=0",
    "--source=file",
];

/// The file system and the capabilities of a container without privileges.
const CONTAINER: &str = "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && \
                         exec setpriv --no-new-privs --inh-caps=\"-all,$0\" --bounding-set=\"-all,$0\" \"$@\"";
const CAPABILITIES: &str = "+net_admin,+net_raw";

/// A chain of another program that drops forwarded packets.
const WALLS: &str = "add table ip walls; add chain ip walls forward \
                     { type filter hook forward priority 0; policy drop; }";

struct Machine {
    rig: Rig,
    directory: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let sizes = RigConfig {
            nodes: 1,
            clients: 1,
        };
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("objects")).unwrap();
        Self {
            rig: Rig::new(sizes).unwrap(),
            directory,
        }
    }

    fn node(&self) -> &Node {
        self.rig.node(0)
    }

    fn set(&self, setting: &str, value: &str) {
        let namespace = self.node().namespace();
        namespace.sysctl(&[(setting, value)]).unwrap();
    }

    /// The present value of a setting below `/proc/sys/net`.
    fn get(&self, setting: &str) -> String {
        let path = format!("/proc/sys/net/{setting}");
        let read = || std::fs::read_to_string(&path).unwrap();
        let text = self.node().namespace().run(read).unwrap();
        text.trim().to_owned()
    }

    fn start(&self, name: &str, command: &mut Command) -> Process {
        command.args(FLAGS).arg("--file");
        command.arg(self.directory.path().join("objects"));
        command.arg("--state-dir").arg(self.directory.path());
        let path: &Path = self.directory.path();
        Process::spawn(self.node().namespace(), name, command, path).unwrap()
    }

    /// Runs `prepare` as root; returns its status and its log.
    fn prepare(&self, name: &str, args: &[&str]) -> (ExitStatus, String) {
        let mut command = Command::new(program("portolan-agent").unwrap());
        command.arg("prepare").args(args);
        let mut process = self.start(name, &mut command);
        let status = process.wait(PATIENT).unwrap();
        (status, process.log().unwrap())
    }

    /// Starts an agent in a container with these capabilities.
    fn contained(&self, name: &str, capabilities: &str) -> Process {
        self.contained_with(name, capabilities, &[])
    }

    /// The same with more flags.
    fn contained_with(&self, name: &str, capabilities: &str, flags: &[&str]) -> Process {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", CONTAINER, capabilities]);
        command.arg(program("portolan-agent").unwrap()).args(flags);
        self.start(name, &mut command)
    }

    fn has_wrong(&self, setting: &str) -> bool {
        let metrics = http_get(self.node().namespace(), 10249, "/metrics").unwrap();
        let name = format!("portolan_agent_setting_wrong{{setting=\"net/{setting}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap() == "1"
    }
}

/// The settings that every run writes.
const SETTINGS: [&str; 4] = [
    "ipv4/vs/conntrack",
    "ipv4/vs/expire_nodest_conn",
    "ipv4/vs/expire_quiescent_template",
    "ipv4/ip_forward",
];

#[test]
fn agent_without_privileges_runs_on_a_prepared_node() {
    let test = "agent_without_privileges_runs_on_a_prepared_node";
    if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let machine = Machine::new();
    SETTINGS
        .iter()
        .for_each(|setting| machine.set(setting, "0"));
    let (status, log) = machine.prepare("check", &["--check"]);
    assert_eq!(status.code(), Some(1), "{log}");
    for setting in SETTINGS {
        let line = format!("not prepared yet: kernel setting net/{setting} is 0, and must be 1");
        assert!(log.contains(&line), "{line}\n{log}");
        assert_eq!(machine.get(setting), "0");
    }

    let mut agent = machine.contained("unprepared", CAPABILITIES);
    let status = agent.wait(PATIENT).unwrap();
    let log = agent.log().unwrap();
    assert!(!status.success(), "{log}");
    let last = log.lines().last().unwrap();
    for part in [
        "net/ipv4/vs/conntrack is 0, and must be 1 (Read-only file system",
        "net/ipv4/ip_forward is 0",
        "run `portolan-agent prepare`",
    ] {
        assert!(last.contains(part), "{part}\n{log}");
    }
    assert!(!last.contains("expire"), "{log}");

    let (status, log) = machine.prepare("prepare", &[]);
    assert!(status.success(), "{log}");
    for setting in SETTINGS {
        assert_eq!(machine.get(setting), "1", "{setting}\n{log}");
    }
    let (status, log) = machine.prepare("again", &["--check"]);
    assert!(status.success(), "{log}");

    let mut agent = machine.contained("prepared", CAPABILITIES);
    agent_is_ready(machine.node(), PATIENT).unwrap();
    let rules = machine
        .node()
        .exec(&["iptables-save", "-t", "nat"])
        .unwrap();
    assert!(rules.contains("-j KUBE-SERVICES"), "{rules}");
    assert!(!rules.contains("PORTOLAN-TRIAL"), "{rules}");
    let sets = machine.node().exec(&["ipset", "list", "-n"]).unwrap();
    assert!(!sets.contains("TRIAL"), "{sets}");

    let changed = "ipv4/vs/expire_nodest_conn";
    assert!(!machine.has_wrong(changed));
    machine.set(changed, "0");
    assert!(machine.has_wrong(changed));
    agent.stop(PATIENT).unwrap();
    let mut agent = machine.contained("limited", CAPABILITIES);
    agent_is_ready(machine.node(), PATIENT).unwrap();
    let said = format!("kernel setting net/{changed} is 0, and must be 1 (Read-only file system");
    agent.wait_for_log(&said, PATIENT).unwrap();
    agent.stop(PATIENT).unwrap();
}

/// The match `set` opens a raw socket.
#[test]
fn agent_names_a_capability_that_it_lacks() {
    let test = "agent_names_a_capability_that_it_lacks";
    if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let machine = Machine::new();
    let (status, log) = machine.prepare("prepare", &[]);
    assert!(status.success(), "{log}");
    for (given, lacking) in [("+net_admin", "CAP_NET_RAW"), ("+net_raw", "CAP_NET_ADMIN")] {
        let mut agent = machine.contained(lacking, given);
        let status = agent.wait(PATIENT).unwrap();
        let log = agent.log().unwrap();
        assert!(!status.success(), "{log}");
        let last = log.lines().last().unwrap();
        let reason = format!("this node can serve nothing: this process lacks {lacking}:");
        assert!(last.contains(&reason), "{log}");
    }
}

/// Uses the machine's own kernel: a guest's has IPVS.
#[test]
fn node_without_ipvs_is_unfit() {
    let test = "node_without_ipvs_is_unfit";
    if lane::has_ipvs() || !lane::provides(test, &[Need::Root]) {
        return;
    }
    let machine = Machine::new();
    let tables = ["add table ip kube-proxy", "add table ip6 other"];
    for table in tables {
        let words: Vec<_> = ["nft"].into_iter().chain(table.split(' ')).collect();
        machine.node().exec(&words).unwrap();
    }
    let (status, log) = machine.prepare("check", &["--check"]);
    assert_eq!(status.code(), Some(1), "{log}");
    for line in [
        "missing: the kernel has no IPVS",
        "missing: nftables has a table kube-proxy of IPv4: a kube-proxy in nftables mode",
        "this node is unfit for a run with these flags (2 findings)",
    ] {
        assert!(log.contains(line), "{line}\n{log}");
    }
}

#[test]
fn node_is_prepared_for_nftables() {
    let test = "node_is_prepared_for_nftables";
    if !lane::provides(test, &[Need::Root, Need::Nftables]) {
        return;
    }
    let machine = Machine::new();
    let forwarding = "ipv4/ip_forward";
    machine.set(forwarding, "0");
    let nftables = "--dataplane=nftables";
    let (status, log) = machine.prepare("check", &["--check", nftables]);
    assert_eq!(status.code(), Some(1), "{log}");
    let line = "not prepared yet: kernel setting net/ipv4/ip_forward is 0, and must be 1";
    assert!(log.contains(line), "{log}");
    assert!(log.contains("this node is fit and not prepared"), "{log}");
    assert!(!log.contains("ipv4/vs/"), "{log}");
    assert_eq!(machine.get(forwarding), "0");

    let (status, log) = machine.prepare("prepare", &[nftables]);
    assert!(status.success(), "{log}");
    assert_eq!(machine.get(forwarding), "1");
    assert!(!log.contains("ip walls forward"), "{log}");
    machine.node().exec(&["nft", WALLS]).unwrap();
    let (status, log) = machine.prepare("again", &["--check", nftables]);
    // Other rules of that chain may let Services through.
    assert!(status.success(), "{log}");
    assert!(log.contains("ip walls forward"), "{log}");
    assert!(log.contains("ct status dnat accept"), "{log}");
    let mut agent = machine.contained_with("prepared", CAPABILITIES, &[nftables]);
    agent_is_ready(machine.node(), PATIENT).unwrap();
    let tables = machine.node().exec(&["nft", "list", "tables"]).unwrap();
    assert!(tables.contains("table ip portolan"), "{tables}");
    agent.stop(PATIENT).unwrap();
}

/// Rules of a kube-proxy in nftables mode are in the way of IPVS, unless they are taken over.
#[test]
fn table_of_kube_proxy_is_a_finding_unless_it_is_taken_over() {
    let test = "table_of_kube_proxy_is_a_finding_unless_it_is_taken_over";
    if !lane::provides(test, &[Need::Root, Need::Ipvs, Need::Nftables]) {
        return;
    }
    let machine = Machine::new();
    let table = ["nft", "add", "table", "ip", "kube-proxy"];
    machine.node().exec(&table).unwrap();
    let (status, log) = machine.prepare("alone", &[]);
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(
        log.contains("missing: nftables has a table kube-proxy of IPv4"),
        "{log}"
    );
    let takeover = "--takeover=kube-proxy";
    let (status, log) = machine.prepare("takeover", &[takeover]);
    assert!(status.success(), "{log}");

    // From IPVS mode both dataplanes are prepared, and the chains of others are told once.
    let device = ["ip", "link", "add", "kube-ipvs0", "type", "dummy"];
    machine.node().exec(&device).unwrap();
    machine.node().exec(&["nft", WALLS]).unwrap();
    let (_, log) = machine.prepare("both", &["--dataplane=nftables", takeover]);
    let told = log.lines().filter(|line| line.contains("ip walls forward"));
    assert_eq!(told.count(), 1, "{log}");
}
