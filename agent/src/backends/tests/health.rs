// SPDX-License-Identifier: Apache-2.0

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::backends::health::{HealthOfRecords, health};

#[test]
fn without_any_result_the_sorry_server_does_not_come_in() {
    let mut probing = Verdicts::clone(&verdicts(State::Probing, 0));
    probing.sorry = true;
    for status in probing.states.values_mut() {
        status.state = State::Probing;
    }
    let nothing = BTreeMap::new();
    assert!(!health(Some(&probing), &nothing).is_sorry);
    let mut down = Verdicts::clone(&verdicts(State::Down, 0));
    down.sorry = true;
    assert!(health(Some(&down), &nothing).is_sorry);
    // Nor because the only backend with a result is drained by command.
    probing.states.get_mut(&backend(1)).unwrap().state = State::Up;
    assert!(health(Some(&probing), &nothing).is_sorry);
    for status in probing.states.values_mut().take(1) {
        status.administrative = Administrative::Drain;
    }
    assert!(!health(Some(&probing), &nothing).is_sorry);
}

#[test]
fn a_command_counts_at_once_and_before_any_check() {
    let of = |verdicts: Option<&Verdicts>, state| health(verdicts, &[(backend(2), state)].into());
    let (drain, disabled) = (Administrative::Drain, Administrative::Disabled);
    for verdicts in [
        None,
        Some(verdicts(State::Probing, 0)),
        Some(verdicts(State::Up, 7)),
    ] {
        let drained = of(verdicts.as_deref(), drain);
        assert_eq!(drained.weights.get(&backend(2)), Some(&Some(0)));
        assert_eq!(drained.commanded, [backend(2)].into());
        let disabled = of(verdicts.as_deref(), disabled);
        assert_eq!(disabled.weights.get(&backend(2)), Some(&None));
        // A verdict from before the command says nothing about one that is enabled.
        let enabled = of(verdicts.as_deref(), Administrative::Enabled);
        assert_eq!(enabled.weights.get(&backend(2)), None);
    }
    let mut judged = Verdicts::clone(&verdicts(State::Up, 7));
    judged.states.get_mut(&backend(2)).unwrap().commanded = Some(Administrative::Enabled);
    let enabled = of(Some(&judged), Administrative::Enabled);
    assert_eq!(enabled.weights.get(&backend(2)), Some(&Some(7)));
    // Nor does one from before the end of a command.
    let without = health(Some(&judged), &BTreeMap::new());
    assert_eq!(without.weights.get(&backend(2)), None);
}

/// The inputs of health.
type HealthInputs = (ByRecord<Record>, Health, Overrides<RecordKey>);

/// Inputs of up to three records. Some have no verdicts or commands, and some are not in the table.
fn inputs() -> impl Strategy<Value = HealthInputs> {
    let verdicts = prop_oneof![
        Just(None),
        (0..3_u16).prop_map(|weight| Some(verdicts(State::Up, weight))),
        Just(Some(verdicts(State::Probing, 0))),
    ];
    let command = prop_oneof![
        3 => Just(None),
        1 => Just(Some(Administrative::Enabled)),
        1 => Just(Some(Administrative::Drain)),
    ];
    let one = (any::<bool>(), verdicts, [command.clone(), command]);
    vec(one, 3).prop_map(|all| {
        let mut inputs = HealthInputs::default();
        for (name, (is_in_table, verdicts, commands)) in ["a", "b", "c"].into_iter().zip(all) {
            let key = key(name);
            if is_in_table {
                inputs.0.insert(key.clone(), Arc::new(balanced(name)));
            }
            let verdicts = verdicts.map(|verdicts| (key.clone(), verdicts));
            inputs.1.extend(verdicts);
            for (address, command) in [backend(1), backend(2)].into_iter().zip(commands) {
                let command = command.map(|command| ((key.clone(), address), command));
                inputs.2.extend(command);
            }
        }
        inputs
    })
}

proptest! {
    #[test]
    fn health_of_changed_inputs_is_that_of_all_inputs(all in vec(inputs(), 1..8)) {
        let mut computed = HealthOfRecords::default();
        let mut before = ByRecord::new();
        for (records, verdicts, commanded) in all {
            let whole = health_of(&records, verdicts.clone(), commanded.clone());
            let now = computed.update(&records, verdicts, commanded);
            prop_assert_eq!(&now, &whole);
            for (key, health) in &now {
                let old = before.get(key).filter(|old| *old == health);
                prop_assert!(old.is_none_or(|old| Arc::ptr_eq(old, health)));
            }
            before = now;
        }
    }
}
