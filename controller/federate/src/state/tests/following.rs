// SPDX-License-Identifier: Apache-2.0

use super::*;

/// A replica that begins without statuses, and has these settings of all clusters.
fn begun(world: &World, settings: Settings) -> Fleet {
    let mut fleet = Fleet::default();
    for (id, _) in &world.up {
        fleet.set(id, settings);
    }
    fleet
}

fn shown(fleet: &Fleet, id: &str) -> (Phase, u8) {
    let status = fleet.status(id).unwrap();
    (status.phase, status.step)
}

#[test]
fn a_replica_shows_the_step_of_the_one_that_leads_and_goes_on_from_it() {
    let mut world = World::new(2);
    world.set("a", drained(0, 20));
    let mut other = begun(&world, drained(0, 20));
    for seconds in 1..=10 {
        world.pass(1);
        for (id, _) in &world.up {
            other.contact(id, true, world.moment());
        }
        other.follow(&world.fleet.statuses(), world.moment());
        assert_eq!(shown(&other, "a"), (Phase::Draining, 20 - seconds));
        assert_eq!(shown(&other, "a"), world.shown("a"));
        assert_eq!(other.status("b").unwrap().step, FULL);
    }
    // The leader is gone.
    other.take_over();
    for seconds in 1..=10 {
        world.now += 1;
        for (id, _) in &world.up {
            other.contact(id, true, world.moment());
        }
        other.advance(world.moment(), 50);
        assert_eq!(other.status("a").unwrap().step, 10 - seconds);
    }
    assert_eq!(shown(&other, "a"), (Phase::Drained, 0));
}

#[test]
fn a_replica_that_follows_moves_nothing_on_its_own() {
    let mut world = World::new(2);
    world.set("a", drained(0, 20));
    world.pass(5);
    let mut other = begun(&world, drained(0, 20));
    let statuses = world.fleet.statuses();
    // It has no contact either.
    for _ in 0..100 {
        world.now += 1;
        other.follow(&statuses, world.moment());
    }
    assert_eq!(shown(&other, "a"), (Phase::Draining, 15));
    assert_eq!(other.status("b").unwrap().reach_step, FULL);
    // Once it leads its own silence counts, and the clock of the loss begins.
    other.take_over();
    other.advance(world.moment(), 50);
    assert_eq!(shown(&other, "a"), (Phase::Stale, 15));
}

#[test]
fn a_replica_that_takes_over_without_contact_keeps_the_step_until_there_is_some() {
    let mut world = World::new(3);
    world.cut("a");
    world.pass(400);
    world.join("a");
    world.pass(60 + 30);
    let (phase, step) = world.shown("a");
    assert_eq!(phase, Phase::Returning);
    // One that does not know the cluster's settings yet either.
    let mut other = Fleet::default();
    other.follow(&world.fleet.statuses(), world.moment());
    assert_eq!(shown(&other, "a"), (Phase::Returning, step));
    other.set(&Arc::from("a"), settings());
    other.take_over();
    let mut pass = |ids: &[&str]| {
        world.now += 1;
        for id in ids {
            other.contact(id, true, world.moment());
        }
        other.advance(world.moment(), 50);
        shown(&other, "a")
    };
    for _ in 0..10 {
        assert_eq!(pass(&["b", "c"]), (Phase::Connecting, step));
    }
    assert_eq!(pass(&["a", "b", "c"]), (Phase::Returning, step));
    let last = (0..10).map(|_| pass(&["a", "b", "c"])).last();
    assert!(last.unwrap().1 > step);
}
