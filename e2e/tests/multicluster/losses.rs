// SPDX-License-Identifier: Apache-2.0

//! Clusters out of contact: frozen, drained, back again.

use std::time::Duration;

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::programs::program;
use portolan_e2e::rig::Family;
use portolan_e2e::wait::wait_for;
use portolan_netlink::nftables::Nftables;
use serde_json::{Value, json};

use super::world::{CLUSTERS, World, shares, skip};

/// Lets one of three clusters be lost some time after it is stale, longer than a busy machine takes for a cut, and return
/// soon.
pub(crate) fn soon() -> Value {
    json!({"staleTTL": "10s", "returnAfter": "2s", "rampUp": "4s"})
}

/// Takes the objects of a cluster out of sight of its source, which notices, or brings them back.
pub(crate) fn cut(world: &World, number: usize, cut: bool) {
    let (there, away) = (
        world.directory(number),
        world
            .files
            .path()
            .join(format!("away-{}", CLUSTERS[number])),
    );
    let (from, to) = if cut {
        (&there, &away)
    } else {
        (&away, &there)
    };
    std::fs::rename(from, to).unwrap();
    wait_for("the source to notice", PATIENT, || {
        let problems = world.cluster.controller_debug("problems").ok()?["files"].to_string();
        let path = there.to_str().unwrap();
        (problems.contains(path) == cut).then_some(())
    })
    .unwrap();
}

/// The generation of nftables on a node: every write makes another one.
pub(crate) fn generation(world: &World, node: usize) -> u32 {
    let read = || Nftables::open().unwrap().generation().unwrap();
    world.cluster.rig.node(node).namespace().run(read).unwrap()
}

/// The generations of nftables on all nodes.
pub(crate) fn kernels(world: &World) -> Vec<u32> {
    let nodes = 0..world.cluster.rig.nodes().len();
    nodes.map(|node| generation(world, node)).collect()
}

fn revisions(world: &World) -> [u64; 3] {
    CLUSTERS.map(|name| world.revision(name))
}

#[test]
fn short_cuts_change_nothing() {
    if skip("short_cuts_change_nothing") {
        return;
    }
    let world = World::new([2, 2, 2], shares(), soon());
    world.wait_for_shares([700, 200, 100]);
    world.wait_for_state("eu-2", "Ready");
    let (before, kernel) = (revisions(&world), kernels(&world));
    for _ in 0..20 {
        cut(&world, 1, true);
        cut(&world, 1, false);
    }
    assert_eq!(revisions(&world), before);
    assert_eq!(kernels(&world), kernel);
    assert_eq!(world.state("eu-2"), ("Ready".to_owned(), 20));
}

/// The number of clusters whose sources were silent for so many seconds.
fn silent(world: &World, seconds: f64) -> usize {
    let dump = world.cluster.controller_debug("clusters").unwrap();
    let all = dump["clusters"].as_array().unwrap().iter();
    let silences = all.filter_map(|one| one["lastContactSeconds"].as_f64());
    silences.filter(|silence| *silence >= seconds).count()
}

fn is_preserving(world: &World) -> bool {
    let metrics = world.cluster.controller_metrics().unwrap();
    let line = "portolan_controller_self_preservation 1";
    metrics.lines().any(|found| found == line)
}

#[test]
fn clusters_that_are_cut_off_all_at_once_but_one_change_nothing() {
    if skip("clusters_that_are_cut_off_all_at_once_but_one_change_nothing") {
        return;
    }
    let world = World::new([2, 2, 2], shares(), soon());
    world.wait_for_shares([700, 200, 100]);
    for name in CLUSTERS {
        world.wait_for_state(name, "Ready");
    }
    assert!(!is_preserving(&world));
    // Slowly: for so long, there are not more source ports.
    let load = world.load(1_000_000, Duration::from_millis(20));
    let (before, kernel) = (revisions(&world), kernels(&world));
    for number in 1..CLUSTERS.len() {
        cut(&world, number, true);
    }
    for name in &CLUSTERS[1..] {
        world.wait_for_state(name, "Stale");
    }
    // One of them alone would be lost after 30 s of silence and 10 s more.
    wait_for("the time of a loss", PATIENT, || {
        (silent(&world, 60.0) == 2).then_some(())
    })
    .unwrap();
    assert!(is_preserving(&world));
    for name in &CLUSTERS[1..] {
        assert_eq!(world.state(name), ("Stale".to_owned(), 20));
    }
    assert_eq!(revisions(&world), before);
    assert_eq!(kernels(&world), kernel);

    for number in 1..CLUSTERS.len() {
        cut(&world, number, false);
    }
    for name in CLUSTERS {
        world.wait_for_state(name, "Ready");
    }
    wait_for("the end of self-preservation", PATIENT, || {
        (!is_preserving(&world)).then_some(())
    })
    .unwrap();
    assert_eq!(revisions(&world), before);
    assert_eq!(kernels(&world), kernel);
    let report = load.stop();
    assert_eq!(report.failures.len(), 0, "{:?}", report.failures);
    assert!(report.requests > 1000, "{}", report.requests);
}

#[test]
fn a_lost_cluster_is_frozen_then_drained_and_returns_step_by_step() {
    if skip("a_lost_cluster_is_frozen_then_drained_and_returns_step_by_step") {
        return;
    }
    let world = World::new([2, 2, 2], shares(), soon());
    world.wait_for_shares([700, 200, 100]);
    // Its pods live on; only its objects are out of sight.
    let load = world.load(1_000_000, Duration::from_millis(5));
    let before = revisions(&world);
    cut(&world, 1, true);
    world.wait_for_state("eu-2", "Stale");
    assert_eq!(revisions(&world), before, "frozen");
    world.wait_for_state("eu-2", "Lost");
    world.wait_for_shares([875, 0, 125]);

    cut(&world, 1, false);
    let mut steps = Vec::new();
    wait_for("eu-2 to be back", PATIENT, || {
        let (state, step) = world.state("eu-2");
        if steps.last() != Some(&step) {
            steps.push(step);
        }
        (state == "Ready").then_some(())
    })
    .unwrap();
    assert!(
        steps.is_sorted() && steps.len() > 3,
        "step by step: {steps:?}"
    );
    world.wait_for_shares([700, 200, 100]);
    let report = load.stop();
    assert_eq!(report.failures.len(), 0, "{:?}", report.failures);
    assert!(report.requests > 1000, "{}", report.requests);
}

#[test]
fn an_operators_drain_outlives_a_restart() {
    if skip("an_operators_drain_outlives_a_restart") {
        return;
    }
    let mut world = World::new([1, 1, 1], shares(), json!({"rampUp": "1s"}));
    let path = |name: &str| world.files.path().join(name);
    let (state, token) = (path("state"), path("token"));
    std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    let flags = [
        format!("--state-dir={}", state.display()),
        format!("--debug-token-file={}", token.display()),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let restart = |world: &mut World| {
        world.cluster.controller().unwrap().kill9().unwrap();
        world.cluster.start_controller_with(&flags).unwrap();
    };
    let ctl = program("portolanctl").unwrap();
    let operate = |world: &World, command: &[&str]| {
        let credential = ["--token-file", token.to_str().unwrap()];
        let all = [&[ctl.to_str().unwrap()][..], &credential, command].concat();
        world.cluster.control().exec(&all)
    };
    restart(&mut world);
    world.wait_for_shares([700, 200, 100]);
    let url = ["--controller", "http://127.0.0.1:9444"];
    let drain = [&url[..], &["cluster", "drain", "eu-1", "--to", "50"]].concat();
    let undrain = [&url[..], &["cluster", "undrain", "eu-1"]].concat();
    operate(&world, &drain).unwrap();
    world.wait_for_shares([538, 308, 154]);
    let log = world.cluster.controller().unwrap().log().unwrap();
    let mut lines = log.lines();
    let acted = lines.find(|line| line.contains("audit: an operator acted"));
    let acted = acted.unwrap_or_else(|| panic!("{log}"));
    for part in ["with the token", "action=/drain/eu-1?to=50", "status=200"] {
        assert!(acted.contains(part), "{part}: {acted}");
    }
    wait_for("the drain to be kept", PATIENT, || {
        let text = std::fs::read_to_string(state.join("drains.yaml")).ok()?;
        text.contains("eu-1").then_some(())
    })
    .unwrap();
    restart(&mut world);
    world.wait_for_shares([538, 308, 154]);
    // Connecting until the next look at its source; the step was never another one.
    assert_eq!(world.state("eu-1").1, 10);
    world.wait_for_state("eu-1", "Drained");
    assert_eq!(world.state("eu-1").1, 10);

    // The policy comes first.
    world.policy(&json!({"drain": {"to": 0}}));
    world.wait_for_shares([0, 667, 333]);
    let error = format!("{:#}", operate(&world, &undrain).unwrap_err());
    assert!(error.contains("spec.drain of the policy holds"), "{error}");
    world.policy(&json!({}));
    world.wait_for_shares([538, 308, 154]);
    operate(&world, &undrain).unwrap();
    world.wait_for_shares([700, 200, 100]);
}

#[test]
fn a_restart_while_a_cluster_is_away_deletes_nothing() {
    if skip("a_restart_while_a_cluster_is_away_deletes_nothing") {
        return;
    }
    let loss = json!({"staleTTL": "1h"});
    let mut world = World::new([2, 2, 2], shares(), loss);
    let state = world.files.path().join("state");
    let flag = format!("--state-dir={}", state.display());
    let restart = |world: &mut World| {
        world.cluster.controller().unwrap().kill9().unwrap();
        world.cluster.start_controller_with(&[&flag]).unwrap();
    };
    restart(&mut world);
    world.wait_for_shares([700, 200, 100]);
    let vips = CLUSTERS.map(|name| world.vip(name, Family::V4));
    let kept = || std::fs::read_to_string(state.join("allocations.yaml")).unwrap_or_default();
    wait_for("the addresses to be kept", PATIENT, || {
        let text = kept();
        vips.iter()
            .all(|vip| text.contains(&vip.ip().to_string()))
            .then_some(())
    })
    .unwrap();
    wait_for("the contact to be kept", PATIENT, || {
        let text = std::fs::read_to_string(state.join("clusters.yaml")).ok()?;
        (text.matches("phase: Ready").count() == 3).then_some(())
    })
    .unwrap();
    let kernel = kernels(&world);

    std::fs::rename(world.directory(1), world.files.path().join("away")).unwrap();
    restart(&mut world);
    // Its endpoints are unknown, so that nobody who had them is served without them.
    wait_for("the other clusters to be read", PATIENT, || {
        let dump = world.cluster.controller_debug("clusters").ok()?;
        let all = dump["clusters"].as_array()?;
        let known = all.iter().filter(|one| one["state"] == "Ready").count();
        (known == 2).then_some(())
    })
    .unwrap();
    let log = world.cluster.controller().unwrap();
    let waits = "may need endpoints of another cluster";
    log.wait_for_log(waits, PATIENT).unwrap();
    assert_eq!(kernels(&world), kernel);
    let load = world.load(400, Duration::ZERO);
    wait_for("the load", PATIENT, || {
        (load.answered() + load.failed() as u64 >= 400).then_some(())
    })
    .unwrap();
    assert_eq!(load.stop().failures.len(), 0);

    std::fs::rename(world.files.path().join("away"), world.directory(1)).unwrap();
    world.wait_for_shares([700, 200, 100]);
    assert_eq!(CLUSTERS.map(|name| world.vip(name, Family::V4)), vips);
}
