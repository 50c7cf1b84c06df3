// SPDX-License-Identifier: Apache-2.0

//! Overrides, publishing, and states that are saved and restored.

use std::sync::Arc;

use portolan_health::{Administrative, Presence};
use portolan_model::check::Probe;
use tokio::time::{Duration, Instant, sleep};

use super::rig::{BOOT, Rig, World, address, balancer, check, seconds};
use crate::engine::Limits;

#[tokio::test(start_paused = true)]
async fn an_operator_drains_and_enables() {
    let mut rig = Rig::new([balancer(&check(), [1, 2])]);
    rig.until(1, &[1, 1]).await;
    let place = (1, address(2));
    rig.overrides.send_modify(|overrides| {
        overrides.insert(place, Administrative::Drain);
    });
    rig.until(1, &[1, 0]).await;
    assert_eq!(
        rig.verdicts(1).backends[&address(2)].presence,
        Presence::Leaving
    );
    // It holds for a load balancer that comes back.
    rig.wanted.send_modify(|wanted| {
        wanted.remove(&1);
    });
    sleep(seconds(1)).await;
    rig.put(1, balancer(&check(), [1, 2]));
    rig.until(1, &[1, 0]).await;
    rig.overrides.send_modify(|overrides| {
        overrides.remove(&place);
    });
    rig.until(1, &[1, 1]).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_verdict_about_new_backends_knows_the_commands_about_them() {
    let mut rig = Rig::new([balancer(&check(), [1])]);
    rig.until(1, &[1]).await;
    rig.overrides.send_modify(|overrides| {
        overrides.insert((2, address(3)), Administrative::Drain);
        overrides.insert((2, address(4)), Administrative::Drain);
    });
    // In the same moment. Without checks they are up at once.
    let mut unchecked = balancer(&check(), [3, 4]);
    for backend in unchecked.backends.values_mut() {
        backend.checks = [].into();
    }
    rig.put(2, unchecked);
    let known = rig.handle.health.wait_for(|health| health.contains_key(&2));
    drop(known.await.unwrap());
    let verdicts = rig.verdicts(2);
    assert!(!verdicts.quorum, "{verdicts:?}");
    let commanded = verdicts.states.values().map(|status| status.commanded);
    assert!(commanded.eq([Some(Administrative::Drain); 2]));
    assert_eq!(rig.weights(2), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn changes_within_10_ms_are_published_together() {
    let mut check = check();
    check.timers.interval = Duration::from_millis(4);
    let mut rig = Rig::new([balancer(&check, 1..=100), balancer(&check, 200..=300)]);
    rig.handle.health.mark_unchanged();
    let mut published = 0;
    while tokio::time::timeout(seconds(1), rig.handle.health.changed())
        .await
        .is_ok()
    {
        published += 1;
        rig.handle.health.mark_unchanged();
    }
    assert!((1..=12).contains(&published), "{published}");
    assert_eq!(rig.weights(1), [1; 100]);
}

#[tokio::test(start_paused = true)]
async fn another_weight_is_published_at_once() {
    let mut rig = Rig::new([balancer(&check(), [1, 2])]);
    rig.until(1, &[1, 1]).await;
    let mut changed = balancer(&check(), [1, 2]);
    let backend = changed.backends.get_mut(&address(2));
    backend.expect("a backend").weight = 7;
    let begun = Instant::now();
    rig.put(1, changed);
    rig.until(1, &[1, 7]).await;
    assert!(begun.elapsed() < Duration::from_millis(2));
}

#[tokio::test(start_paused = true)]
async fn states_survive_a_restart() {
    let mut rig = Rig::new([balancer(&check(), [1, 2, 3])]);
    rig.until(1, &[1, 1, 1]).await;
    rig.world.refuses(2);
    rig.until(1, &[1, 0, 1]).await;
    let before = rig.verdicts(1);
    let mut saved = rig.end().await;
    assert!(saved.at > BOOT && saved.boot == "boot");
    saved.at = BOOT;

    // The first verdicts are those of before, without any probe.
    let again = |saved| {
        let balancers = [balancer(&check(), [1, 2, 3])];
        Rig::with(World::default(), balancers, Limits::default(), Some(saved))
    };
    let mut rig = again(saved.clone());
    rig.handle.health.changed().await.unwrap();
    assert_eq!(rig.verdicts(1).backends, before.backends);
    assert_eq!(rig.world.all(), []);
    rig.until(1, &[1, 1, 1]).await;

    let mut other_boot = saved.clone();
    other_boot.boot = "other".to_owned();
    let mut old = saved;
    old.at = BOOT - seconds(600);
    for unusable in [other_boot, old] {
        let mut rig = again(unusable);
        rig.handle.health.changed().await.unwrap();
        assert_eq!(rig.weights(1), [0, 0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn states_are_those_of_the_first_table_which_may_come_late() {
    let mut rig = Rig::new([balancer(&check(), [1, 2]), balancer(&check(), [4])]);
    rig.until(1, &[1, 1]).await;
    rig.until(2, &[1]).await;
    let mut saved = rig.end().await;
    saved.at = BOOT;
    // As in an agent: the engine starts before there is a table.
    let empty = || {
        let saved = Some(saved.clone());
        Rig::with(World::default(), [], Limits::default(), saved)
    };
    let mut rig = empty();
    sleep(seconds(30)).await;
    rig.put(1, balancer(&check(), [1, 2]));
    rig.handle.health.changed().await.unwrap();
    assert_eq!((rig.weights(1), rig.world.all()), (vec![1, 1], vec![]));
    // One that comes later is probed, though it is in the file.
    rig.put(2, balancer(&check(), [4]));
    rig.handle.health.changed().await.unwrap();
    assert_eq!(rig.weights(2), [0]);
    // States get old while there is no table.
    let mut rig = empty();
    sleep(seconds(600)).await;
    rig.put(1, balancer(&check(), [1, 2]));
    rig.handle.health.changed().await.unwrap();
    assert_eq!(rig.weights(1), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn states_of_the_last_run_are_kept_until_there_is_a_table() {
    let mut rig = Rig::new([balancer(&check(), [1, 2])]);
    rig.until(1, &[1, 1]).await;
    let mut saved = rig.end().await;
    saved.at = BOOT;
    let again = || {
        let saved = Some(saved.clone());
        Rig::with(World::default(), [], Limits::default(), saved)
    };
    let rig = again();
    let states = rig.handle.saved.clone();
    let first = Arc::clone(&states.borrow());
    sleep(seconds(200)).await;
    assert!(Arc::ptr_eq(&first, &states.borrow()));
    rig.end().await;
    assert!(Arc::ptr_eq(&first, &states.borrow()));
    // With a table they are saved again.
    let rig = again();
    sleep(seconds(200)).await;
    rig.put(1, balancer(&check(), [1, 2]));
    sleep(seconds(2)).await;
    assert_eq!(rig.handle.saved.borrow().balancers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn states_are_saved_at_most_once_a_second_and_at_least_once_a_minute() {
    let mut check = check();
    check.timers.interval = Duration::from_millis(100);
    check.timers.fast_interval = Duration::from_millis(100);
    (check.timers.rise, check.timers.fall) = (1, 1);
    let mut rig = Rig::new([balancer(&check, 1..=5)]);
    let mut saves = Vec::new();
    for round in 0..40 {
        for port in 1..=5 {
            match round % 2 {
                0 => rig.world.refuses(port),
                _ => rig.world.passes(port),
            }
        }
        sleep(seconds(1)).await;
        if rig.handle.saved.has_changed().unwrap() {
            saves.push(rig.handle.saved.borrow_and_update().at);
        }
    }
    assert!((15..=40).contains(&saves.len()), "{saves:?}");
    assert!(
        saves.windows(2).all(|pair| pair[1] - pair[0] >= seconds(1)),
        "{saves:?}"
    );
    sleep(seconds(300)).await;
    rig.handle.saved.mark_unchanged();
    let begin = tokio::time::Instant::now();
    rig.handle.saved.changed().await.unwrap();
    assert!(begin.elapsed() <= seconds(61), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_check_through_a_missing_virtual_server_is_not_run() {
    let mut through = check();
    through.probe = Probe::Icmp;
    through.via = portolan_model::check::Via::Service { frontend: None };
    let rig = Rig::new([balancer(&through, [1])]);
    sleep(seconds(60)).await;
    assert_eq!((rig.weights(1), rig.world.all().len()), (vec![0], 0));
}
