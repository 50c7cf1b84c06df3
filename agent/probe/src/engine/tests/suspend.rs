// SPDX-License-Identifier: Apache-2.0

//! The time without probes.

use portolan_health::{Outcome, State};
use tokio::time::{Duration, sleep};

use super::rig::{Rig, World, address, balancer, check, seconds};
use crate::engine::Limits;

#[tokio::test(start_paused = true)]
async fn states_stay_while_probes_are_suspended_and_are_checked_soon_after() {
    let mut rig = Rig::new([balancer(&check(), 1..=50)]);
    rig.until(1, &[1; 50]).await;
    rig.world.refuses(2);
    let mut one_down = [1; 50];
    one_down[1] = 0;
    rig.until(1, &one_down).await;
    rig.suspended.send_replace(true);
    // A probe that runs at that time may land.
    sleep(seconds(5)).await;
    let before = rig.world.all().len();
    rig.world.passes(2);
    rig.world.refuses(1);
    sleep(seconds(3_600)).await;
    assert_eq!(rig.world.all().len(), before, "no probe");
    assert_eq!(rig.weights(1), one_down);

    let begin = rig.start.elapsed();
    rig.suspended.send_replace(false);
    sleep(Duration::from_millis(1_030)).await;
    assert_eq!(rig.world.all().len(), before + 50, "one of each backend");
    let mut other_down = [1; 50];
    other_down[0] = 0;
    let took = rig.until(1, &other_down).await - begin;
    assert!(took < seconds(10), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_began_before_is_not_told_and_not_doubled() {
    let mut check = check();
    check.timers.interval = seconds(10);
    check.timers.timeout = seconds(8);
    check.timers.fall = 1;
    let mut rig = Rig::new([balancer(&check, [1])]);
    rig.until(1, &[1]).await;
    rig.world.answers(1, seconds(6), Outcome::fail("too slow"));
    let probes = rig.world.probes(1).len();
    while rig.world.probes(1).len() == probes {
        sleep(Duration::from_millis(100)).await;
    }
    rig.suspended.send_replace(true);
    sleep(seconds(20)).await;
    assert_eq!(rig.weights(1), [1], "its failure came too late");

    // Suspended and resumed while one runs: that one counts, and no other begins beside it.
    rig.suspended.send_replace(false);
    sleep(seconds(2)).await;
    assert_eq!(rig.world.probes(1).len(), probes + 2);
    rig.suspended.send_replace(true);
    sleep(seconds(1)).await;
    rig.suspended.send_replace(false);
    rig.until(1, &[0]).await;
    assert_eq!(rig.world.probes(1).len(), probes + 2);
    assert_eq!(rig.world.most_running(), 1);
    rig.world.passes(1);
    sleep(seconds(60)).await;
    let gaps: Vec<_> = rig
        .world
        .probes(1)
        .windows(2)
        .map(|p| p[1] - p[0])
        .collect();
    let last = &gaps[gaps.len() - 3..];
    assert!(last.iter().all(|gap| *gap > seconds(8)), "{gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn backends_that_come_while_suspended_wait_for_their_first_probe() {
    let mut rig = Rig::with(World::default(), [], Limits::default(), None);
    rig.suspended.send_replace(true);
    // In the same moment: the suspension counts first.
    rig.put(1, balancer(&check(), [1, 2]));
    sleep(seconds(600)).await;
    assert_eq!(rig.world.all().len(), 0);
    assert_eq!(rig.verdicts(1).states[&address(1)].state, State::Probing);
    // What goes and changes meanwhile has no timer.
    rig.put(1, balancer(&check(), [2, 3]));
    sleep(seconds(600)).await;
    assert_eq!(rig.world.all().len(), 0);
    rig.suspended.send_replace(false);
    rig.until(1, &[1, 1]).await;
    sleep(seconds(2)).await;
    assert!(rig.world.probes(1).is_empty());
}
