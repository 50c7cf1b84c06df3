// SPDX-License-Identifier: Apache-2.0

use portolan_model::check::OnFailure;
use portolan_plan::{Config, KernelState, NodeFacts, Step, desire, plan};
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
    assert_eq!(health(Some(&probing), &nothing).is_sorry, None);
    let mut down = Verdicts::clone(&verdicts(State::Down, 0));
    down.sorry = true;
    assert_eq!(health(Some(&down), &nothing).is_sorry, Some(true));
    // Nor because the only backend with a result is drained by command.
    probing.states.get_mut(&backend(1)).unwrap().state = State::Up;
    assert_eq!(health(Some(&probing), &nothing).is_sorry, Some(true));
    for status in probing.states.values_mut().take(1) {
        status.administrative = Administrative::Drain;
    }
    assert_eq!(health(Some(&probing), &nothing).is_sorry, None);
}

#[test]
fn a_quorum_that_backends_without_a_result_can_bring_is_not_known() {
    let mut open = Verdicts::clone(&verdicts(State::Down, 0));
    open.states.get_mut(&backend(1)).unwrap().state = State::Probing;
    open.is_quorum_open = true;
    let of = health(Some(&open), &BTreeMap::new());
    assert_eq!((of.is_sorry, of.lacks_quorum), (None, false));
    assert_eq!(of.backends, [(backend(2), Standing::Weight(0))].into());
    assert_eq!(crate::backends::quorum(&open), None);
    open.is_quorum_open = false;
    assert_eq!(crate::backends::quorum(&open), Some(false));
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
        assert_eq!(
            drained.backends.get(&backend(2)),
            Some(&Standing::Weight(0))
        );
        assert_eq!(drained.commanded, [backend(2)].into());
        let disabled = of(verdicts.as_deref(), disabled);
        assert_eq!(
            disabled.backends.get(&backend(2)),
            Some(&Standing::Disabled)
        );
        // A verdict from before the command says nothing about one that is enabled.
        let enabled = of(verdicts.as_deref(), Administrative::Enabled);
        assert_eq!(enabled.backends.get(&backend(2)), None);
    }
    let mut judged = Verdicts::clone(&verdicts(State::Up, 7));
    judged.states.get_mut(&backend(2)).unwrap().commanded = Some(Administrative::Enabled);
    let enabled = of(Some(&judged), Administrative::Enabled);
    assert_eq!(
        enabled.backends.get(&backend(2)),
        Some(&Standing::Weight(7))
    );
    // Nor does one from before the end of a command.
    let without = health(Some(&judged), &BTreeMap::new());
    assert_eq!(without.backends.get(&backend(2)), None);
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

/// Steps of the kernel after a change of the second backend, which leaves on failure.
fn steps_after(
    verdicts: &Verdicts,
    commanded: Option<Administrative>,
    configured: AdministrativeState,
) -> Vec<Step> {
    let table = |configured, health| {
        let mut record = balanced("web");
        let balancing = Arc::make_mut(record.balancing.as_mut().unwrap());
        balancing.health.on_failure = OnFailure::Remove;
        let profile = &mut balancing.profiles[0];
        profile.administrative_state = AdministrativeState::Enabled;
        let second = Profile {
            administrative_state: configured,
            ..profile.clone()
        };
        balancing.profiles.push(second);
        balancing.profile_of = vec![0, 1];
        NodeTable {
            records: [(record.key.clone(), Arc::new(record))]
                .into_iter()
                .collect(),
            health: [(key("web"), Arc::new(health))].into_iter().collect(),
            ..NodeTable::default()
        }
    };
    let (facts, config) = (NodeFacts::default(), Config::default());
    let up = health(Some(&super::verdicts(State::Up, 1)), &BTreeMap::new());
    let before = table(AdministrativeState::Enabled, up);
    let nothing = KernelState::default();
    let before = desire(&before, &facts, &config, &nothing).state;
    let commanded = commanded.map(|state| (backend(2), state));
    let health = health(Some(verdicts), &commanded.into_iter().collect());
    let after = desire(&table(configured, health), &facts, &config, &before);
    plan(&after, &before, &config)
}

#[test]
fn only_a_failed_backend_leaves_with_its_connections() {
    let (enabled, disabled) = (AdministrativeState::Enabled, AdministrativeState::Disabled);
    let up = verdicts(State::Up, 1);
    let leaves = |state, presence, administrative| {
        let mut verdicts = Verdicts::clone(&verdicts(state, 0));
        verdicts.backends.get_mut(&backend(2)).unwrap().presence = presence;
        verdicts.states.get_mut(&backend(2)).unwrap().administrative = administrative;
        verdicts
    };
    let failed = leaves(State::Down, Presence::Absent, Administrative::Enabled);
    let steps = steps_after(&failed, None, enabled);
    assert!(
        matches!(&steps[..], [Step::DelRealServer { address, .. }] if *address == backend(2)),
        "{steps:?}"
    );
    let by_agent = leaves(State::Up, Presence::Leaving, Administrative::Disabled);
    for steps in [
        steps_after(&up, Some(Administrative::Disabled), enabled),
        steps_after(&up, None, disabled),
        steps_after(&by_agent, None, enabled),
        steps_after(&by_agent, None, disabled),
    ] {
        assert!(
            matches!(
                &steps[..],
                [Step::SetRealServer { address, config, .. }]
                    if *address == backend(2) && config.weight == 0
            ),
            "{steps:?}"
        );
    }
}
