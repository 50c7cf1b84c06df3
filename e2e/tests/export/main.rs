// SPDX-License-Identifier: Apache-2.0

//! Exports, as the programs that read them take them: rules of iptables and tables of nft answer the
//! conformance table, and they are those of a real kube-proxy, and of our own messages.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod kube_proxy;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use portolan_e2e::cluster::{Cluster, PATIENT, POD_RANGES, agent_is_ready, program};
use portolan_e2e::conformance::{
    Difference, Kind, KnownDifferences, Patience, Policy, Row, Source, Stage, report,
};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Node, Process, Protocol, Rig, RigConfig, has_sctp};
use portolan_e2e::wait::wait_for;
use portolan_model::Family;
use portolan_netlink::nftables::{Nftables, Set, TableContent};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Differences of kube-proxy's rules of iptables.
const IPTABLES: &str = include_str!("../../conformance/kube-proxy-iptables.txt");
/// Differences of kube-proxy's tables of nftables.
const NFTABLES: &str = include_str!("../../conformance/kube-proxy-nftables.txt");
/// Families, with the programs of each.
const FAMILIES: [(&str, &str, &str); 2] = [
    ("ipv4", "iptables-restore", "iptables-save"),
    ("ipv6", "ip6tables-restore", "ip6tables-save"),
];

/// A rig without agents, and a file of objects.
struct Exports {
    directory: TempDir,
    rig: Rig,
}

impl Exports {
    fn new() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            rig: Rig::new(RigConfig::CLUSTER).unwrap(),
        }
    }

    fn put(&self, objects: &[Value]) {
        put(self.directory.path(), objects);
    }

    fn export(&self, number: usize, arguments: &[&str]) -> String {
        let node = self.rig.node(number);
        export(node, number, self.directory.path(), arguments)
    }
}

fn file(directory: &Path) -> PathBuf {
    directory.join("objects.json")
}

fn put(directory: &Path, objects: &[Value]) {
    let list = json!({ "kind": "List", "items": objects }).to_string();
    std::fs::write(file(directory), list).unwrap();
}

/// Returns the output of `export` on a node.
fn export(node: &Node, number: usize, directory: &Path, arguments: &[&str]) -> String {
    let (file, state) = (file(directory), directory.join("state"));
    let mut command = arguments.to_vec();
    command.extend(["--from", "file", "--file", file.to_str().unwrap()]);
    command.extend(["--state-dir", state.to_str().unwrap()]);
    run(node, number, &command)
}

/// The same from any source.
fn run(node: &Node, number: usize, arguments: &[&str]) -> String {
    let (agent, name) = (
        program("portolan-agent").unwrap(),
        Cluster::node_name(number),
    );
    let mut command = vec![agent.to_str().unwrap(), "export"];
    command.extend_from_slice(arguments);
    command.extend(["--node-name", &name, "--cluster-cidr", POD_RANGES]);
    node.exec(&command).unwrap()
}

fn playable_rows() -> Vec<Row> {
    let mut rows = Row::all();
    rows.retain(|row| row.protocol != Protocol::Sctp || has_sctp());
    rows
}

/// Restores the exported rules on a node.
fn restore(node: &Node, number: usize, directory: &Path) {
    for (family, restore, _) in FAMILIES {
        let arguments = ["iptables", "--family", family, "--jumps"];
        let rules = export(node, number, directory, &arguments);
        let namespace = node.namespace();
        for command in [
            &[restore, "--noflush", "--test"][..],
            &[restore, "--noflush"],
        ] {
            namespace.exec_with_input(command, &rules).unwrap();
        }
    }
}

#[test]
fn rules_of_iptables_answer_as_a_kube_proxys() {
    if !lane::provides("export", &[Need::Root]) {
        return;
    }
    let exports = Exports::new();
    let stage = Stage::new(&exports.rig).unwrap();
    let rows = rows_that_answer();
    exports.put(&stage.objects(&exports.rig, &rows));
    for (number, node) in exports.rig.nodes().iter().enumerate() {
        restore(node, number, exports.directory.path());
    }
    differ_only_where_known("iptables", &stage, &rows, IPTABLES);
}

/// An endpoint elsewhere answers the asking pod directly: the connection hangs in each of the other rows, as it does with
/// kube-proxy.
fn rows_that_answer() -> Vec<Row> {
    let hangs = |row: &Row| {
        (row.kind, row.policy, row.source) == (Kind::NodePort, Policy::Local, Source::PodThere)
            && row.protocol != Protocol::Tcp
    };
    let mut rows = playable_rows();
    rows.retain(|row| !hangs(row));
    rows
}

/// Plays rows. Differences from our own answers are those of a list, all of them.
fn differ_only_where_known(name: &str, stage: &Stage, rows: &[Row], list: &str) {
    let known = KnownDifferences::parse(list).unwrap();
    let outcomes = stage.play(rows, Patience::of_lane()).unwrap();
    let wrong: Vec<_> = outcomes.iter().filter(|o| !o.is_right()).collect();
    let differences: Vec<Difference> = wrong.iter().map(|o| (*o).into()).collect();
    let unexplained: Vec<_> = wrong
        .iter()
        .zip(&differences)
        .filter(|(_, difference)| known.reason(difference).is_none())
        .map(|(outcome, difference)| {
            let Difference { row, seen } = difference;
            format!("{row}: expected {}, seen {seen}", outcome.expected)
        })
        .collect();
    println!(
        "exported {name}: {} rows, {} known differences",
        rows.len(),
        wrong.len() - unexplained.len()
    );
    assert!(unexplained.is_empty(), "{unexplained:#?}");
    let unused = known.unused(&differences);
    assert!(unused.is_empty(), "no longer different: {unused:#?}");
}

#[test]
fn tables_of_kube_proxy_answer_as_its_own() {
    if !lane::provides("export", &[Need::Root, Need::Nftables]) {
        return;
    }
    let exports = Exports::new();
    let stage = Stage::new(&exports.rig).unwrap();
    let rows = rows_that_answer();
    exports.put(&stage.objects(&exports.rig, &rows));
    for (number, node) in exports.rig.nodes().iter().enumerate() {
        let text = exports.export(number, &["nft", "--kube-proxy"]);
        let load = ["nft", "-f", "-"];
        node.namespace().exec_with_input(&load, &text).unwrap();
    }
    differ_only_where_known("nft --kube-proxy", &stage, &rows, NFTABLES);
}

/// An agent of a node that programs nftables from the file, once it is ready.
fn start(exports: &Exports, number: usize) -> Process {
    let (node, directory) = (exports.rig.node(number), exports.directory.path());
    let name = Cluster::node_name(number);
    let mut command = Command::new(program("portolan-agent").unwrap());
    command
        .args(["--source=file", "--dataplane=nftables", "--log-level=info"])
        .args(["--cluster-cidr", POD_RANGES, "--node-name", &name])
        .arg("--file")
        .arg(file(directory))
        .arg("--state-dir")
        .arg(directory.join(&name))
        .arg(format!("--debug-listen={}", socket(directory, number)));
    let agent = Process::spawn(node.namespace(), &name, &mut command, directory).unwrap();
    agent_is_ready(node, PATIENT).unwrap();
    agent
}

fn socket(directory: &Path, number: usize) -> String {
    format!(
        "unix://{}",
        directory.join(format!("{number}.sock")).display()
    )
}

#[test]
fn tables_of_nft_are_those_of_our_messages_and_answer_alike() {
    if !lane::provides("export", &[Need::Root, Need::Nftables]) {
        return;
    }
    let exports = Exports::new();
    let stage = Stage::new(&exports.rig).unwrap();
    let rows = playable_rows();
    exports.put(&stage.objects(&exports.rig, &rows));
    let node = exports.rig.node(0);
    let mut programmed = Vec::new();
    for number in 0..2 {
        let mut agent = start(&exports, number);
        let node = exports.rig.node(number);
        let before = content(node);
        let text = exports.export(number, &["nft"]);
        let (directory, address) = (
            exports.directory.path(),
            socket(exports.directory.path(), number),
        );
        let state = directory.join(Cluster::node_name(number));
        let of_agent = ["nft", "--from", "agent", "--address", &address];
        assert_eq!(run(node, number, &of_agent), text, "the table in force");
        agent.stop(PATIENT).unwrap();
        let of_disk = [
            "nft",
            "--from",
            "disk",
            "--state-dir",
            state.to_str().unwrap(),
        ];
        assert_eq!(run(node, number, &of_disk), text, "the table on disk");
        // The second time it replaces what it made.
        for _ in 0..2 {
            let namespace = node.namespace();
            namespace
                .exec_with_input(&["nft", "-f", "-"], &text)
                .unwrap();
        }
        // While the kernel enlarges sets without a size, a reading may lack elements.
        let wanted = before.each_ref().map(shape);
        let _ = wait_for("the whole content", PATIENT, || {
            (content(node).each_ref().map(shape) == wanted).then_some(())
        });
        for (before, after) in before.iter().zip(content(node)) {
            assert_eq!(shape(before), shape(&after));
        }
        programmed.push(before);
    }
    let outcomes = stage.play(&rows, Patience::of_lane()).unwrap();
    let wrong = report(&outcomes);
    assert!(wrong.is_empty(), "{wrong:#?}");
    // An agent puts its own rules in the place of these.
    let exported = content(node);
    let _agent = start(&exports, 0);
    let taken = content(node);
    assert_ne!(taken, exported);
    // Sets that have no size stay so.
    let without_sizes = |mut content: TableContent| {
        for (set, _) in content.sets.values_mut() {
            set.size = None;
        }
        content
    };
    let of_agent = programmed.swap_remove(0).map(without_sizes);
    assert_eq!(taken.map(without_sizes), of_agent);
}

fn content(node: &Node) -> [TableContent; 2] {
    let read = || {
        Family::ALL.map(|family| {
            let content = Nftables::open().unwrap().content(family, "portolan");
            content.unwrap().expect("a table")
        })
    };
    node.namespace().run(read).unwrap()
}

/// Returns the content that both ways of making a table have in common: chains with their hooks, and sets with all
/// elements. `nft` writes rules in its own way, and numbers in keys as another type of the same bytes.
fn shape(content: &TableContent) -> (Vec<String>, Vec<String>) {
    let chains = content
        .chains
        .values()
        .map(|(chain, _)| format!("{chain:?}"));
    // `nft` makes a set without a name of each list of protocols in a rule.
    let named = content.sets.values();
    let named = named.filter(|(set, _)| !set.name.starts_with("__"));
    let sets = named.map(|(set, elements)| {
        let Set {
            name,
            data,
            is_interval,
            is_dynamic,
            ..
        } = set;
        // The agent gives other sets sizes too, which depend on what they had.
        let size = set.size.filter(|_| *is_dynamic);
        let elements: BTreeSet<String> = elements
            .iter()
            .map(|(key, value)| format!("{key:?} {value:?}"))
            .collect();
        let is_of_numbers = name.ends_with("endpoints");
        let data = (!is_of_numbers).then_some(data);
        format!("{name} {data:?} {is_interval} {is_dynamic} {size:?} {elements:?}")
    });
    (chains.collect(), sets.collect())
}
