// SPDX-License-Identifier: Apache-2.0

//! `plan`, `apply --once` and `export`: one call each, without an agent that goes on running.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use portolan_e2e::ask::{address, answers, no_answer, ways};
use portolan_e2e::cluster::{EchoPod, PATIENT, program};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{service, slices};
use portolan_e2e::rig::{Process, Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use serde_json::json;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

/// A node, a file of objects, and a state directory.
struct Once {
    rig: Rig,
    directory: tempfile::TempDir,
}

impl Once {
    fn new() -> Self {
        let config = RigConfig {
            nodes: 1,
            clients: 1,
        };
        Self {
            rig: Rig::new(config).unwrap(),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn file(&self) -> std::path::PathBuf {
        self.directory.path().join("web.json")
    }

    /// The Service `web` with these pods.
    fn put(&self, pods: &[&EchoPod]) {
        let pods: Vec<_> = pods.iter().map(|pod| (*pod, 0)).collect();
        let objects = [vec![service("web", WEB, json!({}))], slices("web", &pods)].concat();
        let text = json!({ "kind": "List", "items": objects }).to_string();
        std::fs::write(self.file(), text).unwrap();
    }

    /// Output of a command on the node, both streams.
    fn run(&self, command: &str) -> (i32, String) {
        let script = format!("{command} 2>&1; echo \"exit $?\"");
        let text = self.rig.node(0).exec(&["sh", "-c", &script]).unwrap();
        let (text, code) = text.trim_end().rsplit_once("exit ").unwrap();
        (code.parse().unwrap(), text.to_owned())
    }

    /// A command of the agent with the file and the state directory.
    fn agent(&self, command: &str) -> (i32, String) {
        let agent = program("portolan-agent").unwrap();
        let state = self.directory.path().join("state");
        self.run(&format!(
            "{} {command} --node-name node1 --file {} --state-dir {} --log-level error",
            agent.display(),
            self.file().display(),
            state.display()
        ))
    }

    /// Returns the kernel's state, as programs show it.
    fn kernel(&self) -> String {
        let shown = ["ipvsadm -Sn", "ipset save", "ip route show table local"];
        shown.map(|command| self.run(command).1).join("\n")
    }

    fn answers(&self, from: &EchoPod, expected: &[&str]) {
        for (family, protocol) in ways() {
            answers(&from.pod, protocol, address(WEB, family, 80), expected);
        }
    }
}

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().map(str::trim).collect()
}

/// `ipvsadm` makes of an export what the agent makes.
fn reads_back(once: &Once, exported: &str, saved: &str) {
    once.run("ipvsadm -C");
    let node = once.rig.node(0).namespace();
    node.exec_with_input(&["ipvsadm", "-R"], exported).unwrap();
    assert_eq!(lines(&once.run("ipvsadm -Sn").1), lines(saved), "read back");
}

#[test]
fn a_plan_changes_nothing_and_an_apply_takes_its_steps() {
    if !lane::provides("once", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let once = Once::new();
    let a = EchoPod::new(once.rig.node(0), "a").unwrap();
    let b = EchoPod::new(once.rig.node(0), "b").unwrap();
    let visitor = EchoPod::new(once.rig.node(0), "v").unwrap();
    once.put(&[&a]);

    let before = once.kernel();
    let (code, plan) = once.agent("plan");
    assert_eq!(code, 2, "{plan}");
    for line in [
        "+ -A -t 10.96.0.10:80 -s rr",
        "+ ip route add local 10.96.0.10 dev lo proto 99",
    ] {
        assert!(plan.contains(line), "{line}\n{plan}");
    }
    assert_eq!(once.kernel(), before, "a plan changes nothing");

    let (code, exported) = once.agent("export ipvsadm");
    assert_eq!(code, 0, "{exported}");
    let (code, full) = once.agent("export ipvsadm --full");
    assert_eq!(code, 0, "{full}");
    let entry = "# ipset add KUBE-CLUSTER-IP 10.96.0.10,tcp:80";
    assert!(full.contains(entry), "{full}");
    let (code, applied) = once.agent("apply --once");
    assert_eq!(code, 0, "{applied}");
    once.answers(&visitor, &["a"]);
    let (_, saved) = once.run("ipvsadm -Sn");
    assert_eq!(lines(&exported), lines(&saved), "export, and the kernel");
    reads_back(&once, &exported, &saved);
    let (code, plan) = once.agent("plan -o json");
    assert_eq!(code, 0, "{plan}");
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan, json!({ "steps": [], "refused": [], "problems": [] }));

    once.put(&[&b]);
    let (code, plan) = once.agent("plan");
    assert_eq!(code, 2, "{plan}");
    assert!(plan.contains("-w 0  # drained; was 1"), "{plan}");
    let (code, applied) = once.agent("apply --once");
    assert_eq!(code, 0, "{applied}");
    once.answers(&visitor, &["b"]);

    // Without a drain timeout nothing of the removed pod is left.
    once.put(&[&a]);
    let (code, applied) = once.agent("apply --once --drain-timeout 0s");
    assert_eq!(code, 0, "{applied}");
    once.answers(&visitor, &["a"]);
    let (_, saved) = once.run("ipvsadm -Sn");
    assert!(!saved.contains("-w 0"), "{saved}");

    std::fs::write(once.file(), "{\"kind\": \"List\", \"items\": []}").unwrap();
    let (code, applied) = once.agent("apply --once");
    assert_eq!(code, 0, "{applied}");
    assert_eq!(once.run("ipvsadm -Sn").1, "");
    for (family, protocol) in ways() {
        no_answer(&visitor.pod, protocol, address(WEB, family, 80));
    }
}

#[test]
fn a_bad_file_and_a_running_agent_stop_an_apply() {
    if !lane::provides("once", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let once = Once::new();
    let a = EchoPod::new(once.rig.node(0), "a").unwrap();
    once.put(&[&a]);
    assert_eq!(once.agent("apply --once").0, 0);
    let before = once.kernel();

    let good = std::fs::read_to_string(once.file()).unwrap();
    let bad = good.replace("10.96.0.10", "10.96.0.300");
    std::fs::write(once.file(), bad).unwrap();
    for command in ["plan", "apply --once", "export ipvsadm"] {
        let (code, text) = once.agent(command);
        assert_eq!(code, 1, "{command}: {text}");
        assert!(text.contains("10.96.0.300"), "{command}: {text}");
    }
    assert_eq!(once.kernel(), before);
    std::fs::remove_file(once.file()).unwrap();
    assert_eq!(once.agent("apply --once").0, 1, "a missing file");
    assert_eq!(once.kernel(), before);
    let (code, text) = once.agent("plan --no-such-flag");
    assert_eq!(code, 64, "{text}");

    once.put(&[&a]);
    let _agent = start(&once);
    let lock = once.directory.path().join("state/lock");
    // The agent opens its ports when it holds the lock. An `apply` before that could win the
    // lock, and the agent would end.
    let socket = once.directory.path().join("agent.sock");
    let has_started = || socket.exists().then_some(());
    wait_for("the agent's socket", PATIENT, has_started).unwrap();
    let (code, text) = once.agent("apply --once");
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("an agent is running"), "{text}");
    assert!(lock.exists());
    assert_eq!(once.agent("plan").0, 0, "a plan beside an agent");
}

#[test]
fn a_reload_is_answered_when_the_kernel_has_the_files() {
    if !lane::provides("once", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let once = Once::new();
    let a = EchoPod::new(once.rig.node(0), "a").unwrap();
    let b = EchoPod::new(once.rig.node(0), "b").unwrap();
    let visitor = EchoPod::new(once.rig.node(0), "v").unwrap();
    once.put(&[&a]);
    let agent = start(&once);
    let socket = once.directory.path().join("agent.sock");
    let command = format!(
        "{} reload --address unix://{}",
        program("portolan-agent").unwrap().display(),
        socket.display()
    );
    let reload = || once.run(&command);
    let mut last = String::new();
    let is_done = || {
        let (code, text) = reload();
        last = text;
        (code == 0).then_some(())
    };
    let waited = wait_for("a reload", PATIENT, is_done);
    assert!(waited.is_ok(), "{waited:?}: {last}");
    once.answers(&visitor, &["a"]);

    // The agent looks at its files once an hour, and the reload returns when they are programmed.
    once.put(&[&b]);
    let (code, text) = reload();
    assert_eq!(code, 0, "{text}");
    let (_, saved) = once.run("ipvsadm -Sn");
    assert!(saved.contains("-w 0"), "{saved}");
    once.answers(&visitor, &["b"]);

    // The last good version of an unreadable file stays in force.
    let good = std::fs::read_to_string(once.file()).unwrap();
    std::fs::write(once.file(), &good[..good.len() / 2]).unwrap();
    let (code, text) = reload();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("web.json"), "{text}");
    once.answers(&visitor, &["b"]);

    // Of a readable one, all but the bad field is used.
    std::fs::write(once.file(), good.replace("10.96.0.10", "10.96.0.300")).unwrap();
    let (code, text) = reload();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("10.96.0.300"), "{text}");

    once.put(&[&a]);
    let before = once.run("ipvsadm -Sn");
    once.run(&format!("kill -HUP {}", agent.id()));
    let is_back = || (once.run("ipvsadm -Sn") != before).then_some(());
    wait_for("the files after a SIGHUP", PATIENT, is_back).unwrap();
    assert_eq!(reload().0, 0);
    once.answers(&visitor, &["a"]);
}

fn start(once: &Once) -> Process {
    let directory: &Path = once.directory.path();
    let socket = format!("unix://{}", directory.join("agent.sock").display());
    let mut command = Command::new(program("portolan-agent").unwrap());
    command.args(["--source=file", "--node-name=node1", "--file-poll=1h"]);
    command.args(["--debug-listen", &socket]);
    command.arg("--file").arg(once.file());
    command.arg("--state-dir").arg(directory.join("state"));
    let node = once.rig.node(0).namespace();
    Process::spawn(node, "agent", &mut command, directory).unwrap()
}
