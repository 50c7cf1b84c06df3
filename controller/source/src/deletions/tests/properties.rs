// SPDX-License-Identifier: Apache-2.0

//! Properties over all sequences of events.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    /// Deletes a range at once.
    DeleteFrom(u8),
    /// Lists all but these, with so many ready endpoints each; a sure listing or not.
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

/// The objects as they are, beside those that the guard passed on.
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

/// Lists as a source does: again, if the listing is doubted.
fn list(rig: &mut Rig, truth: &Truth, is_sure: bool) {
    if !rig.list(&truth.listing(), is_sure) {
        assert!(!is_sure, "a second listing is settled");
        assert!(rig.list(&truth.listing(), true));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The guard's objects in force are those it passed on; no existing object is missing; and after
    /// a confirmation both are equal to the truth.
    #[test]
    fn told_objects_cover_the_truth_and_become_it(steps in steps()) {
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

    /// Nothing but a confirmation or the end of a hold takes away nearly all objects.
    #[test]
    fn no_single_step_takes_nearly_all_objects(steps in steps()) {
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

    /// Losses that a listing shows are believed only as far as the share allows, or as far as new
    /// endpoints of the same Services make up for them.
    #[test]
    fn a_listing_takes_no_more_than_the_share_and_what_was_replaced(
        services in prop::collection::vec((0..30_usize, 0..30_usize, any::<[bool; 2]>(), 0..40_usize), 1..20),
    ) {
        let mut rig = Rig::new();
        let names: Vec<_> = (0..services.len()).map(|i| format!("s{i}")).collect();
        let zipped = || names.iter().zip(&services);
        let before: Vec<_> = zipped().flat_map(|(name, (first, second, ..))| [
            (format!("{name}-0"), *first, Some(name.as_str())),
            (format!("{name}-1"), *second, Some(name.as_str())),
        ]).collect();
        prop_assert!(rig.list_of(&before, false));
        rig.pass(2 * WINDOW);
        let of = rig.ready();
        let mut after = Vec::new();
        let mut unreplaced = 0;
        for (name, (first, second, kept, new)) in zipped() {
            let service = Some(name.as_str());
            let mut lost = 0;
            for (part, (ready, kept)) in [first, second].into_iter().zip(kept).enumerate() {
                match kept {
                    true => after.push((format!("{name}-{part}"), *ready, service)),
                    false => lost += ready,
                }
            }
            if *new > 0 {
                after.push((format!("{name}-new"), *new, service));
            }
            if lost > *new {
                unreplaced += lost;
            }
        }
        let is_settled = rig.list_of(&after, false) || rig.list_of(&after, true);
        prop_assert!(is_settled);
        let is_too_much = unreplaced >= 50 && unreplaced * 100 > of * 20;
        if is_too_much {
            let held = rig.lost().map(|[_, ready]| ready);
            prop_assert_eq!(held, Some(unreplaced));
        } else if services.len() * 2 < 50 {
            // Too few objects to count; every loss is believed.
            let listed: usize = after.iter().map(|(_, ready, _)| ready).sum();
            prop_assert_eq!((rig.ready(), rig.lost()), (listed, None));
        }
    }
}
