// SPDX-License-Identifier: Apache-2.0

//! How many probes run, and how fast they start.

use portolan_health::Outcome;
use tokio::time::{Duration, sleep};

use super::rig::{Rig, World, balancer, check, program, seconds};
use crate::engine::Settings;

#[tokio::test(start_paused = true)]
async fn no_more_probes_run_than_allowed() {
    let world = World::default();
    for port in 1..=100 {
        world.answers(port, seconds(1), Outcome::pass());
    }
    let settings = Settings {
        concurrency: 5,
        ..Settings::default()
    };
    let rig = Rig::with(world, [balancer(&check(), 1..=100)], settings, None);
    sleep(seconds(30)).await;
    assert_eq!(rig.world.most_running(), 5);
    let probes = rig.world.all().len();
    assert!((140..=150).contains(&probes), "{probes}");
}

#[tokio::test(start_paused = true)]
async fn programs_have_a_limit_of_their_own() {
    let world = World::default();
    for port in 1..=100 {
        world.answers(port, Duration::from_millis(1_500), Outcome::pass());
    }
    let settings = Settings {
        program_concurrency: 2,
        ..Settings::default()
    };
    let balancers = [balancer(&program(), 1..=100), balancer(&check(), 101..=200)];
    let mut rig = Rig::with(world, balancers, settings, None);
    // Programs in the queue do not keep other probes waiting.
    let at = rig.until(2, &[1; 100]).await;
    assert!(at < seconds(6), "{at:?}");
    assert_eq!(rig.world.most_running() - 2, 1, "the others end at once");
    sleep(seconds(30)).await;
    let up = rig.weights(1).iter().filter(|weight| **weight == 1).count();
    assert!((30..=60).contains(&up), "{up}");
}

#[tokio::test(start_paused = true)]
async fn probes_start_at_the_allowed_rate() {
    let settings = Settings {
        per_second: 50,
        ..Settings::default()
    };
    let mut check = check();
    check.timers.interval = Duration::from_millis(100);
    let rig = Rig::with(
        World::default(),
        [balancer(&check, 1..=200)],
        settings,
        None,
    );
    sleep(seconds(20)).await;
    let all = rig.world.all();
    let probes = all.len();
    assert!((950..=1_001).contains(&probes), "{probes}");
    let most = all.windows(60).map(|few| few[59] - few[0]).min().unwrap();
    assert!(most >= seconds(1), "60 in {most:?}");
}
