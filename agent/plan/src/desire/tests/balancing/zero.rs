// SPDX-License-Identifier: Apache-2.0

//! The scheduler `dh`, which refuses the clients of a real server with weight 0.

use super::*;

const FIRST: &str = "10.0.0.1:80";
const SECOND: &str = "10.0.0.2:80";
const SORRY: &str = "10.0.0.9:80";

/// A load balancer with this scheduler.
fn scheduled(scheduler: &str, backends: &[&'static str]) -> Record {
    let backends: Vec<_> = backends.iter().map(|each| masquerade(each)).collect();
    let mut record = balanced(&backends, &[VIP]);
    record.scheduling.scheduler = Some(scheduler.into());
    record
}

/// The step to another record and health from two backends that serve.
fn step(record: &Record, health_then: RecordHealth) -> Step {
    let scheduler = record.scheduling.scheduler.as_deref().unwrap();
    let before = scheduled(scheduler, &[FIRST, SECOND]);
    let before = desired(&before, Some(well()), &KernelState::default()).state;
    let after = desired(record, Some(health_then), &before);
    let mut steps = plan(&after, &before, &Config::default());
    assert_eq!(steps.len(), 1, "{steps:?}");
    steps.remove(0)
}

fn well() -> RecordHealth {
    health(&[(FIRST, Some(3)), (SECOND, Some(3))], false)
}

#[test]
fn a_backend_that_is_to_get_no_connections_leaves_a_scheduler_that_refuses_its_clients() {
    let leaves = |record: &Record, health| match step(record, health) {
        Step::DelRealServer { address, .. } => address.to_string() == SECOND,
        Step::SetRealServer { config, .. } if config.weight == 0 => false,
        other => panic!("{other}"),
    };
    for (scheduler, expected) in [("dh", true), ("sh", false), ("mh", false)] {
        let both = || scheduled(scheduler, &[FIRST, SECOND]);
        for state in [AdministrativeState::Drain, AdministrativeState::Disabled] {
            let mut record = both();
            change(&mut record, |balancing| {
                balancing.profiles[1].administrative_state = state;
            });
            let left = leaves(&record, well());
            assert_eq!(left, expected, "{scheduler} {state:?}");
        }
        // The files no longer have it.
        let left = leaves(&scheduled(scheduler, &[FIRST]), well());
        assert_eq!(left, expected, "{scheduler}");
        // Its agent asks for no connections, or an operator's command does.
        let mut asked = health(&[(FIRST, Some(3)), (SECOND, Some(0))], false);
        let left = leaves(&both(), asked.clone());
        assert_eq!(left, expected, "{scheduler}");
        asked.commanded.insert(SECOND.parse().unwrap());
        assert_eq!(leaves(&both(), asked), expected, "{scheduler}");
    }
}

#[test]
fn a_scheduler_that_refuses_at_weight_zero_has_no_idle_server() {
    let mut record = scheduled("dh", &[FIRST, SECOND]);
    let serving = |record: &Record, health| {
        let desired = desired(record, health, &KernelState::default());
        weights(&desired, VIP)
    };
    // No check has passed.
    assert_eq!(serving(&record, None), []);
    change(&mut record, |balancing| {
        balancing.sorry_server = Some(SorryServer {
            address: SORRY.parse().unwrap(),
            forwarding: ForwardingMethod::Masquerade,
            keep_idle: true,
        });
    });
    let all = [(FIRST.to_owned(), 3), (SECOND.to_owned(), 3)];
    assert_eq!(serving(&record, Some(well())), all);
    // One is healthy, and too few for the quorum.
    let lost = health(&[(FIRST, Some(0)), (SECOND, None)], true);
    assert_eq!(serving(&record, Some(lost)), [(SORRY.to_owned(), 1)]);
}
