// SPDX-License-Identifier: Apache-2.0

//! Limits of probes that run, and of their starts.

use portolan_health::Outcome;
use tokio::time::{Duration, sleep};

use super::rig::{Rig, World, balancer, check, program, seconds};
use crate::engine::Limits;

#[tokio::test(start_paused = true)]
async fn no_more_probes_run_than_allowed() {
    let world = World::default();
    for port in 1..=100 {
        world.answers(port, seconds(1), Outcome::pass());
    }
    let limits = Limits {
        concurrency: 5,
        ..Limits::default()
    };
    let rig = Rig::with(world, [balancer(&check(), 1..=100)], limits, None);
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
    let limits = Limits {
        program_concurrency: 2,
        ..Limits::default()
    };
    let balancers = [balancer(&program(), 1..=100), balancer(&check(), 101..=200)];
    let mut rig = Rig::with(world, balancers, limits, None);
    // Programs in the queue do not keep other probes waiting.
    let at = rig.until(2, &[1; 100]).await;
    assert!(at < seconds(6), "{at:?}");
    // Two programs, and the other probes of one slot, which end at once.
    let most = rig.world.most_running();
    assert!((3..=6).contains(&most), "{most}");
    sleep(seconds(30)).await;
    let up = rig.weights(1).iter().filter(|weight| **weight == 1).count();
    assert!((30..=60).contains(&up), "{up}");
}

#[tokio::test(start_paused = true)]
async fn probes_start_at_the_allowed_rate() {
    let limits = Limits {
        per_second: 50,
        ..Limits::default()
    };
    let mut check = check();
    check.timers.interval = Duration::from_millis(100);
    let rig = Rig::with(World::default(), [balancer(&check, 1..=200)], limits, None);
    sleep(seconds(20)).await;
    let all = rig.world.all();
    let probes = all.len();
    assert!((950..=1_001).contains(&probes), "{probes}");
    let most = all.windows(60).map(|few| few[59] - few[0]).min().unwrap();
    assert!(most >= seconds(1), "60 in {most:?}");
}

#[tokio::test(start_paused = true)]
async fn limits_that_change_hold_for_the_next_starts() {
    let world = World::default();
    for port in 1..=100 {
        world.answers(port, seconds(1), Outcome::pass());
    }
    let of = |concurrency, per_second| Limits {
        concurrency,
        per_second,
        ..Limits::default()
    };
    let rig = Rig::with(world, [balancer(&check(), 1..=100)], of(5, 2_000), None);
    sleep(seconds(20)).await;
    let of_last_seconds = async |time: u64| {
        let before = rig.world.all().len();
        sleep(seconds(time)).await;
        rig.world.all().len() - before
    };
    // 100 backends, each 5 s and the second of the answer.
    rig.limits.send_replace(of(200, 2_000));
    let probes = of_last_seconds(20).await;
    assert!((320..=440).contains(&probes), "{probes}");

    rig.limits.send_replace(of(2, 2_000));
    sleep(seconds(1)).await;
    let probes = of_last_seconds(20).await;
    assert!((38..=42).contains(&probes), "{probes}");

    rig.limits.send_replace(of(200, 3));
    let probes = of_last_seconds(20).await;
    assert!((58..=62).contains(&probes), "{probes}");
}

#[tokio::test(start_paused = true)]
async fn limits_of_programs_change_too() {
    let world = World::default();
    for port in 1..=100 {
        world.answers(port, seconds(1), Outcome::pass());
    }
    let of = |program_concurrency| Limits {
        program_concurrency,
        ..Limits::default()
    };
    let rig = Rig::with(world, [balancer(&program(), 1..=100)], of(50), None);
    sleep(seconds(20)).await;
    rig.limits.send_replace(of(1));
    sleep(seconds(1)).await;
    let before = rig.world.all().len();
    sleep(seconds(20)).await;
    let probes = rig.world.all().len() - before;
    assert!((19..=21).contains(&probes), "{probes}");
}
