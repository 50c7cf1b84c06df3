// SPDX-License-Identifier: Apache-2.0

//! Times of probes, and their subscribers.

use portolan_health::{Outcome, State};
use portolan_model::check::HealthPolicy;
use tokio::time::{Duration, sleep};

use super::rig::{Rig, World, address, balancer, check, seconds};
use crate::engine::{Limits, ResultKind};

#[tokio::test(start_paused = true)]
async fn first_probes_are_spread_and_later_ones_jittered() {
    let mut check = check();
    check.timers.interval = seconds(20);
    let rig = Rig::new([balancer(&check, 1..=200)]);
    sleep(seconds(60)).await;
    let (mut firsts, mut gaps) = (Vec::new(), Vec::new());
    for port in 1..=200 {
        let probes = rig.world.probes(port);
        firsts.push((probes[0] - rig.start).as_secs_f64());
        gaps.extend(
            probes
                .windows(2)
                .map(|pair| (pair[1] - pair[0]).as_secs_f64()),
        );
    }
    for second in 0..5 {
        let within = firsts
            .iter()
            .filter(|first| (**first - 0.5 - f64::from(second)).abs() <= 0.5);
        assert!((20..=60).contains(&within.count()), "{firsts:?}");
    }
    assert!(firsts.iter().all(|first| *first < 5.11));
    assert!(
        gaps.iter().all(|gap| (18.0..22.11).contains(gap)),
        "{gaps:?}"
    );
    assert!(gaps.iter().any(|gap| *gap < 18.5) && gaps.iter().any(|gap| *gap > 21.5));
}

#[tokio::test(start_paused = true)]
async fn probes_that_are_due_at_about_the_same_time_start_together() {
    let starts = async |interval| {
        let mut check = check();
        check.timers.interval = interval;
        let rig = Rig::new([balancer(&check, 1..=1_000)]);
        sleep(seconds(60)).await;
        let mut starts = rig.world.all();
        let probes = starts.len();
        starts.dedup();
        (probes, starts.len())
    };
    let (probes, together) = starts(seconds(5)).await;
    assert!((11_000..13_000).contains(&probes), "{probes}");
    // Ten slots a second; the first probes come after shorter delays.
    assert!(together <= 55 * 10 + 500, "{together}");
    // The times of short intervals are kept, to the millisecond.
    let (_, together) = starts(Duration::from_millis(700)).await;
    assert!(together > 20_000, "{together}");
}

#[tokio::test(start_paused = true)]
async fn a_refusing_backend_is_out_in_time_and_so_is_a_silent_one() {
    for (refuses, bound) in [(true, 7.75), (false, 13.75)] {
        for seed in 0..20 {
            let world = World::default();
            let mut limits = Limits::default();
            limits.per_second += seed;
            let mut rig = Rig::with(world, [balancer(&check(), [1, 2])], limits, None);
            rig.until(1, &[1, 1]).await;
            sleep(Duration::from_millis(70_000 + 250 * u64::from(seed))).await;
            let begin = rig.start.elapsed();
            match refuses {
                true => rig.world.refuses(2),
                false => rig.world.answers(2, seconds(99), Outcome::pass()),
            }
            let out = (rig.until(1, &[1, 0]).await - begin).as_secs_f64();
            assert!(out < bound, "{out}");
            rig.world.passes(2);
            let back = rig.until(1, &[1, 1]).await.as_secs_f64() - begin.as_secs_f64() - out;
            assert!(back < 6.75, "{back}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn equal_probes_of_several_load_balancers_are_one() {
    let mut rig = Rig::new([balancer(&check(), [1, 2]), balancer(&check(), [2, 3])]);
    rig.until(1, &[1, 1]).await;
    rig.until(2, &[1, 1]).await;
    sleep(seconds(50)).await;
    let probes = rig.world.probes(2).len();
    assert!((9..=13).contains(&probes), "{probes}");
    rig.world.refuses(2);
    rig.until(1, &[1, 0]).await;
    rig.until(2, &[0, 1]).await;
    // One of the two goes; the other's probes go on.
    rig.wanted.send_modify(|wanted| {
        wanted.remove(&1);
    });
    rig.world.passes(2);
    rig.until(2, &[1, 1]).await;
    assert!(!rig.handle.health.borrow().contains_key(&1));
    let counts = rig.handle.counts();
    let total: u64 = counts.checks.values().sum();
    assert_eq!(total, u64::try_from(rig.world.all().len()).unwrap());
    assert_eq!((counts.running, counts.falls), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_changed_load_balancer_keeps_the_times_of_what_stays() {
    let mut rig = Rig::new([balancer(&check(), [1, 2])]);
    rig.until(1, &[1, 1]).await;
    for ports in [vec![1], vec![1, 3], vec![1, 4]]
        .into_iter()
        .cycle()
        .take(50)
    {
        rig.put(1, balancer(&check(), ports));
        sleep(Duration::from_millis(500)).await;
    }
    let gone = rig.world.probes(2);
    let stays = rig.world.probes(1);
    assert!(gone.len() <= 2, "{gone:?}");
    assert!((5..=8).contains(&stays.len()), "{stays:?}");
    // Another check is another run, and decides alone.
    let mut other = check();
    other.port = Some(9);
    rig.world.refuses(9);
    rig.put(1, balancer(&other, [1]));
    rig.until(1, &[0]).await;
    let probes = (rig.world.probes(1).len(), rig.world.probes(9).len());
    assert_eq!(probes, (stays.len(), 1));
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_this_machine_changes_nothing_and_is_tried_again() {
    let mut rig = Rig::new([balancer(&check(), [1])]);
    rig.until(1, &[1]).await;
    rig.world.answers(
        1,
        Duration::ZERO,
        Outcome::no_verdict("too many open files"),
    );
    sleep(seconds(60)).await;
    assert_eq!(rig.weights(1), [1]);
    let counts = rig.handle.counts();
    assert!(
        counts.checks[&("tcp", ResultKind::NoVerdict)] >= 10,
        "{counts:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_was_stopped_gives_no_verdicts() {
    let mut check = check();
    // One failure would be enough.
    check.timers.fall = 1;
    let mut rig = Rig::new([balancer(&check, 1..=50)]);
    rig.until(1, &[1; 50]).await;
    for port in 1..=50 {
        rig.world.answers(
            port,
            Duration::from_millis(1_900),
            Outcome::fail("too late to say"),
        );
    }
    // All answers come while the engine does not run.
    while rig.handle.counts().running < 5 {
        sleep(Duration::from_millis(10)).await;
    }
    for port in 1..=50 {
        rig.world.passes(port);
    }
    tokio::time::advance(seconds(20)).await;
    sleep(seconds(20)).await;
    assert_eq!(rig.weights(1), [1; 50]);
    let counts = rig.handle.counts();
    assert!(
        counts.checks[&("tcp", ResultKind::NoVerdict)] >= 5,
        "{counts:?}"
    );
    assert_eq!((counts.rises, counts.falls), (50, 0));
    let last = counts.lateness.buckets.last().unwrap();
    assert!(*last > 0, "{:?}", counts.lateness);
}

#[tokio::test(start_paused = true)]
async fn a_ramp_goes_on_by_time_alone() {
    let mut slow = balancer(&check(), [1]);
    slow.policy = HealthPolicy {
        slow_start: seconds(36),
        ..HealthPolicy::default()
    };
    let mut rig = Rig::new([slow]);
    rig.until(1, &[100]).await;
    rig.world.refuses(1);
    rig.until(1, &[0]).await;
    rig.world.passes(1);
    let begin = rig.until(1, &[10]).await;
    for (weight, after) in [(15, 2), (50, 16), (95, 34), (100, 36)] {
        let elapsed = rig.until(1, &[weight]).await - begin;
        let off = elapsed.abs_diff(seconds(after));
        assert!(off < Duration::from_millis(50), "{weight}: {elapsed:?}");
    }
    assert_eq!(rig.verdicts(1).states[&address(1)].state, State::Up);
}
