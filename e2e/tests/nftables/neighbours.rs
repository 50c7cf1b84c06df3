// SPDX-License-Identifier: Apache-2.0

//! Firewalls beside the agent: a chain that drops forwarded packets, firewalld, and docker.

use std::path::Path;
use std::process::Command;

use portolan_e2e::ask::{address, answers, no_answer, ways};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, http_get};
use portolan_e2e::lane;
use portolan_e2e::rig::{Family, Host, Process};
use portolan_e2e::wait::wait_for;
use portolan_netlink::nftables::TableContent;
use serde_json::json;

use crate::{WEB, ours, repaired, skip, web};

/// Starts dockerd where it finds no file of the machine's own docker, and leaves none. It wants control groups, though
/// it runs no container.
const DOCKER: &str = "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc/docker && mount -t tmpfs tmpfs /opt && \
                      mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec \"$@\"";

/// Starts firewalld where it finds no state of the machine's own one.
const FIREWALLD: &str = "mount -t tmpfs tmpfs /run && exec \"$@\"";

/// A bus for firewalld alone, on which everybody may do everything.
const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=SOCKET</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="*"/>
    <allow receive_type="*"/>
    <allow send_destination="*"/>
  </policy>
</busconfig>
"#;

/// A node with an agent, and requests to the Service `web` from one of its pods.
struct Beside {
    cluster: Cluster,
    visitor: EchoPod,
    before: [Option<TableContent>; 2],
    _pods: Vec<EchoPod>,
}

impl Beside {
    fn new() -> Self {
        let (cluster, pods) = web(&json!({}));
        let visitor = cluster.add_pod(0, "v").unwrap();
        let before = ours(cluster.rig.node(0));
        let this = Self {
            cluster,
            visitor,
            before,
            _pods: pods,
        };
        this.serves();
        this
    }

    fn node(&self) -> &Host {
        self.cluster.rig.node(0)
    }

    fn path(&self, name: &str) -> String {
        let path = self.cluster.directory().join(name);
        path.to_str().unwrap().to_owned()
    }

    /// Asserts that every pod answers, and that our tables are as they were.
    fn serves(&self) {
        for (family, protocol) in ways() {
            let web = address(WEB, family, 80);
            answers(&self.visitor.pod, protocol, web, &["a", "b", "c"]);
        }
        assert!(ours(self.node()) == self.before, "our tables are others");
    }

    /// Starts a program in the node's network namespace, and in a mount namespace of its own.
    fn start(&self, name: &str, script: &str, command: &[&str]) -> Process {
        let mut program = Command::new("unshare");
        let bus = format!("unix:path={}", self.path("bus"));
        program.env("DBUS_SYSTEM_BUS_ADDRESS", bus);
        program.args(["--mount", "sh", "-c", script, "sh"]);
        program.args(command);
        let (namespace, directory) = (self.node().namespace(), self.cluster.directory());
        Process::spawn(namespace, name, &mut program, directory).unwrap()
    }

    /// Damages our tables; returns when they are repaired, which is counted.
    fn is_repaired_after(&self, command: &str) {
        let counted = repaired(&self.cluster);
        self.node().exec(&["nft", command]).unwrap();
        wait_for(&format!("{command:?} to be repaired"), PATIENT, || {
            let is_counted = repaired(&self.cluster) > counted;
            (is_counted && ours(self.node()) == self.before).then_some(())
        })
        .unwrap();
        self.serves();
    }

    /// Tables as nft lists them, without their counters.
    fn listed(&self, tables: &[&str]) -> Vec<String> {
        let list = |table: &&str| {
            let command = format!("list table {table}");
            self.node().exec(&["nft", "-s", &command]).unwrap()
        };
        tables.iter().map(list).collect()
    }

    /// Damages our tables; theirs stay as they are.
    fn repairs_leave_alone(&self, tables: &[&str]) {
        let theirs = self.listed(tables);
        for command in [
            "delete table ip portolan",
            "flush chain ip6 portolan nat-in",
        ] {
            self.is_repaired_after(command);
        }
        assert_eq!(self.listed(tables), theirs);
    }

    /// Waits until the agent counts so many closed chains.
    fn counts_closed(&self, count: usize) {
        let line = format!("portolan_agent_closed_forward_chains {count}");
        wait_for(&line, PATIENT, || {
            let metrics = self.cluster.agent_metrics(0).ok()?;
            metrics.lines().any(|found| found == line).then_some(())
        })
        .unwrap();
    }

    /// Number of warnings of a chain.
    fn warnings(&mut self, chain: &str) -> usize {
        let log = self.cluster.agent(0).unwrap().log().unwrap();
        log.lines().filter(|line| line.contains(chain)).count()
    }

    fn stop_agent(&mut self) {
        self.cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    }

    fn start_agent(&mut self, args: &[&str]) {
        self.cluster.start_agent_with(0, args).unwrap();
        self.cluster.wait_until_ready(0).unwrap();
    }

    /// Waits until the agent has looked at chains after a change: it counts another one.
    fn looks_again(&self) {
        let other = "add table ip other; add chain ip other forward \
                     { type filter hook forward priority 0; policy drop; }";
        self.node().exec(&["nft", other]).unwrap();
        self.counts_closed(2);
        self.node().exec(&["nft", "delete table ip other"]).unwrap();
        self.counts_closed(1);
    }

    fn firewall(&self, argument: &str) -> Result<String, anyhow::Error> {
        let bus = format!("DBUS_SYSTEM_BUS_ADDRESS=unix:path={}", self.path("bus"));
        self.node().exec(&["env", &bus, "firewall-cmd", argument])
    }

    fn start_bus(&self) -> Process {
        let (config, socket) = (self.path("bus.conf"), self.path("bus"));
        std::fs::write(&config, BUS.replace("SOCKET", &socket)).unwrap();
        let config = format!("--config-file={config}");
        let command = ["dbus-daemon", &config, "--nofork", "--nopidfile"];
        let bus = self.start("dbus", "exec \"$@\"", &command);
        wait_for("the bus", PATIENT, || {
            Path::new(&socket).exists().then_some(())
        })
        .unwrap();
        bus
    }

    fn start_firewalld(&self) -> Process {
        let log = format!("--log-file={}", self.path("firewalld-own.log"));
        let command = ["firewalld", "--nofork", "--nopid", &log];
        let firewalld = self.start("firewalld", FIREWALLD, &command);
        wait_for("firewalld", PATIENT, || {
            let state = self.firewall("--state").ok()?;
            (state.trim() == "running").then_some(())
        })
        .unwrap();
        firewalld
    }

    fn start_docker(&self) -> Process {
        let at = |name| self.path(name);
        let (data, run, pid) = (at("docker"), at("docker-run"), at("docker-run.pid"));
        let command = [
            "dockerd",
            "--host=tcp://127.0.0.1:2375",
            "--tls=false",
            "--iptables=true",
            "--ip6tables=false",
            "--storage-driver=vfs",
            "--data-root",
            &data,
            "--exec-root",
            &run,
            "--pidfile",
            &pid,
        ];
        let docker = self.start("dockerd", DOCKER, &command);
        wait_for("docker", PATIENT, || {
            let pong = http_get(self.node().namespace(), 2375, "/_ping").ok()?;
            pong.contains("OK").then_some(())
        })
        .unwrap();
        docker
    }

    fn is_dropped(&self) {
        for (family, protocol) in ways() {
            if family == Family::V4 {
                no_answer(&self.visitor.pod, protocol, address(WEB, family, 80));
            }
        }
    }
}

#[test]
fn a_chain_that_drops_forwarded_packets_is_told_once_until_it_has_gone() {
    if skip("a_chain_that_drops_forwarded_packets_is_told_once_until_it_has_gone") {
        return;
    }
    let mut beside = Beside::new();
    beside.stop_agent();
    beside.start_agent(&["--check-period=1s"]);
    beside.counts_closed(0);
    let walls = "inet walls forward";
    let build = "add table inet walls; add chain inet walls forward \
                 { type filter hook forward priority 0; policy drop; }";
    let nft = |beside: &Beside, command: &str| {
        beside.node().exec(&["nft", command]).unwrap();
    };
    nft(&beside, build);
    let theirs = beside.listed(&["inet walls"]);
    beside.counts_closed(1);
    assert_eq!(beside.warnings(walls), 1);
    for (family, protocol) in ways() {
        no_answer(&beside.visitor.pod, protocol, address(WEB, family, 80));
    }
    // A change of another table is another look, and no other warning.
    nft(&beside, "add table ip somebody");
    beside.looks_again();
    assert_eq!(beside.warnings(walls), 1);
    assert_eq!(beside.listed(&["inet walls"]), theirs);

    let advice = "add rule inet walls forward ct status dnat counter accept";
    nft(&beside, advice);
    beside.counts_closed(0);
    beside.serves();
    nft(&beside, "flush chain inet walls forward");
    beside.counts_closed(1);
    assert_eq!(beside.warnings(walls), 2);

    // A table that sleeps drops nothing.
    nft(&beside, "add table inet walls { flags dormant; }");
    beside.counts_closed(0);
    beside.serves();
    nft(&beside, "add table inet walls");
    beside.counts_closed(1);
    assert_eq!(beside.warnings(walls), 3);
}

#[test]
fn firewalld_that_starts_reloads_and_restarts_leaves_services_served() {
    let test = "firewalld_that_starts_reloads_and_restarts_leaves_services_served";
    if skip(test) || lacks(test, &["dbus-daemon", "firewalld"]) {
        return;
    }
    let beside = Beside::new();
    let mut bus = beside.start_bus();
    let theirs = ["inet firewalld"];
    let mut firewalld = beside.start_firewalld();
    beside.serves();
    beside.repairs_leave_alone(&theirs);
    // All connections are dropped while it reloads, and the answer comes after that.
    beside.firewall("--reload").unwrap();
    beside.serves();
    beside.repairs_leave_alone(&theirs);
    firewalld.stop(PATIENT).unwrap();
    beside.serves();

    // Debian 12's firewalld cannot delete its table at its end when that has gone, and starts all the same.
    let mut firewalld = beside.start_firewalld();
    beside.is_repaired_after("flush ruleset");
    firewalld.stop(PATIENT).unwrap();
    let mut firewalld = beside.start_firewalld();
    beside.serves();
    beside.repairs_leave_alone(&theirs);
    firewalld.stop(PATIENT).unwrap();
    bus.stop(PATIENT).unwrap();
}

/// Reports programs that are not installed.
fn lacks(test: &str, programs: &[&str]) -> bool {
    let is_missing = |program: &&&str| {
        let script = format!("command -v {program}");
        let found = Command::new("sh").args(["-c", &script]).output();
        !found.is_ok_and(|found| found.status.success())
    };
    let missing = programs.iter().find(is_missing);
    if let Some(program) = missing {
        lane::missing(test, &format!("needs {program} (e2e/lanes/setup)"));
    }
    missing.is_some()
}

#[test]
fn docker_that_drops_forwarded_packets_is_told_and_stays_as_it_is() {
    let test = "docker_that_drops_forwarded_packets_is_told_and_stays_as_it_is";
    if skip(test) || lacks(test, &["dockerd", "containerd", "iptables"]) {
        return;
    }
    let mut beside = Beside::new();
    beside.stop_agent();
    // It drops what is forwarded only where it has enabled forwarding itself.
    let off = [("ipv4/ip_forward", "0")];
    beside.node().namespace().sysctl(&off).unwrap();
    let mut docker = beside.start_docker();
    beside.start_agent(&[]);
    let theirs = ["ip filter", "ip nat"];
    let before = beside.listed(&theirs);
    beside.counts_closed(1);
    assert_eq!(beside.warnings("ip filter FORWARD"), 1);
    beside.is_dropped();
    assert_eq!(beside.listed(&theirs), before);

    let advice = "iptables -I DOCKER-USER -m conntrack --ctstate DNAT -j ACCEPT";
    let advice: Vec<&str> = advice.split(' ').collect();
    beside.node().exec(&advice).unwrap();
    beside.counts_closed(0);
    beside.serves();
    beside.repairs_leave_alone(&theirs);

    beside.is_repaired_after("flush ruleset");
    docker.stop(PATIENT).unwrap();
    let mut docker = beside.start_docker();
    beside.serves();
    beside.repairs_leave_alone(&theirs);
    docker.stop(PATIENT).unwrap();
    beside.serves();
}
