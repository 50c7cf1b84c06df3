// SPDX-License-Identifier: Apache-2.0

//! Imports that the controller of a cluster serves itself, with its centre and without.

use std::time::{Duration, Instant};

use portolan_e2e::cluster::{Cluster, PATIENT};
use portolan_e2e::rig::Family;
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

use super::losses::{generation, kernels};
use super::world::{PODS, World, shares, skip};

/// The cluster that is looked at, `eu-2`.
const EDGE: usize = 1;
/// Changes whose times have a median.
const CHANGES: usize = 16;
/// Largest ratio of the time of a change without the centre to its time with it.
const MOST: f64 = 1.5;
/// Less than that is noise of this machine: files are read every 20 ms.
const NOISE: Duration = Duration::from_millis(20);

/// Returns when the agent has programmed all that the edge has.
fn wait_until_settled(world: &World) {
    wait_for("the agent of the edge", PATIENT, || {
        let dump = world.edge_debug(EDGE, "nodes");
        let head = dump["revision"].as_u64()?;
        let node = &dump["nodes"][0];
        let is_settled = node["connected"] == true && node["programmed"].as_u64() == Some(head);
        is_settled.then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}: {}", world.edge_debug(EDGE, "nodes")));
}

/// The time from a change of the number of own ready endpoints until the kernel of the cluster's node has it.
fn change(world: &World, ready: usize) -> Duration {
    wait_until_settled(world);
    let before = generation(world, EDGE);
    let started = Instant::now();
    world.web(EDGE, ready, &[]);
    wait_for("the kernel", PATIENT, || {
        (generation(world, EDGE) != before).then_some(())
    })
    .unwrap();
    started.elapsed()
}

/// The median time of changes from `ready` to one less and back.
fn change_of_own(world: &World, ready: usize) -> Duration {
    let mut times: Vec<Duration> = (0..CHANGES)
        .map(|number| change(world, ready - (number + 1) % 2))
        .collect();
    times.sort();
    times[CHANGES / 2]
}

/// The records of imports that the edge serves.
fn imports(world: &World) -> Vec<Value> {
    imports_at(world, EDGE)
}

/// The same of the edge of any cluster.
pub(crate) fn imports_at(world: &World, number: usize) -> Vec<Value> {
    let node = Cluster::node_name(number);
    let mut found = Vec::new();
    collect(
        &world.edge_debug(number, &format!("table/{node}")),
        &mut found,
    );
    found
}

fn collect(value: &Value, found: &mut Vec<Value>) {
    let service = value["key"]["service"].as_str().unwrap_or_default();
    if service.ends_with("@clusterset") {
        found.push(value.clone());
        return;
    }
    match value {
        Value::Array(all) => all.iter().for_each(|one| collect(one, found)),
        Value::Object(fields) => fields.values().for_each(|one| collect(one, found)),
        _ => {}
    }
}

#[test]
fn an_edge_serves_imports_and_goes_on_without_its_centre() {
    if skip("an_edge_serves_imports_and_goes_on_without_its_centre") {
        return;
    }
    let mut world = World::served_by_edges(PODS, shares(), json!({"staleTTL": "1h"}));
    let state = world.files.path().join("state");
    let flag = format!("--state-dir={}", state.display());
    world.cluster.controller().unwrap().kill9().unwrap();
    world.cluster.start_controller_with(&[&flag]).unwrap();
    wait_for("the import at the edge", PATIENT, || {
        let all = world.permille_in("eu-2").into_values();
        let is_whole = all.collect::<Vec<_>>() == [700, 200, 100];
        // Two protocols, with the pods of all clusters.
        let records = imports(&world);
        let of_first = records.first()?["destinations"].as_array()?.len();
        (is_whole && records.len() == 2 && of_first == 2 * PODS.iter().sum::<usize>()).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}: {:?}", imports(&world)));
    wait_until_settled(&world);
    let vip = world.vip("eu-2", Family::V4);
    let visitor = world.cluster.add_pod(EDGE, "inside").unwrap();
    World::check_shares_from(&visitor, vip, [70.0, 20.0, 10.0]);
    let normal = change_of_own(&world, PODS[EDGE]);

    // Without the centre the own endpoints still come and go, with the same share.
    world.cluster.controller().unwrap().kill9().unwrap();
    let alone = change_of_own(&world, PODS[EDGE]);
    let ratio = alone.as_secs_f64() / normal.as_secs_f64();
    println!(
        "an own endpoint is programmed after {normal:?} with the centre, {alone:?} without it: {ratio:.2}"
    );
    assert!(
        ratio <= MOST || alone < normal + NOISE,
        "{alone:?} instead of {normal:?}"
    );
    change(&world, 2);
    wait_until_settled(&world);
    let answered = World::check_shares_from(&visitor, vip, [70.0, 20.0, 10.0]);
    let own = answered.iter().filter(|name| name.starts_with("eu-2"));
    assert_eq!(own.collect::<Vec<_>>(), ["eu-2-0", "eu-2-1"]);

    // An edge that starts alone serves the same, and no kernel is written.
    let (served, kernel) = (imports(&world), kernels(&world));
    assert_eq!(served.len(), 2);
    world.edge(EDGE).kill9().unwrap();
    world.start_edge(EDGE, "edge-1");
    world
        .edge(EDGE)
        .wait_for_log("served by saved plans", PATIENT)
        .unwrap();
    wait_until_settled(&world);
    assert_eq!(imports(&world), served);
    assert_eq!(kernels(&world), kernel);

    // Nor when the centre is back.
    world.cluster.start_controller_with(&[&flag]).unwrap();
    wait_for("the plans", PATIENT, || {
        let metrics = world.edge_metrics(EDGE);
        let name = "portolan_controller_edge_plan_transitions_total ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name))?;
        (line != "0").then_some(())
    })
    .unwrap();
    world.wait_for_state("eu-2", "Ready");
    wait_until_settled(&world);
    assert_eq!(imports(&world), served);
    assert_eq!(kernels(&world)[EDGE], kernel[EDGE]);

    // Another cluster's change comes through again.
    world.web(0, 1, &[]);
    wait_for("the endpoints of eu-1", PATIENT, || {
        (imports(&world) != served).then_some(())
    })
    .unwrap();
}
