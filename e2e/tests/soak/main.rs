// SPDX-License-Identifier: Apache-2.0

//! A long run of everything that changes in a cluster: Services, endpoints, nodes, agents, controllers, the relay and
//! certificates, under traffic. No request fails, memory and descriptors stay flat, and at the end every table and
//! kernel equals one made from scratch.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod churn;
mod memory;
mod world;

use std::time::{Duration, Instant};

use portolan_e2e::figure::figure;

use crate::churn::Churn;
use crate::memory::Memory;
use crate::world::World;

/// Length of the run: `PORTOLAN_SOAK_SECONDS`, at least 60 s; 2 minutes by default.
fn length() -> Duration {
    let given = std::env::var("PORTOLAN_SOAK_SECONDS").ok();
    let seconds: Option<u64> = given.and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(120).max(60))
}

/// Seed of the random choices: `PORTOLAN_SOAK_SEED`, or a new one. It is printed, to repeat a run.
fn seed() -> u64 {
    let given = std::env::var("PORTOLAN_SOAK_SEED").ok();
    given
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..))
}

#[test]
fn a_long_run_fails_no_request_and_grows_no_process() {
    let Some(mut world) = World::start_or_skip("a_long_run_fails_no_request_and_grows_no_process")
    else {
        return;
    };
    let (start, length, seed) = (Instant::now(), length(), seed());
    println!("seed {seed}, {} s", length.as_secs());
    let mut random = fastrand::Rng::with_seed(seed);
    let mut churn = Churn::new();
    let mut memory = Memory::of(&world.steady_processes());
    let mut turns = 0;
    while start.elapsed() < length {
        match random.u8(..100) {
            0..3 => world.restart_agent(),
            3..6 => world.restart_replica(),
            6..8 => world.restart_relay(),
            8..10 => world.renew_certificates(),
            _ => churn.advance(&mut random),
        }
        world.write(&churn);
        world.wait_for_newest();
        world.traffic_flows();
        memory.sample(start.elapsed().as_secs_f64() / length.as_secs_f64());
        turns += 1;
    }
    assert!(turns > 10, "only {turns} turns");
    figure("soak_turns", f64::from(turns), "turns", None);
    memory.assert_flat();
    world.finish();
}
