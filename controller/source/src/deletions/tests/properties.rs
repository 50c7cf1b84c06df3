//! Whatever a source says, in whatever order.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    /// A range goes at once.
    DeleteFrom(u8),
    /// A listing without these, with so many ready endpoints each, at the second look.
    List(BTreeSet<u8>, u8, bool),
    Empty(bool),
    Pass(u16),
    Confirm,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let missing = prop::collection::btree_set(any::<u8>(), 0..100);
    let step = prop_oneof![
        8 => (any::<u8>(), 0..5_u8).prop_map(|(object, ready)| Step::Put(object, ready)),
        4 => any::<u8>().prop_map(Step::Delete),
        2 => any::<u8>().prop_map(Step::DeleteFrom),
        2 => (missing, 0..5_u8, any::<bool>()).prop_map(|(m, r, sure)| Step::List(m, r, sure)),
        1 => any::<bool>().prop_map(Step::Empty),
        4 => (0..3000_u16).prop_map(Step::Pass),
        1 => Just(Step::Confirm),
    ];
    prop::collection::vec(step, 1..60)
}

/// What really is, beside what is told.
#[derive(Default)]
struct Truth(BTreeMap<String, usize>);

impl Truth {
    fn listing(&self) -> Vec<(String, usize)> {
        let strip = |name: &String| name.trim_start_matches("default/").to_owned();
        self.0.iter().map(|(n, ready)| (strip(n), *ready)).collect()
    }
}

fn apply(rig: &mut Rig, truth: &mut Truth, step: &Step) {
    let name = |object: u8| format!("o{object}");
    let full = |object: u8| format!("default/o{object}");
    match step {
        Step::Put(object, ready) => {
            truth.0.insert(full(*object), (*ready).into());
            rig.put(&name(*object), (*ready).into());
        }
        Step::Delete(object) => {
            truth.0.remove(&full(*object));
            rig.delete(&name(*object));
        }
        Step::DeleteFrom(first) => {
            for object in *first..=255 {
                truth.0.remove(&full(object));
                rig.delete(&name(object));
            }
        }
        Step::List(missing, ready, is_sure) => {
            truth.0 = (0..=255)
                .filter(|object| !missing.contains(object))
                .map(|object| (full(object), usize::from(*ready)))
                .collect();
            list(rig, truth, *is_sure);
        }
        Step::Empty(is_sure) => {
            truth.0.clear();
            list(rig, truth, *is_sure);
        }
        Step::Pass(seconds) => rig.pass(Duration::from_secs((*seconds).into())),
        Step::Confirm => rig.confirm(),
    }
}

/// As a source does: what is doubted is listed again.
fn list(rig: &mut Rig, truth: &Truth, is_sure: bool) {
    if !rig.list(&truth.listing(), is_sure) {
        assert!(!is_sure, "a second listing is settled");
        assert!(rig.list(&truth.listing(), true));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// What the guard believes to be in force is what was told; nothing that exists is missing; and
    /// once what is held is confirmed, everything that was told is so.
    #[test]
    fn what_is_told_covers_what_is_and_becomes_it(steps in steps()) {
        let mut rig = Rig::new();
        let mut truth = Truth::default();
        for step in &steps {
            apply(&mut rig, &mut truth, step);
            let in_force: BTreeMap<_, _> = rig.guard.in_force.iter()
                .map(|(key, facts)| (key.to_string(), facts.ready)).collect();
            prop_assert_eq!(&in_force, &rig.told);
            prop_assert_eq!(rig.guard.ready, rig.ready());
            for (name, ready) in &truth.0 {
                let told = rig.told.get(name);
                prop_assert!(told.is_some_and(|told| told >= ready), "{} {:?}", name, told);
            }
        }
        rig.pass(WINDOW);
        rig.confirm();
        rig.pass(WINDOW);
        rig.confirm();
        prop_assert_eq!(&rig.told, &truth.0);
        prop_assert_eq!(rig.guard.lost, Size::default());
        prop_assert_eq!(rig.guard.held(), None);
    }

    /// No step but a confirmation, and no time shorter than the hold, takes away more than nearly all.
    #[test]
    fn no_single_step_takes_nearly_everything(steps in steps()) {
        let mut rig = Rig::new();
        let mut truth = Truth::default();
        for step in &steps {
            let before = rig.told.len();
            let is_short = !matches!(step, Step::Pass(seconds) if *seconds >= 1000);
            let was_held = rig.guard.held().is_some();
            apply(&mut rig, &mut truth, step);
            let lost = before.saturating_sub(rig.told.len());
            if is_short && !matches!(step, Step::Confirm) && !was_held {
                prop_assert!(lost < 50 || lost * 100 <= before * 80, "{before} {lost} {step:?}");
            }
        }
    }
}
