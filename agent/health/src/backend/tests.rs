// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use portolan_model::check::{Check, Probe, TcpProbe};

use super::*;
use crate::Way;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A backend with checks that differ by their ports. Rise 2, fall 3.
fn backend(checks: u16) -> Backend {
    let check = |port| {
        let mut check = Check::new(Probe::Tcp(TcpProbe::default()));
        check.port = Some(port);
        Assigned::direct(check)
    };
    Backend {
        weight: 1,
        checks: (1..=checks).map(check).collect(),
        administrative: Administrative::Enabled,
        serves_already: false,
    }
}

struct Rig {
    machine: Machine,
    policy: HealthPolicy,
    now: Duration,
}

impl Rig {
    fn new(checks: u16, policy: HealthPolicy) -> Self {
        let now = seconds(1_000);
        Self {
            machine: Machine::new(&backend(checks), &policy, None, now),
            policy,
            now,
        }
    }

    fn take(&mut self, check: usize, outcome: &Outcome) -> State {
        let before = self.machine.state;
        let change = self.machine.take(check, outcome, &self.policy, self.now);
        assert_eq!(
            change.as_ref().map_or(before, |change| change.to),
            self.machine.state
        );
        assert!(change.is_none_or(|change| change.from == before && change.to != before));
        self.machine.state
    }

    fn pass(&mut self) -> State {
        self.take(0, &Outcome::pass())
    }

    fn fail(&mut self) -> State {
        self.take(0, &Outcome::fail("refused"))
    }

    fn fails(&mut self, times: usize) -> State {
        for _ in 1..times {
            assert_ne!(self.fail(), State::Down);
        }
        self.fail()
    }

    /// The number of passes until the backend is up.
    fn passes_until_up(&mut self) -> u32 {
        let mut passes = 1;
        while self.pass() == State::Down {
            passes += 1;
        }
        passes
    }
}

#[test]
fn the_first_result_decides_and_then_rise_and_fall_do() {
    let mut rig = Rig::new(1, HealthPolicy::default());
    assert_eq!(rig.machine.state, State::Probing);
    assert_eq!(rig.pass(), State::Up);
    assert_eq!([rig.fail(), rig.fail()], [State::Up, State::Up]);
    assert_eq!(rig.machine.next_probe(0), Some(seconds(1)));
    assert_eq!(rig.fail(), State::Down);
    assert_eq!(rig.machine.reason.as_deref(), Some("refused"));
    assert_eq!(rig.machine.next_probe(0), Some(seconds(5)));
    rig.now += seconds(600);
    assert_eq!([rig.pass(), rig.pass()], [State::Down, State::Up]);
    assert_eq!(rig.machine.reason, None);

    let mut rig = Rig::new(1, HealthPolicy::default());
    assert_eq!(rig.fail(), State::Down);
}

#[test]
fn a_backend_that_begins_up_stays_until_a_probe_fails() {
    let policy = HealthPolicy {
        initial_state: InitialState::Up,
        ..HealthPolicy::default()
    };
    let mut rig = Rig::new(1, policy);
    assert_eq!(rig.machine.state, State::Up);
    assert_eq!(rig.fail(), State::Down);

    let serving = Backend {
        serves_already: true,
        ..backend(1)
    };
    let machine = Machine::new(&serving, &HealthPolicy::default(), None, seconds(1));
    assert_eq!(machine.state, State::Up);
}

#[test]
fn all_checks_must_pass() {
    let mut rig = Rig::new(2, HealthPolicy::default());
    assert_eq!(rig.pass(), State::Probing);
    assert_eq!(rig.take(1, &Outcome::pass()), State::Up);
    for _ in 0..2 {
        rig.take(1, &Outcome::fail("silent"));
    }
    assert_eq!(rig.fails(2), State::Up);
    assert_eq!(rig.take(1, &Outcome::fail("silent")), State::Down);
    // The other check has not failed three times: its passes change nothing.
    assert_eq!([rig.pass(), rig.pass(), rig.pass()], [State::Down; 3]);
    let passes = [0; 2].map(|_| rig.take(1, &Outcome::pass()));
    assert_eq!(passes, [State::Down, State::Down], "a flap doubles rise");
    let passes = [0; 2].map(|_| rig.take(1, &Outcome::pass()));
    assert_eq!(passes, [State::Down, State::Up]);
}

#[test]
fn no_verdict_changes_nothing_but_silence_from_the_start_is_a_failure() {
    let mut rig = Rig::new(1, HealthPolicy::default());
    let ours = Outcome::no_verdict("too many open files");
    assert_eq!(rig.take(0, &ours), State::Probing);
    assert_eq!(rig.machine.next_probe(0), Some(seconds(1)));
    rig.now += seconds(9);
    assert_eq!(rig.take(0, &ours), State::Down);

    let mut rig = Rig::new(1, HealthPolicy::default());
    rig.pass();
    rig.now += seconds(100);
    assert_eq!([rig.fail(), rig.fail()], [State::Up; 2]);
    for _ in 0..9 {
        assert_eq!(rig.take(0, &ours), State::Up);
    }
    assert_eq!(rig.fail(), State::Down);
}

#[test]
fn flaps_double_the_rise_and_quiet_time_halves_it() {
    let mut rig = Rig::new(1, HealthPolicy::default());
    rig.pass();
    let mut needed = Vec::new();
    for _ in 0..5 {
        rig.now += seconds(59);
        rig.fails(3);
        needed.push(rig.passes_until_up());
    }
    assert_eq!(needed, [4, 8, 16, 16, 16]);
    rig.now += seconds(299);
    assert_eq!(rig.machine.factor_at(rig.now), 8);
    rig.now += seconds(1);
    rig.fails(3);
    assert_eq!(rig.passes_until_up(), 8, "halved once, and no flap");
    rig.now += seconds(1_500);
    rig.fails(3);
    assert_eq!(rig.passes_until_up(), 2);
    rig.now += Duration::from_secs(u64::from(u32::MAX) * 400);
    assert_eq!(rig.machine.factor_at(rig.now), 1);
}

#[test]
fn slow_start_ramps_a_backend_that_comes_back() {
    let policy = HealthPolicy {
        slow_start: seconds(36),
        ..HealthPolicy::default()
    };
    let mut rig = Rig::new(1, policy);
    assert_eq!(
        rig.pass(),
        State::Up,
        "a new backend has its weight at once"
    );
    rig.now += seconds(100);
    rig.fails(3);
    assert_eq!([rig.pass(), rig.pass()], [State::Down, State::Ramping]);
    let share = |rig: &Rig| rig.machine.share(&rig.policy, rig.now);
    assert_eq!(share(&rig), 10);
    assert_eq!(
        rig.machine.next_tick(&policy, rig.now),
        Some(rig.now + seconds(2))
    );
    rig.now += seconds(35);
    assert_eq!(
        (rig.machine.tick(&policy, rig.now), share(&rig)),
        (None, 95)
    );
    let (since, changes) = (rig.machine.since, rig.machine.changes);
    rig.now += seconds(1);
    assert_eq!(rig.machine.tick(&policy, rig.now).unwrap().to, State::Up);
    assert_eq!((rig.machine.since, rig.machine.changes), (since, changes));
    assert_eq!(
        (share(&rig), rig.machine.next_tick(&policy, rig.now)),
        (100, None)
    );
}

#[test]
fn a_backend_says_what_it_wants() {
    let mut rig = Rig::new(1, HealthPolicy::default());
    let word = |word: Word| Outcome::Word(word);
    let weight = Some(DynamicWeight::Percent(40));
    // A first word without news is no failure.
    assert_eq!(rig.take(0, &word(Word::default())), State::Up);
    rig.take(
        0,
        &word(Word {
            weight,
            ..Word::default()
        }),
    );
    let drain = Some(Administrative::Drain);
    rig.take(
        0,
        &word(Word {
            administrative: drain,
            ..Word::default()
        }),
    );
    assert_eq!(rig.machine.dynamic(1), weight);
    assert_eq!(rig.machine.administrative(), Administrative::Drain);
    let down = Word {
        up: Some(false),
        reason: Some("disk".into()),
        ..Word::default()
    };
    for _ in 0..3 {
        rig.take(0, &word(down.clone()));
    }
    assert_eq!(rig.machine.state, State::Down);
    assert_eq!(rig.machine.reason.as_deref(), Some("disk"));
    assert_eq!(rig.take(0, &word(Word::default())), State::Down, "no news");
}

#[test]
fn another_configuration_keeps_the_state_until_its_first_result() {
    let mut rig = Rig::new(1, HealthPolicy::default());
    rig.pass();
    assert_eq!(rig.machine.update(&backend(2), &rig.policy, rig.now), None);
    assert_eq!(rig.machine.state, State::Up);
    rig.fails(2);
    assert_eq!(
        rig.take(1, &Outcome::fail("refused")),
        State::Down,
        "decides alone"
    );
    // Without the new check, the old one has its two failures still.
    assert!(
        rig.machine
            .update(&backend(1), &rig.policy, rig.now)
            .is_some()
    );
    assert_eq!(rig.fail(), State::Down);
    let change = rig
        .machine
        .update(&backend(0), &rig.policy, rig.now)
        .unwrap();
    assert_eq!(change.to, State::Up, "without checks it is up");
}

#[test]
fn a_saved_state_holds_only_for_the_same_checks() {
    let mut rig = Rig::new(2, HealthPolicy::default());
    rig.fail();
    let saved = rig.machine.save("10.0.0.1:80".parse().unwrap());
    let again = |checks| Machine::new(&backend(checks), &rig.policy, Some(&saved), rig.now);
    let (same, other) = (again(2), again(1));
    assert_eq!(
        (same.state, same.since, same.reason.as_deref()),
        (State::Down, rig.now, Some("refused"))
    );
    assert_eq!(other.state, State::Probing);
    assert_eq!(same.save(saved.address), saved);
    let arc: Arc<[Assigned]> = backend(2).checks;
    assert_eq!(saved.checks, CheckHash::of(arc.iter()));
}

#[test]
fn each_check_has_its_own_judgement_after_a_restart() {
    let mut rig = Rig::new(3, HealthPolicy::default());
    let silent = Outcome::Word(Word::default());
    let weight = Some(DynamicWeight::Percent(50));
    // The second check is one by words, which need not say that all is well; the third one has one failure.
    rig.take(1, &silent);
    rig.take(2, &Outcome::Pass { weight });
    rig.take(2, &Outcome::fail("refused"));
    assert_eq!(rig.fail(), State::Down);
    let saved = rig.machine.save("10.0.0.1:80".parse().unwrap());
    rig.machine = Machine::new(&backend(3), &rig.policy, Some(&saved), rig.now);
    assert_eq!(rig.take(1, &silent), State::Down);
    assert_eq!(rig.pass(), State::Down);
    assert_eq!(rig.pass(), State::Up);
    assert_eq!(rig.machine.dynamic(1), weight);
    let fails = [0; 2].map(|_| rig.take(2, &Outcome::fail("refused")));
    assert_eq!(fails, [State::Up, State::Down], "the third in a row");
}

#[test]
fn a_check_by_another_way_keeps_its_results() {
    let mut rig = Rig::new(1, HealthPolicy::default());
    let weight = Some(DynamicWeight::Percent(50));
    rig.take(0, &Outcome::Pass { weight });
    assert_eq!(rig.fail(), State::Up);
    let mut other = backend(1);
    let way = Way {
        address: "192.0.2.1:80".parse().unwrap(),
        mark: 7,
        source: None,
    };
    Arc::make_mut(&mut other.checks)[0].way = Some(way);
    assert_eq!(rig.machine.update(&other, &rig.policy, rig.now), None);
    assert_eq!(rig.machine.dynamic(1), weight);
    assert_eq!([rig.fail(), rig.fail()], [State::Up, State::Down]);
}
