// SPDX-License-Identifier: Apache-2.0

//! Invariants over random histories.

use portolan_model::check::{Check, InitialState, Probe, TcpProbe};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{Assigned, DynamicWeight, Word};

#[derive(Debug, Clone)]
enum Event {
    Result {
        backend: u16,
        check: usize,
        outcome: Outcome,
    },
    Override(u16, Option<Administrative>),
    Wait(Duration),
}

fn address(index: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], index + 1))
}

fn policy() -> impl Strategy<Value = HealthPolicy> {
    let bools = (any::<bool>(), any::<bool>());
    let quorum = (1..6u32).prop_flat_map(|quorum| (Just(quorum), 0..quorum));
    let ramp = prop_oneof![Just(0u64), 1..90u64];
    (bools, quorum, prop_oneof![Just(0u8), 0..=100u8], ramp).prop_map(
        |((up, remove), (quorum, hysteresis), minimum_healthy_percent, ramp)| HealthPolicy {
            initial_state: if up {
                InitialState::Up
            } else {
                InitialState::Probe
            },
            on_failure: if remove {
                OnFailure::Remove
            } else {
                OnFailure::Quiesce
            },
            quorum,
            hysteresis,
            minimum_healthy_percent,
            slow_start: Duration::from_secs(ramp),
        },
    )
}

fn load_balancer() -> impl Strategy<Value = LoadBalancer> {
    let check = |port| {
        let mut check = Check::new(Probe::Tcp(TcpProbe::default()));
        check.port = Some(port);
        Assigned::direct(check)
    };
    let backend =
        (1..9u16, 0..3u16, any::<bool>()).prop_map(move |(weight, checks, serves)| Backend {
            weight,
            checks: (1..=checks).map(check).collect(),
            administrative: Administrative::Enabled,
            serves_already: serves,
        });
    (policy(), any::<bool>(), vec(backend, 0..5)).prop_map(|(policy, sorry, backends)| {
        LoadBalancer {
            name: "default/web".into(),
            frontend: "TCP/192.0.2.10:80".into(),
            policy,
            has_sorry_server: sorry,
            backends: (0..).map(address).zip(backends).collect(),
        }
    })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let word = (any::<Option<bool>>(), 0..120u16).prop_map(|(up, percent)| {
        Outcome::Word(Word {
            up,
            weight: Some(DynamicWeight::Percent(percent)),
            administrative: None,
            reason: None,
        })
    });
    prop_oneof![
        4 => Just(Outcome::pass()),
        4 => Just(Outcome::fail("refused")),
        1 => Just(Outcome::no_verdict("too many open files")),
        1 => word,
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let state = prop_oneof![
        Just(None),
        Just(Some(Administrative::Drain)),
        Just(Some(Administrative::Disabled)),
        Just(Some(Administrative::Enabled)),
    ];
    let result =
        (0..5u16, 0..2usize, outcome()).prop_map(|(backend, check, outcome)| Event::Result {
            backend,
            check,
            outcome,
        });
    prop_oneof![
        8 => result,
        1 => (0..5u16, state).prop_map(|(backend, state)| Event::Override(backend, state)),
        2 => (0..40_000u64).prop_map(|millis| Event::Wait(Duration::from_millis(millis))),
    ]
}

/// Applies one event, and checks that it changed at most one state.
fn apply(balancer: &mut Balancer, event: &Event, now: &mut Duration) {
    let states = |balancer: &Balancer| balancer.machines.values().map(|each| each.state).collect();
    let before: Vec<State> = states(balancer);
    match event {
        Event::Result {
            backend,
            check,
            outcome,
        } => {
            let told = balancer.take(address(*backend), *check, outcome, *now);
            let after: Vec<State> = states(balancer);
            let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
            let change = told.and_then(|told| told.change);
            assert_eq!(changed, usize::from(change.is_some()));
            assert!(
                changed == 0 || !matches!(outcome, Outcome::NoVerdict(_)) || {
                    change.is_some_and(|change| change.from == State::Probing)
                }
            );
        }
        Event::Override(backend, state) => balancer.set_override(address(*backend), *state),
        Event::Wait(time) => {
            *now += *time;
            balancer.tick(*now);
        }
    }
}

fn weight_is_zero_exactly_when_nothing_may_come(balancer: &Balancer, verdicts: &Verdicts) {
    for (address, verdict) in &verdicts.backends {
        let status = &verdicts.states[address];
        let configured = balancer.wanted.backends[address].weight;
        let asks_for_none = weight::serving(
            configured,
            balancer.machines[address].dynamic(configured),
            100,
            1,
        ) == 0;
        let serves = status.administrative == Administrative::Enabled
            && (status.state.is_up() || status.is_kept)
            && !asks_for_none
            && !verdicts.sorry;
        assert_eq!(
            verdict.weight > 0,
            serves,
            "{address} {verdict:?} {status:?}"
        );
        assert!(verdict.weight == 0 || verdict.presence == Presence::Present);
    }
}

fn quorum_stays_within_the_hysteresis(policy: &HealthPolicy, before: bool, after: &Verdicts) {
    let (quorum, hysteresis) = (u64::from(policy.quorum), u64::from(policy.hysteresis));
    let (low, high) = (quorum - hysteresis, quorum + hysteresis);
    if (low..high).contains(&after.healthy_weight) {
        assert_eq!(after.quorum, before);
    } else {
        assert_eq!(after.quorum, after.healthy_weight >= high);
    }
}

proptest! {
    #[test]
    fn invariants_hold(wanted in load_balancer(), events in vec(event(), 0..80)) {
        let (wanted, mut now) = (Arc::new(wanted), Duration::from_secs(1_000));
        let mut balancer = Balancer::new::<()>(Arc::clone(&wanted), None, now);
        let mut before = balancer.verdicts(now);
        for event in &events {
            apply(&mut balancer, event, &mut now);
            let after = balancer.verdicts(now);
            weight_is_zero_exactly_when_nothing_may_come(&balancer, &after);
            quorum_stays_within_the_hysteresis(&wanted.policy, before.quorum, &after);
            prop_assert_eq!(&balancer.verdicts(now), &after, "asking changes nothing");
            before = after;
        }
    }

    #[test]
    fn restored_states_give_the_same_verdicts(
        wanted in load_balancer(),
        events in vec(event(), 0..80),
        away in 0..300u64,
    ) {
        let (wanted, mut now) = (Arc::new(wanted), Duration::from_secs(1_000));
        let mut balancer = Balancer::new::<()>(Arc::clone(&wanted), None, now);
        for event in &events {
            apply(&mut balancer, event, &mut now);
            balancer.verdicts(now);
        }
        let text = serde_json::to_string(&balancer.save(7)).unwrap();
        let saved = serde_json::from_str(&text).unwrap();
        let mut restored = Balancer::new::<u32>(wanted, Some(&saved), now);
        for (backend, state) in balancer.overrides.clone() {
            restored.set_override(backend, Some(state));
        }
        now += Duration::from_secs(away);
        for each in [&mut balancer, &mut restored] {
            each.tick(now);
        }
        let (old, new) = (balancer.verdicts(now), restored.verdicts(now));
        prop_assert_eq!(old.backends, new.backends);
        prop_assert_eq!((old.sorry, old.quorum), (new.sorry, new.quorum));
    }
}
