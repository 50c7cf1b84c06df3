// SPDX-License-Identifier: Apache-2.0

use super::*;

#[test]
fn if_more_than_half_are_stale_none_is_lost() {
    let mut world = World::new(5);
    world.cut("abc");
    world.pass(10_000);
    assert!(world.fleet.is_preserving());
    for id in ["a", "b", "c"] {
        assert_eq!(world.shown(id), (Phase::Stale, 20));
    }
    // One is back: two of five are not too many, and their clocks go on from where they stood.
    world.join("a");
    world.pass(299);
    assert!(!world.fleet.is_preserving());
    assert_eq!(world.shown("b"), (Phase::Stale, 20));
    world.pass(2);
    assert_eq!(world.shown("b"), (Phase::Lost, 0));
    // Two of the three that are left.
    world.cut("de");
    world.pass(10_000);
    assert_eq!(world.shown("d"), (Phase::Stale, 20));
}

#[test]
fn all_but_one_cut_and_joined_again_make_no_step() {
    let mut world = World::new(5);
    world.cut("bcde");
    world.pass(4000);
    world.join("bcde");
    world.pass(1000);
    for id in ["a", "b", "c", "d", "e"] {
        assert_eq!(world.shown(id), (Phase::Ready, 20));
        assert_eq!(world.fleet.status(id).unwrap().losses, 0);
    }
}

#[test]
fn one_cluster_alone_is_no_mass_and_is_lost() {
    let mut world = World::new(1);
    world.cut("a");
    world.pass(331);
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
}

#[test]
fn returns_wait_while_most_are_stale() {
    back_while_most_are_stale(&mut World::new(5));
}

/// Loses `a`, which is back while three of four others are stale: it waits.
fn back_while_most_are_stale(world: &mut World) {
    world.cut("a");
    world.pass(400);
    world.cut("bcd");
    world.pass(100);
    assert!(world.fleet.is_preserving());
    world.join("a");
    world.pass(1000);
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
}

#[test]
fn returns_without_a_wait_wait_while_most_are_stale() {
    let mut world = World::new(5);
    let at_once = Settings {
        return_after: Duration::ZERO,
        ramp_up: Duration::ZERO,
        ..settings()
    };
    world.set("a", at_once);
    back_while_most_are_stale(&mut world);
    // Two of the four others are not too many.
    world.join("b");
    world.pass(1);
    assert!(!world.fleet.is_preserving());
    assert_eq!(world.shown("a"), (Phase::Ready, 20));
}
