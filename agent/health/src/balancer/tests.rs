// SPDX-License-Identifier: Apache-2.0

use portolan_model::check::{Check, Probe, TcpProbe};

use super::*;
use crate::{Assigned, DynamicWeight};

const NOW: Duration = Duration::from_secs(1_000);

fn address(index: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], index))
}

fn backend(weight: u16) -> Backend {
    Backend {
        weight,
        checks: [Assigned::direct(Check::new(
            Probe::Tcp(TcpProbe::default()),
        ))]
        .into(),
        administrative: Administrative::Enabled,
        serves_already: false,
    }
}

fn wanted(weights: &[u16], policy: HealthPolicy) -> LoadBalancer {
    let backends = (1..)
        .map(address)
        .zip(weights.iter().map(|each| backend(*each)));
    LoadBalancer {
        name: "default/web".into(),
        frontend: "TCP/192.0.2.10:80".into(),
        policy,
        has_sorry_server: false,
        backends: backends.collect(),
    }
}

fn balancer(weights: &[u16], policy: HealthPolicy, sorry: bool) -> Balancer {
    let mut wanted = wanted(weights, policy);
    wanted.has_sorry_server = sorry;
    Balancer::new::<()>(Arc::new(wanted), None, NOW)
}

/// Fails or passes as often as it takes.
fn make(balancer: &mut Balancer, index: u16, up: bool, now: Duration) {
    let outcome = if up {
        Outcome::pass()
    } else {
        Outcome::fail("refused")
    };
    for _ in 0..16 {
        balancer.take(address(index), 0, &outcome, now).unwrap();
    }
}

fn weights(verdicts: &Verdicts) -> Vec<u16> {
    verdicts.backends.values().map(|each| each.weight).collect()
}

#[test]
fn weights_follow_the_checks() {
    let mut balancer = balancer(&[3, 1], HealthPolicy::default(), false);
    assert_eq!(weights(&balancer.verdicts(NOW)), [0, 0]);
    make(&mut balancer, 1, true, NOW);
    make(&mut balancer, 2, true, NOW);
    let verdicts = balancer.verdicts(NOW);
    assert_eq!(
        (weights(&verdicts), verdicts.quorum, verdicts.healthy_weight),
        (vec![3, 1], true, 4)
    );
    make(&mut balancer, 1, false, NOW);
    let verdicts = balancer.verdicts(NOW);
    assert_eq!((weights(&verdicts), verdicts.quorum), (vec![0, 1], true));
    assert_eq!(
        verdicts.states[&address(1)].reason.as_deref(),
        Some("refused")
    );
    assert_eq!(verdicts.backends[&address(1)].presence, Presence::Present);
}

#[test]
fn a_failing_backend_leaves_the_virtual_server_if_asked() {
    let policy = HealthPolicy {
        on_failure: OnFailure::Remove,
        ..HealthPolicy::default()
    };
    let mut balancer = balancer(&[1], policy, false);
    assert_eq!(
        balancer.verdicts(NOW).backends[&address(1)].presence,
        Presence::Absent
    );
    make(&mut balancer, 1, true, NOW);
    assert_eq!(
        balancer.verdicts(NOW).backends[&address(1)].presence,
        Presence::Present
    );
    balancer.set_override(address(1), Some(Administrative::Drain));
    let verdict = Verdict {
        weight: 0,
        presence: Presence::Leaving,
    };
    let verdicts = balancer.verdicts(NOW);
    assert_eq!(verdicts.backends[&address(1)], verdict);
    let drain = Administrative::Drain;
    assert_eq!(verdicts.states[&address(1)].commanded, Some(drain));
}

#[test]
fn without_quorum_the_sorry_server_serves_alone() {
    let policy = HealthPolicy {
        quorum: 3,
        ..HealthPolicy::default()
    };
    let mut balancer = balancer(&[2, 2], policy, true);
    for index in [1, 2] {
        make(&mut balancer, index, true, NOW);
    }
    let good = balancer.verdicts(NOW);
    assert_eq!((weights(&good), good.sorry), (vec![2, 2], false));
    make(&mut balancer, 2, false, NOW);
    let bad = balancer.verdicts(NOW);
    assert_eq!(
        (weights(&bad), bad.sorry, bad.quorum),
        (vec![0, 0], true, false)
    );
    make(&mut balancer, 2, true, NOW);
    let again = balancer.verdicts(NOW);
    assert_eq!((weights(&again), again.sorry), (vec![2, 2], false));
}

#[test]
fn without_a_sorry_server_a_lost_quorum_is_only_told() {
    let policy = HealthPolicy {
        quorum: 3,
        ..HealthPolicy::default()
    };
    let mut balancer = balancer(&[2, 2], policy, false);
    make(&mut balancer, 1, true, NOW);
    let verdicts = balancer.verdicts(NOW);
    assert_eq!((weights(&verdicts), verdicts.quorum), (vec![2, 0], false));
}

#[test]
fn quorum_is_not_lost_while_backends_without_a_result_may_have_it() {
    let policy = HealthPolicy {
        quorum: 2,
        ..HealthPolicy::default()
    };
    let mut balancer = balancer(&[1, 1, 1], policy, true);
    assert!(!balancer.verdicts(NOW).sorry);
    make(&mut balancer, 1, false, NOW);
    assert!(!balancer.verdicts(NOW).sorry);
    make(&mut balancer, 2, true, NOW);
    let verdicts = balancer.verdicts(NOW);
    assert_eq!((weights(&verdicts), verdicts.sorry), (vec![0, 1, 0], false));
    make(&mut balancer, 3, false, NOW);
    let verdicts = balancer.verdicts(NOW);
    assert_eq!((weights(&verdicts), verdicts.sorry), (vec![0, 0, 0], true));
    // Once it is lost, a new backend does not make it unknown again.
    let mut larger = wanted(&[1, 1, 1, 1], policy);
    larger.has_sorry_server = true;
    balancer.update(Arc::new(larger), NOW);
    let verdicts = balancer.verdicts(NOW);
    assert_eq!((weights(&verdicts), verdicts.sorry), (vec![0; 4], true));
    make(&mut balancer, 4, true, NOW);
    let verdicts = balancer.verdicts(NOW);
    assert_eq!(
        (weights(&verdicts), verdicts.sorry),
        (vec![0, 1, 0, 1], false)
    );
}

#[test]
fn asking_again_makes_no_open_quorum_lost() {
    let policy = HealthPolicy {
        quorum: 3,
        hysteresis: 2,
        ..HealthPolicy::default()
    };
    for (probing, is_open) in [(4, false), (5, true)] {
        let mut balancer = balancer(&[3, probing], policy, true);
        make(&mut balancer, 1, true, NOW);
        assert!(balancer.verdicts(NOW).quorum);
        balancer.set_override(address(1), Some(Administrative::Drain));
        for _ in 0..2 {
            let verdicts = balancer.verdicts(NOW);
            assert_eq!((verdicts.is_quorum_open, verdicts.quorum), (is_open, false));
        }
    }
}

#[test]
fn quorum_has_hysteresis() {
    let policy = HealthPolicy {
        quorum: 4,
        hysteresis: 2,
        ..HealthPolicy::default()
    };
    let mut balancer = balancer(&[1, 1, 1, 1, 1, 1], policy, true);
    let mut seen = Vec::new();
    for index in 1..=6 {
        make(&mut balancer, index, true, NOW);
        if index == 1 {
            balancer.verdicts(NOW);
        }
        seen.push(balancer.verdicts(NOW).quorum);
    }
    assert_eq!(
        seen,
        [false, false, false, false, false, true],
        "gained at 6"
    );
    seen.clear();
    for index in 1..=6 {
        make(&mut balancer, index, false, NOW);
        seen.push(balancer.verdicts(NOW).quorum);
    }
    assert_eq!(seen, [true, true, true, true, false, false], "lost below 2");
}

#[test]
fn the_last_to_fail_keep_their_weight_below_the_floor() {
    let policy = HealthPolicy {
        minimum_healthy_percent: 50,
        ..HealthPolicy::default()
    };
    let mut balancer = balancer(&[1, 1, 1, 1], policy, false);
    for index in 1..=4 {
        make(&mut balancer, index, true, NOW);
    }
    for index in 1..=4 {
        make(
            &mut balancer,
            index,
            false,
            NOW + Duration::from_secs(index.into()),
        );
    }
    let verdicts = balancer.verdicts(NOW);
    assert_eq!(weights(&verdicts), [0, 0, 1, 1]);
    assert_eq!((verdicts.quorum, verdicts.healthy_weight), (false, 0));
    assert!(verdicts.states[&address(3)].is_kept && !verdicts.states[&address(2)].is_kept);
    make(&mut balancer, 1, true, NOW + Duration::from_secs(9));
    assert_eq!(weights(&balancer.verdicts(NOW)), [1, 0, 0, 1]);
    // A drained backend is no part of the whole.
    balancer.set_override(address(2), Some(Administrative::Drain));
    balancer.set_override(address(3), Some(Administrative::Drain));
    assert_eq!(weights(&balancer.verdicts(NOW)), [1, 0, 0, 0]);
}

#[test]
fn slow_start_makes_all_weights_fine() {
    let policy = HealthPolicy {
        slow_start: Duration::from_secs(36),
        ..HealthPolicy::default()
    };
    let mut balancer = balancer(&[1, 2], policy, false);
    for index in [1, 2] {
        make(&mut balancer, index, true, NOW);
    }
    assert_eq!(weights(&balancer.verdicts(NOW)), [100, 200]);
    make(&mut balancer, 1, false, NOW);
    make(&mut balancer, 1, true, NOW);
    assert_eq!(weights(&balancer.verdicts(NOW)), [10, 200]);
    let next = balancer.next_tick(NOW).unwrap();
    assert_eq!(next, NOW + Duration::from_secs(2));
    assert_eq!(weights(&balancer.verdicts(next)), [15, 200]);
    let end = NOW + Duration::from_secs(36);
    assert_eq!(balancer.tick(end).len(), 1);
    assert_eq!(
        (weights(&balancer.verdicts(end)), balancer.next_tick(end)),
        (vec![100, 200], None)
    );
}

#[test]
fn an_override_beats_configuration_and_word() {
    let mut wanted = wanted(&[1], HealthPolicy::default());
    let backend = wanted.backends.get_mut(&address(1)).unwrap();
    backend.administrative = Administrative::Disabled;
    let mut balancer = Balancer::new::<()>(Arc::new(wanted), None, NOW);
    make(&mut balancer, 1, true, NOW);
    assert_eq!(weights(&balancer.verdicts(NOW)), [0]);
    balancer.set_override(address(1), Some(Administrative::Enabled));
    assert_eq!(weights(&balancer.verdicts(NOW)), [1]);
    balancer.set_override(address(1), None);
    assert_eq!(weights(&balancer.verdicts(NOW)), [0]);
}

#[test]
fn a_backend_that_asks_for_no_weight_does_not_count_for_quorum() {
    let mut balancer = balancer(&[5], HealthPolicy::default(), true);
    let told = |percent| Outcome::Pass {
        weight: Some(DynamicWeight::Percent(percent)),
    };
    balancer.take(address(1), 0, &told(50), NOW).unwrap();
    assert_eq!(weights(&balancer.verdicts(NOW)), [3]);
    balancer.take(address(1), 0, &told(0), NOW).unwrap();
    let verdicts = balancer.verdicts(NOW);
    assert_eq!((weights(&verdicts), verdicts.sorry), (vec![0], true));
}

#[test]
fn backends_come_and_go() {
    let mut balancer = balancer(&[1, 1], HealthPolicy::default(), false);
    make(&mut balancer, 1, true, NOW);
    let mut other = wanted(&[7, 1, 1], HealthPolicy::default());
    other.backends.remove(&address(2));
    assert_eq!(balancer.update(Arc::new(other), NOW), []);
    assert_eq!(weights(&balancer.verdicts(NOW)), [7, 0]);
    assert_eq!(balancer.take(address(2), 0, &Outcome::pass(), NOW), None);
    assert_eq!(balancer.take(address(1), 1, &Outcome::pass(), NOW), None);
}

#[test]
fn the_flap_factor_of_a_status_halves_with_quiet_time_after_it() {
    let mut balancer = balancer(&[1], HealthPolicy::default(), false);
    for up in [true, false, true, false] {
        make(&mut balancer, 1, up, NOW);
    }
    // However late the verdicts are asked for.
    for asked in [0, 900] {
        let verdicts = balancer.verdicts(NOW + Duration::from_secs(asked));
        let status = &verdicts.states[&address(1)];
        for (quiet, factor) in [(0, 4), (299, 4), (300, 2), (600, 1), (90_000, 1)] {
            let now = NOW + Duration::from_secs(quiet);
            assert_eq!(status.flap_factor_at(now), factor, "{asked} {quiet}");
        }
    }
}
