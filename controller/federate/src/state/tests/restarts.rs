// SPDX-License-Identifier: Apache-2.0

use super::*;

#[test]
fn a_stopped_process_takes_no_cluster_out() {
    let mut world = World::new(3);
    for _ in 0..10 {
        for _ in 0..2 {
            world.now += 3600;
            let now = world.moment();
            world.fleet.advance(now, 50);
        }
        assert_eq!(world.shown("a"), (Phase::Ready, 20));
        world.pass(1);
        assert_eq!(world.shown("a"), (Phase::Ready, 20));
    }
    // Nor does a clock that is set back.
    world.now -= 7200;
    world.pass(100);
    assert_eq!(world.shown("a"), (Phase::Ready, 20));
}

#[test]
fn a_cluster_that_is_down_at_a_restart_is_lost_after_its_ttl() {
    let mut world = World::new(3);
    world.cut("a");
    world.pass(10);
    world.change_leader(settings());
    assert_eq!(world.shown("a"), (Phase::Connecting, 20));
    world.pass(29);
    assert_eq!(world.shown("a"), (Phase::Connecting, 20));
    assert_eq!(world.shown("b"), (Phase::Ready, 20));
    world.pass(1);
    assert_eq!(world.shown("a"), (Phase::Stale, 20));
    // The time that counts is kept over a change of leader.
    world.pass(200);
    world.change_leader(settings());
    world.pass(98);
    assert_eq!(world.shown("a"), (Phase::Stale, 20));
    world.pass(2);
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
    world.change_leader(settings());
    world.join("a");
    world.pass(59);
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
    world.pass(1);
    assert_eq!(world.shown("a"), (Phase::Returning, 1));
}
