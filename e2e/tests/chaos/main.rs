// SPDX-License-Identifier: Apache-2.0

//! Service routing survives the death of every component and cut links for minutes: no node returns to an older
//! state, and at the end every kernel equals one that is programmed from scratch.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod churn;
mod observe;
mod traffic;
mod world;

use std::time::{Duration, Instant};

use portolan_e2e::wait::wait_for;
use world::{LONG, World};

/// The length of an outage: `PORTOLAN_CHAOS_AWAY` in seconds; at least 45, longer than keepalives.
fn away() -> Duration {
    let said = std::env::var("PORTOLAN_CHAOS_AWAY").ok();
    let seconds = said.and_then(|said| said.parse().ok());
    Duration::from_secs(seconds.unwrap_or(125))
}

#[test]
fn service_routing_survives_dead_components_and_cut_links() {
    let test = "service_routing_survives_dead_components_and_cut_links";
    let Some(mut world) = World::start_or_skip(test) else {
        return;
    };
    let clock = Instant::now();
    let say = |what: &str| println!("{:6.1} s: {what}", clock.elapsed().as_secs_f32());
    for _ in 0..3 {
        world.change(&[0, 1]);
    }
    say("changes reach both nodes");
    for replica in 0..world::REPLICAS {
        replica_dies(&mut world, replica);
        say("a replica died and came back");
    }
    let cut = Instant::now();
    // Long enough for several changes; the API server dies while the link is still down.
    link_drops(&mut world, cut + away() / 4);
    say("node 1 has been cut off while endpoints came and went");
    let api = Instant::now();
    world.kill_api();
    assert!(world.try_change().is_err(), "the API server is dead");
    replica_starts_blind(&mut world);
    say("a replica started without an API server");
    world.traffic.flows_until(cut + away());
    assert!(!world.is_connected(1), "the link is down");
    world.cut(false);
    // The remaining replicas have the table from before, which is new to the node.
    world.wait_for_newest(&[0, 1]);
    say("node 1 is back and has what it missed");
    world.traffic.flows_until(api + away());
    assert!(world.try_change().is_err(), "the API server is dead");
    assert!(!world.is_ready(0), "the replica knows nothing still");
    world.start_api();
    wait_for("the blind replica", LONG, || {
        world.is_ready(0).then_some(())
    })
    .unwrap();
    for _ in 0..3 {
        world.change(&[0, 1]);
    }
    say("all is well again");
    world.finish();
    say("every node is as if programmed anew");
}

/// Changes reach both nodes while one replica is down, and after its return.
fn replica_dies(world: &mut World, replica: usize) {
    world.kill_replica(replica);
    world.change(&[0, 1]);
    world.start_replica(replica);
    wait_for("the replica to be ready", LONG, || {
        world.is_ready(replica).then_some(())
    })
    .unwrap();
    world.change(&[0, 1]);
}

/// Node 1 loses its connection to all replicas while endpoints change.
fn link_drops(world: &mut World, end: Instant) {
    let before = world.observer.present(1);
    world.cut(true);
    while Instant::now() < end {
        world.change(&[0]);
        world.traffic.flows();
    }
    assert_eq!(world.observer.present(1), before, "it is cut off");
}

/// A replica that starts without an API server serves no agents.
fn replica_starts_blind(world: &mut World) {
    let before = world.observer.present(0);
    world.kill_replica(0);
    world.start_replica(0);
    wait_for("node 0 to have another replica", LONG, || {
        world.is_connected(0).then_some(())
    })
    .unwrap();
    wait_for("the replica to answer", LONG, || {
        world.answers(0, "/livez").then_some(())
    })
    .unwrap();
    assert!(!world.is_ready(0), "it knows nothing yet");
    assert_eq!(world.observer.present(0), before);
}
