// SPDX-License-Identifier: Apache-2.0

use super::*;

#[test]
fn a_drain_falls_over_its_time_and_rises_by_the_ramp() {
    let mut world = World::new(3);
    world.set("a", drained(50, 20));
    let mut steps = Vec::new();
    for _ in 0..20 {
        world.pass(1);
        steps.push(world.shown("a").1);
    }
    assert_eq!(
        steps,
        [
            20, 19, 19, 18, 18, 17, 17, 16, 16, 15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10
        ]
    );
    assert_eq!(world.shown("a"), (Phase::Drained, 10));
    world.set("a", drained(0, 0));
    world.pass(1);
    assert_eq!(world.shown("a"), (Phase::Drained, 0));
    assert!(world.fleet.status("a").unwrap().drained);
    world.set("a", settings());
    world.pass(60);
    assert_eq!(world.shown("a"), (Phase::Returning, 10));
    world.pass(60);
    assert_eq!(world.shown("a"), (Phase::Ready, 20));
    assert!(!world.fleet.status("a").unwrap().drained);
    let expected = [
        "a Ready Draining",
        "a Draining Drained",
        "a Drained Returning",
        "a Returning Ready",
    ];
    assert_eq!(world.taken(), expected);
}

#[test]
fn a_small_percentage_is_a_step() {
    let steps = [0, 1, 5, 7, 8, 50, 99, 100].map(|to| {
        drain::target(Some(Drain {
            to,
            over: Duration::ZERO,
        }))
    });
    assert_eq!(steps, [0, 1, 1, 1, 2, 10, 20, 20]);
}

#[test]
fn a_new_cluster_with_a_drain_begins_drained() {
    let mut fleet = Fleet::default();
    fleet.set(&Arc::from("a"), drained(0, 600));
    fleet.contact("a", true, Moment::default());
    fleet.advance(Moment::default(), 50);
    let status = fleet.status("a").unwrap();
    assert_eq!((status.phase, status.step), (Phase::Drained, 0));
}

#[test]
fn drain_and_loss_go_on_beside_each_other() {
    let mut world = World::new(3);
    world.set("a", drained(50, 400));
    world.cut("a");
    world.pass(200);
    assert_eq!(world.shown("a"), (Phase::Stale, 15));
    world.pass(200);
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
    world.join("a");
    world.pass(60 + 120);
    assert_eq!(world.shown("a"), (Phase::Drained, 10));
}
