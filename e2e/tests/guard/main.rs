// SPDX-License-Identifier: Apache-2.0

//! The deletion guard under traffic: an API server that is restored or emptied, and slices that a broken
//! controller deletes, fail no request to endpoints that live. Deletions on purpose take effect.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod world;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use world::{EARLY, LATE, World};

/// Longer than an agent's earlier hold by time after a controller's restart: 30 s.
const OBSERVED: Duration = Duration::from_secs(40);

/// A single test: the control plane takes most of a minute to start.
#[test]
fn mass_deletions_fail_no_request_to_live_endpoints() {
    let test = "mass_deletions_fail_no_request_to_live_endpoints";
    let Some(mut world) = World::start_or_skip(test) else {
        return;
    };
    let clock = Instant::now();
    let say = |what: &str| println!("{:6.1} s: {what}", clock.elapsed().as_secs_f32());
    let directory = world.directory().to_owned();
    let [full, early] = ["full", "early"].map(|name| directory.join(name));

    world.create(&EARLY);
    world.with_storage(|data| copy(data, &early));
    say("backup");
    world.create(&[LATE]);
    world.start_traffic();
    say("traffic flows to all Services");

    world.with_storage(|data| {
        fs::rename(data, &full)?;
        copy(&early, data)
    });
    say("older data");
    world.wait_until_held("Service", LATE.services);
    world.wait_until_held("EndpointSlice", LATE.services);
    say("deletions are held");
    world.flows();
    world.additions_go_on();
    world.flows();
    say("the API server is of an older revision");
    world.restart_controller_and_agent();
    world.wait_until_agents_hold(LATE.services);
    world.flows_for(OBSERVED);
    say("the same, after a restart of controller and agent");

    world.with_storage(|data| Ok(fs::remove_dir_all(data)?));
    world.wait_until_held("Service", EARLY.iter().map(|one| one.services).sum());
    world.flows();
    say("the API server is empty");
    world.restart_controller_and_agent();
    world.flows_for(OBSERVED);
    say("the same, after a restart of controller and agent");

    world.with_storage(|data| {
        fs::remove_dir_all(data)?;
        Ok(fs::rename(&full, data)?)
    });
    // A controller reads its cluster's identity at its start; the empty API server had another one.
    world.restart_controller_and_agent();
    world.wait_until_whole();
    world.flows();
    say("the API server is restored");

    world.delete_all_slices();
    world.wait_until_held("EndpointSlice", World::all_services());
    world.flows();
    say("all slices are deleted");
    world.create_slices();
    world.wait_until_whole();
    world.flows();
    say("the slices are back");

    // The guard counts the deletions of one minute. Those of the slices must not count for the
    // namespace.
    world.flows_for(Duration::from_secs(61));
    world.stop_traffic_to(LATE);
    world.delete_namespace(LATE);
    world.wait_until_gone(LATE);
    world.wait_until_whole();
    world.flows();
    say("a namespace with half of all Services is deleted");
    world.finish();
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let status = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status()?;
    anyhow::ensure!(status.success(), "cp {} {}", from.display(), to.display());
    Ok(())
}
