// SPDX-License-Identifier: Apache-2.0

//! Several clusters behind one controller, with agents that program nftables on this machine's own kernel.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::Command;

use portolan_e2e::ask::{address, answers, ways};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, http_status};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{service, slices};
use portolan_e2e::programs::{AGENT_ADMIN, Source, program};
use portolan_e2e::rig::{Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};
use tempfile::TempDir;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

fn skip(test: &str) -> bool {
    !lane::provides(test, &[Need::Root, Need::Nftables])
}

/// Files of a policy and of the objects of its clusters.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Replaces a file atomically.
    fn write(&self, name: &str, text: &str) {
        let hidden = self.path(&format!(".{name}"));
        std::fs::write(&hidden, text).unwrap();
        std::fs::rename(hidden, self.path(name)).unwrap();
    }

    /// A policy of clusters that read the files of their name.
    fn policy(&self, clusters: &[&str]) {
        let of = |(number, name): (usize, &&str)| {
            let path = self.path(&format!("{name}.json"));
            json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
                "spec": {"access": {"files": [path]}, "network": {"podCIDRs": [format!("10.{number}.0.0/16")]}}})
        };
        let documents = clusters.iter().enumerate().map(of);
        let text: Vec<_> = documents.map(|document| document.to_string()).collect();
        self.write("policy.yaml", &text.join("\n---\n"));
    }

    /// The Service `web` of a cluster, with one pod.
    fn web(&self, cluster: &str, pod: &EchoPod, node: usize) {
        let objects = [
            vec![service("web", WEB, json!({}))],
            slices("web", &[(pod, node)]),
        ];
        let list = json!({"kind": "List", "items": objects.concat()});
        self.write(&format!("{cluster}.json"), &list.to_string());
    }
}

/// A controller of the policy; node 0 is of `eu-1` and node 1 of `us-1`.
fn start(files: &Files) -> Cluster {
    let rig = Rig::new(RigConfig::CLUSTER).unwrap();
    let source = Source::Clusters(files.path("policy.yaml"));
    let cluster = Cluster::without_agents(rig, source).unwrap();
    let mut cluster = cluster.programming("nftables");
    for (number, name) in ["eu-1", "us-1"].iter().enumerate() {
        let flag = format!("--cluster={name}");
        cluster.start_agent_with(number, &[&flag]).unwrap();
    }
    cluster
}

fn is_ready(cluster: &Cluster, number: usize) -> bool {
    let namespace = cluster.rig.node(number).namespace();
    matches!(http_status(namespace, AGENT_ADMIN, "/readyz"), Ok(200))
}

/// The status of a cluster; `Null` if it is not served.
fn status(cluster: &Cluster, name: &str) -> Value {
    let dump = cluster.controller_debug("clusters").unwrap();
    let all = dump["clusters"].as_array().unwrap();
    let found = all.iter().find(|one| one["name"] == name);
    found.cloned().unwrap_or_default()
}

/// Returns when the agents of a cluster have programmed its newest revision, which is after `revision`.
fn programmed_after(cluster: &Cluster, name: &str, revision: u64) {
    wait_for(&format!("{name} to be programmed"), PATIENT, || {
        let status = status(cluster, name);
        let is_new = status["revision"].as_u64()? > revision;
        (is_new && status["programmed"] == 1).then_some(())
    })
    .unwrap();
}

fn ask(cluster: &Cluster, visitor: usize, expected: &str) {
    let visitor = cluster.add_pod(visitor, "visitor").unwrap();
    for (family, protocol) in ways() {
        answers(
            &visitor.pod,
            protocol,
            address(WEB, family, 80),
            &[expected],
        );
    }
}

#[test]
fn a_cluster_is_served_while_another_one_is_silent() {
    if skip("a_cluster_is_served_while_another_one_is_silent") {
        return;
    }
    let files = Files::new();
    files.policy(&["eu-1", "us-1"]);
    let cluster = start(&files);
    let (a, b) = (
        cluster.add_pod(0, "a").unwrap(),
        cluster.add_pod(1, "b").unwrap(),
    );
    files.web("eu-1", &a, 0);
    cluster.wait_until_ready(0).unwrap();
    ask(&cluster, 0, "a");
    let us = wait_for("the agent of us-1 to connect", PATIENT, || {
        Some(status(&cluster, "us-1")).filter(|status| status["connected"] == 1)
    });
    assert_eq!(us.unwrap()["served"], false);
    assert!(!is_ready(&cluster, 1), "its cluster has no table yet");

    // The same address and name in both clusters.
    files.web("us-1", &b, 1);
    cluster.wait_until_ready(1).unwrap();
    ask(&cluster, 1, "b");
    ask(&cluster, 0, "a");
}

#[test]
fn clusters_leave_and_return_and_others_do_not_notice() {
    if skip("clusters_leave_and_return_and_others_do_not_notice") {
        return;
    }
    let files = Files::new();
    files.policy(&["eu-1", "us-1"]);
    let cluster = start(&files);
    let pods = ["a", "b", "c"].map(|name| cluster.add_pod(0, name).unwrap());
    files.web("eu-1", &pods[0], 0);
    files.web("us-1", &pods[1], 0);
    for number in 0..2 {
        cluster.wait_until_ready(number).unwrap();
    }
    let eu = status(&cluster, "eu-1")["revision"].as_u64().unwrap();

    // A bad policy is named, and changes nothing.
    files.write("policy.yaml", "kind: [");
    wait_for("the policy's problem", PATIENT, || {
        let problems = cluster.controller_debug("problems").ok()?;
        let first = problems["files"][0].as_str()?;
        first.contains("policy.yaml:1:").then_some(())
    })
    .unwrap();
    assert_eq!(status(&cluster, "us-1")["connected"], 1);

    // Agents of a cluster that leaves are sent nothing: they keep the last table.
    files.policy(&["eu-1"]);
    wait_for("us-1 to leave", PATIENT, || {
        status(&cluster, "us-1").is_null().then_some(())
    })
    .unwrap();
    ask(&cluster, 1, "b");
    ask(&cluster, 0, "a");

    files.web("us-1", &pods[2], 0);
    files.policy(&["eu-1", "us-1"]);
    programmed_after(&cluster, "us-1", eu);
    ask(&cluster, 1, "c");
    assert_eq!(
        status(&cluster, "eu-1")["revision"],
        eu,
        "eu-1 did not change"
    );

    // Dumps and portolanctl tell the clusters apart.
    let control = cluster.control();
    let ctl = program("portolanctl").unwrap();
    let run = |args: &[&str]| control.exec(&[&[text(&ctl)], args].concat());
    let listed = run(&["cluster", "list"]).unwrap();
    assert!(listed.contains("eu-1     yes"), "{listed}");
    let unnamed = format!("{:#}", run(&["nodes"]).unwrap_err());
    assert!(unnamed.contains("portolanctl cluster list"), "{unnamed}");
    let nodes = run(&["nodes", "--cluster=us-1"]).unwrap();
    assert!(
        nodes.contains("node2") && !nodes.contains("node1"),
        "{nodes}"
    );
}

#[test]
fn flags_of_a_single_cluster_are_refused() {
    let files = Files::new();
    files.policy(&["eu-1"]);
    let policy = files.path("policy.yaml");
    let check = |more: &[&str]| {
        let mut command = Command::new(program("portolan-controller").unwrap());
        command.args([
            "--check-config",
            "--plaintext",
            "--source=clusters",
            "--policy-file",
        ]);
        let output = command.arg(&policy).args(more).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    assert_eq!(check(&[]).0, Some(0));
    let (code, text) = check(&["--cluster=eu-1"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--cluster is for a single cluster"), "{text}");
    files.write("policy.yaml", "kind: Cluster\n");
    let (code, text) = check(&[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("policy.yaml:1:"), "{text}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
