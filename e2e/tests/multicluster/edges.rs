// SPDX-License-Identifier: Apache-2.0

//! Clusters whose edge controllers dial the centre.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use portolan_e2e::ask::{address, answers, ways};
use portolan_e2e::cluster::{PATIENT, control, http_get};
use portolan_e2e::programs::{self, Source, program};
use portolan_e2e::rig::{Family, Process, Protocol, Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use serde_json::json;
use tempfile::TempDir;

use super::losses::{kernels, soon};
use super::world::{WEB, World, shares, skip};

#[test]
fn clusters_behind_edges_are_shared_and_a_restart_of_either_side_changes_nothing() {
    if skip("clusters_behind_edges_are_shared_and_a_restart_of_either_side_changes_nothing") {
        return;
    }
    let mut world = World::with_edges([2, 2, 2], shares(), json!({"staleTTL": "1h"}));
    let state = world.files.path().join("state");
    let flag = format!("--state-dir={}", state.display());
    let restart = |world: &mut World| {
        world.cluster.controller().unwrap().kill9().unwrap();
        world.cluster.start_controller_with(&[&flag]).unwrap();
        world.wait_for_shares([700, 200, 100]);
    };
    restart(&mut world);
    let all: Vec<_> = world
        .pods
        .iter()
        .flatten()
        .map(|pod| pod.pod.name())
        .collect();
    let vip = world.vip("eu-1", Family::V4);
    answers(&world.visitor.pod, Protocol::Tcp, vip, &all);

    // The agents of a cluster behind an edge have its own Services, from the centre.
    let visitor = world.cluster.add_pod(1, "inside").unwrap();
    for (family, protocol) in ways() {
        let web = address(WEB, family, 80);
        answers(&visitor.pod, protocol, web, &["eu-2-0", "eu-2-1"]);
    }

    // A change comes through.
    let revision = world.revision("eu-2");
    world.web(1, 1, &[]);
    wait_for("the change", PATIENT, || {
        (world.revision("eu-2") > revision).then_some(())
    })
    .unwrap();
    world.wait_for_shares([700, 200, 100]);
    let visitor = world.cluster.add_pod(1, "later").unwrap();
    for (family, protocol) in ways() {
        let web = address(WEB, family, 80);
        answers(&visitor.pod, protocol, web, &["eu-2-0"]);
    }

    let (kernel, load) = (
        kernels(&world),
        world.load(1_000_000, Duration::from_millis(5)),
    );
    for number in [1, 2] {
        world.edge(number).kill9().unwrap();
        world.start_edge(number, "edge-1");
        let edge = world.edge(number);
        edge.wait_for_log("sending the objects", PATIENT).unwrap();
    }
    // Without what it keeps, the centre would serve eu-1 before the edges have dialled.
    wait_for("the contact to be kept", PATIENT, || {
        let text = std::fs::read_to_string(state.join("clusters.yaml")).ok()?;
        (text.matches("phase: Ready").count() == 3).then_some(())
    })
    .unwrap();
    restart(&mut world);
    assert_eq!(kernels(&world), kernel);
    let report = load.stop();
    assert_eq!(report.failures.len(), 0, "{:?}", report.failures);
}

#[test]
fn a_cluster_without_its_edge_is_lost_and_another_edge_brings_it_back() {
    if skip("a_cluster_without_its_edge_is_lost_and_another_edge_brings_it_back") {
        return;
    }
    let mut world = World::with_edges([2, 2, 2], shares(), soon());
    world.wait_for_shares([700, 200, 100]);
    world.wait_for_state("eu-2", "Ready");
    let load = world.load(1_000_000, Duration::from_millis(5));
    world.edge(1).kill9().unwrap();
    let problem = "Cluster eu-2: spec.access.edge: no edge controller is connected";
    let is_named = |world: &World| {
        let problems = world.cluster.controller_debug("problems").unwrap();
        problems["files"].to_string().contains(problem)
    };
    wait_for("the problem", PATIENT, || is_named(&world).then_some(())).unwrap();
    world.wait_for_state("eu-2", "Lost");
    world.wait_for_shares([875, 0, 125]);
    world.start_edge(1, "edge-2");
    world.wait_for_state("eu-2", "Ready");
    world.wait_for_shares([700, 200, 100]);
    assert!(!is_named(&world));
    let report = load.stop();
    assert_eq!(report.failures.len(), 0, "{:?}", report.failures);
}

/// Runs a program to its end.
fn made(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
}

/// An edge of `eu-1` that shows the certificate in a directory.
fn edge(rig: &Rig, files: &Path, certificate: &str, name: &str, port: u16) -> Process {
    let source = Source::Files(files.join("objects"));
    let mut command = programs::controller(&source, port).unwrap();
    let centre = control(rig).v4();
    command
        .args(["--plaintext", "--cluster=eu-1"])
        .arg(format!("--edge-name={name}"))
        .arg(format!("--federation-upstream={centre}:9443"))
        .arg("--federation-tls-dir")
        .arg(files.join("certs").join(certificate));
    let log = format!("edge-{port}");
    Process::spawn(control(rig).namespace(), &log, &mut command, files).unwrap()
}

#[test]
fn an_edge_sends_the_cluster_of_its_certificate_only() {
    if skip("an_edge_sends_the_cluster_of_its_certificate_only") {
        return;
    }
    let (files, rig) = (
        TempDir::new().unwrap(),
        Rig::new(RigConfig::CLUSTER).unwrap(),
    );
    let (files, at) = (files.path(), control(&rig).v4().to_string());
    let certify = |arguments: &[&str]| {
        let mut command = Command::new(program("portolan-controller").unwrap());
        command
            .args(["certs", "--server-name", &at, "--dir"])
            .arg(files.join("certs"));
        made(command.args(arguments));
    };
    certify(&[
        "--cluster=eu-1",
        "--edge=one,two",
        "--node=node1",
        "--relay=three",
    ]);
    certify(&["--cluster=us-1", "--edge=four"]);
    std::fs::create_dir(files.join("objects")).unwrap();
    let cluster = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "Cluster",
        "metadata": {"name": "eu-1"},
        "spec": {"access": {"edge": {}}, "network": {"podCIDRs": ["10.1.0.0/16"]}}});
    std::fs::write(files.join("policy.yaml"), cluster.to_string()).unwrap();
    let source = Source::Clusters(files.join("policy.yaml"));
    let mut command = programs::controller(&source, 9443).unwrap();
    command.arg("--tls-dir").arg(files.join("certs/controller"));
    let namespace = control(&rig).namespace();
    let _centre = Process::spawn(namespace, "centre", &mut command, files).unwrap();

    for (number, (certificate, name, refused)) in [
        ("nodes/node1", "node1", "you are the node"),
        ("relays/three", "three", "you are the relay"),
        ("edges/two", "one", "you are the edge"),
        ("edges/four", "four", "cluster: yours is"),
    ]
    .into_iter()
    .enumerate()
    {
        let port = 9600 + 2 * u16::try_from(number).unwrap();
        let mut process = edge(&rig, files, certificate, name, port);
        process.wait_for_log(refused, PATIENT).unwrap();
    }
    let mut first = edge(&rig, files, "edges/one", "one", 9700);
    first.wait_for_log("sending the objects", PATIENT).unwrap();
    // One edge at a time: the other one waits.
    let mut second = edge(&rig, files, "edges/two", "two", 9702);
    second
        .wait_for_log("sends the objects of this cluster", PATIENT)
        .unwrap();
    first.stop(PATIENT).unwrap();
    second.wait_for_log("sending the objects", PATIENT).unwrap();
    let metrics = |port| http_get(namespace, port, "/metrics").unwrap();
    // Either side sets its metric when the other one's answer has come.
    for (port, line) in [
        (
            9444,
            "portolan_controller_cluster_edge_connected{cluster=\"eu-1\"} 1",
        ),
        (9703, "portolan_controller_edge_replicas_current 1"),
    ] {
        wait_for(line, PATIENT, || metrics(port).contains(line).then_some(())).unwrap();
    }
    let refusals = metrics(9444);
    for (reason, least) in [("not_edge", 3), ("wrong_cluster", 1)] {
        let name = format!("portolan_controller_sessions_refused_total{{reason=\"{reason}\"}} ");
        let line = refusals.lines().find_map(|line| line.strip_prefix(&name));
        let count: u64 = line.unwrap().parse().unwrap();
        assert!(count >= least, "{reason}: {count}");
    }
}
