// SPDX-License-Identifier: Apache-2.0

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy)]
enum Event {
    Pass(u64),
    Cut(usize),
    Join(usize),
    Leader,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..150_u64).prop_map(Event::Pass),
        3 => (0..5_usize).prop_map(Event::Cut),
        3 => (0..5_usize).prop_map(Event::Join),
        1 => Just(Event::Leader),
    ]
}

proptest! {
    #[test]
    fn a_drain_goes_on_over_changes_of_leader(cuts in vec(1..8_u64, 0..20), to in 0..100_u8) {
        let mut world = World::new(3);
        let rules = drained(to, 60);
        world.set("a", rules);
        let mut last = FULL;
        for seconds in cuts {
            world.pass(seconds);
            world.change_leader(rules);
            for (id, _) in world.up.clone() {
                let own = if &*id == "a" { rules } else { settings() };
                world.fleet.set(&id, own);
            }
            let (_, step) = world.shown("a");
            prop_assert!(step <= last);
            last = step;
        }
        // Each change of leader costs one step's time at most.
        world.pass(60 + 1);
        prop_assert_eq!(world.shown("a"), (Phase::Drained, drain::target(rules.drain)));
        world.change_leader(settings());
        let mut last = world.shown("a").1;
        for _ in 0..10 {
            world.pass(13);
            world.change_leader(settings());
            let (_, step) = world.shown("a");
            prop_assert!(step >= last);
            last = step;
        }
    }

    #[test]
    fn steps_fall_only_by_a_loss_and_none_is_lost_with_most(events in vec(event(), 1..40)) {
        let mut world = World::new(5);
        let mut steps = vec![FULL; 5];
        for event in events {
            let seconds = match event {
                Event::Pass(seconds) => seconds,
                Event::Cut(index) => { world.up[index].1 = false; 1 }
                Event::Join(index) => { world.up[index].1 = true; 1 }
                Event::Leader => { world.change_leader(settings()); 0 }
            };
            for _ in 0..seconds {
                world.pass(1);
                let ids: Vec<Arc<str>> = world.up.iter().map(|(id, _)| Arc::clone(id)).collect();
                for (id, last) in ids.iter().zip(&mut steps) {
                    let (phase, step) = world.shown(id);
                    prop_assert!(step >= *last || phase == Phase::Lost);
                    prop_assert!(phase != Phase::Lost || step == 0);
                    prop_assert!(phase != Phase::Ready || step == FULL);
                    // At most one step a tick, but for a loss.
                    prop_assert!(phase == Phase::Lost || step <= *last + 1);
                    *last = step;
                }
                let lost = world.taken().iter().any(|one| one.ends_with("Stale Lost"));
                prop_assert!(!(lost && world.fleet.is_preserving()));
            }
        }
        // Whatever happened: when all are back, all are whole again.
        world.join("abcde");
        world.pass(600 + 120 + 30);
        for id in ["a", "b", "c", "d", "e"] {
            prop_assert_eq!(world.shown(id), (Phase::Ready, FULL));
        }
    }
}
