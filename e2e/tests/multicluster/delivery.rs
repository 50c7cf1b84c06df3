// SPDX-License-Identifier: Apache-2.0

//! The time from a change of an endpoint until the nodes of other clusters have programmed it, beside that of the
//! cluster's own node.

use std::time::{Duration, Instant};

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::wait::{wait_for, wait_with_pauses};
use serde_json::json;

use super::losses::{generation, kernels};
use super::served::imports_at;
use super::world::{CLUSTERS, World, shares, skip};

/// The cluster whose endpoints change. The centre and the other clusters have them from its edge controller.
const CHANGED: usize = 1;
/// Pods of each cluster.
const PODS: [usize; 3] = [2, 4, 2];
/// Changes whose times have a 99th percentile.
const CHANGES: usize = 100;
/// The pause between two looks at the kernels.
const LOOK: Duration = Duration::from_millis(1);
/// The most that half of the changes may take, with programs that are not optimised, on a busy machine.
const MOST: Duration = Duration::from_secs(1);

/// Returns `true` if the nodes of a cluster have programmed all that their controller has.
fn is_programmed(world: &World, number: usize) -> bool {
    if number == 0 {
        let dump = world.cluster.controller_debug("clusters");
        let dump = dump.unwrap_or_default();
        let mut all = dump["clusters"].as_array().into_iter().flatten();
        let found = all.find(|one| one["name"] == CLUSTERS[number]);
        return found.is_some_and(|one| one["connected"] == 1 && one["programmed"] == 1);
    }
    let dump = world.edge_debug(number, "nodes");
    let (head, node) = (dump["revision"].as_u64(), &dump["nodes"][0]);
    node["connected"] == true && head.is_some() && node["programmed"].as_u64() == head
}

/// The generations of the kernels once nothing is on its way to them.
fn settled(world: &World) -> Vec<u32> {
    let settled = wait_for("all nodes to have all", PATIENT, || {
        let before = kernels(world);
        let is_programmed = (0..CLUSTERS.len()).all(|number| is_programmed(world, number));
        (is_programmed && kernels(world) == before).then_some(before)
    });
    settled.unwrap()
}

/// The times from a change of the number of ready endpoints until the own node has it, and until the last of the others
/// has.
fn change(world: &World, ready: usize) -> [Duration; 2] {
    let before = settled(world);
    let mut times: [Option<Duration>; 3] = [None; 3];
    let started = Instant::now();
    world.web(CHANGED, ready, &[]);
    wait_with_pauses("the kernels", PATIENT, LOOK, || {
        for (number, time) in times.iter_mut().enumerate() {
            if time.is_none() && generation(world, number) != before[number] {
                *time = Some(started.elapsed());
            }
        }
        times.iter().all(Option::is_some).then_some(())
    })
    .unwrap();
    let times = times.map(Option::unwrap);
    let others = times.iter().enumerate();
    let others = others.filter(|(number, _)| *number != CHANGED);
    [times[CHANGED], others.map(|(_, time)| *time).max().unwrap()]
}

/// The median and the 99th percentile of times, printed.
fn print(place: &str, mut times: Vec<Duration>, goals: [Option<f64>; 2]) -> [Duration; 2] {
    times.sort();
    let found = [times[CHANGES / 2], times[CHANGES * 99 / 100 - 1]];
    for ((name, time), goal) in ["p50", "p99"].into_iter().zip(found).zip(goals) {
        let name = format!("federation_delivery_{place}_{name}");
        figure(
            &name,
            time.as_secs_f64() * 1_000.0,
            "ms",
            goal.map(Goal::AtMost),
        );
    }
    found
}

#[test]
fn a_changed_endpoint_is_programmed_in_other_clusters_soon() {
    if skip("a_changed_endpoint_is_programmed_in_other_clusters_soon") {
        return;
    }
    let world = World::served_by_edges(PODS, shares(), json!({"staleTTL": "1h"}));
    for number in 1..CLUSTERS.len() {
        wait_for("the import at the edge", PATIENT, || {
            let records = imports_at(&world, number);
            let of_first = records.first()?["destinations"].as_array()?.len();
            // Of two families.
            (of_first == 2 * PODS.iter().sum::<usize>()).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error:#}: {:?}", imports_at(&world, number)));
    }
    let times: Vec<_> = (0..CHANGES)
        .map(|number| change(&world, PODS[CHANGED] - (number + 1) % 2))
        .collect();
    let [own, elsewhere] =
        [0_usize, 1].map(|place| times.iter().map(|times| times[place]).collect());
    let own = print("own", own, [None, None]);
    let elsewhere = print("elsewhere", elsewhere, [Some(250.0), Some(1_000.0)]);
    let ratio = elsewhere[0].as_secs_f64() / own[0].as_secs_f64();
    let goal = Some(Goal::AtMost(2.0));
    figure("federation_delivery_p50_to_own", ratio, "times", goal);
    assert!(elsewhere[0] <= MOST, "{elsewhere:?}");
}
