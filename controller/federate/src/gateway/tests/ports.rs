// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use portolan_model::Protocol;
use portolan_policy::PortRange;
use proptest::prelude::*;

use super::*;
use crate::Moment;
use crate::vip::{HELD, ImportName};

fn name(service: &str, protocol: Protocol) -> PortName {
    PortName {
        service: ImportName {
            namespace: "shop".into(),
            name: service.into(),
        },
        port: "http".into(),
        protocol,
    }
}

fn claim(service: &str, present: Option<u16>) -> PortClaim {
    PortClaim {
        name: name(service, Protocol::Tcp),
        present,
    }
}

fn ports(first: u16, last: u16) -> Ports {
    let mut ports = Ports::default();
    ports.set_range(Some(PortRange { first, last }));
    ports
}

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

#[test]
fn the_same_names_get_the_same_ports_in_all_versions() {
    let given = ports(20_000, 29_999).allocate(&[claim("web", None)], at(0));
    assert_eq!(given[&name("web", Protocol::Tcp)], Ok(FIRST));
    let protocols = [Protocol::Tcp, Protocol::Udp].map(|protocol| PortClaim {
        name: name("web", protocol),
        present: None,
    });
    let given = ports(20_000, 20_000).allocate(&protocols, at(0));
    assert!(given.values().all(|port| *port == Ok(20_000)), "{given:?}");
}

/// Port that the hash of the name gives.
const FIRST: u16 = 25_642;

#[test]
fn a_port_is_kept_and_others_get_what_is_left() {
    let mut two = ports(20_000, 20_001);
    let claims = [claim("api", None), claim("web", Some(20_001))];
    let given = two.allocate(&claims, at(0));
    assert_eq!(given[&name("web", Protocol::Tcp)], Ok(20_001));
    assert_eq!(given[&name("api", Protocol::Tcp)], Ok(20_000));
    let third = [claims[0].clone(), claims[1].clone(), claim("z", None)];
    let given = two.allocate(&third.map(|one| with_present(one, &given)), at(1));
    let full = PortProblem::Full(PortRange {
        first: 20_000,
        last: 20_001,
    });
    assert_eq!(given[&name("z", Protocol::Tcp)], Err(full.clone()));
    assert_eq!(
        full.to_string(),
        "no port is left in gateway.ports 20000-20001"
    );
    assert_eq!(given[&name("web", Protocol::Tcp)], Ok(20_001));
    let none = Ports::default().allocate(&[claim("web", Some(1))], at(0));
    assert_eq!(none[&name("web", Protocol::Tcp)], Err(PortProblem::NoRange));
}

fn with_present(
    claim: PortClaim,
    given: &BTreeMap<PortName, Result<u16, PortProblem>>,
) -> PortClaim {
    let present = given.get(&claim.name).cloned();
    PortClaim {
        present: present.and_then(Result::ok),
        ..claim
    }
}

#[test]
fn of_two_exports_with_one_port_the_first_keeps_it() {
    let given = ports(20_000, 20_010).allocate(
        &[claim("web", Some(20_003)), claim("api", Some(20_003))],
        at(0),
    );
    assert_eq!(given[&name("api", Protocol::Tcp)], Ok(20_003));
    assert_ne!(given[&name("web", Protocol::Tcp)], Ok(20_003));
}

#[test]
fn a_freed_port_waits_for_others_and_not_for_its_own_export() {
    let mut one = ports(20_000, 20_000);
    let taken = |given: &BTreeMap<PortName, Result<u16, PortProblem>>, service: &str| {
        given[&name(service, Protocol::Tcp)].is_ok()
    };
    assert!(taken(&one.allocate(&[claim("api", None)], at(0)), "api"));
    one.allocate(&[], at(1));
    assert!(!taken(&one.allocate(&[claim("web", None)], at(2)), "web"));
    assert!(taken(&one.allocate(&[claim("api", None)], at(3)), "api"));
    one.allocate(&[], at(4));
    let later = at(4 + HELD.as_secs());
    assert!(taken(&one.allocate(&[claim("web", None)], later), "web"));
}

#[test]
fn a_port_freed_by_a_clock_that_was_ahead_is_held_no_longer_than_others() {
    let mut one = ports(20_000, 20_000);
    one.allocate(&[claim("api", None)], at(86_400));
    one.allocate(&[], at(86_400));
    let mut is_given = |now| {
        let given = one.allocate(&[claim("web", None)], at(now));
        given[&name("web", Protocol::Tcp)].is_ok()
    };
    assert!(!is_given(0));
    assert!(!is_given(HELD.as_secs() - 1));
    assert!(is_given(HELD.as_secs()));
}

#[test]
fn an_export_that_returns_has_the_port_that_it_had() {
    let mut many = ports(20_000, 20_010);
    let hashed = many.allocate(&[claim("web", None)], at(0));
    let other = match hashed[&name("web", Protocol::Tcp)] {
        Ok(20_000) => 20_001,
        _ => 20_000,
    };
    many.allocate(&[claim("web", Some(other))], at(1));
    many.allocate(&[], at(2));
    let given = many.allocate(&[claim("web", None)], at(3));
    // Both were its own within the last minutes: either may be.
    assert!(
        [Ok(other), hashed[&name("web", Protocol::Tcp)].clone()]
            .contains(&given[&name("web", Protocol::Tcp)])
    );
    let mut many = ports(20_000, 20_010);
    many.allocate(&[claim("web", Some(other))], at(0));
    many.allocate(&[], at(1));
    let given = many.allocate(&[claim("web", None)], at(2));
    assert_eq!(given[&name("web", Protocol::Tcp)], Ok(other));
    many.set_range(Some(PortRange {
        first: 30_000,
        last: 30_010,
    }));
    many.allocate(&[], at(3));
    let moved = many.allocate(&[claim("web", None)], at(4));
    assert!(moved[&name("web", Protocol::Tcp)].clone().unwrap() >= 30_000);
}

#[test]
fn a_node_port_is_given_to_no_export_and_taken_from_none() {
    let hashed = |of_nodes: &[(Protocol, u16)], present| {
        let mut all = ports(20_000, 29_999);
        all.set_node_ports(of_nodes.iter().copied().collect());
        all.allocate(&[claim("web", present)], at(0))[&name("web", Protocol::Tcp)].clone()
    };
    let taken = [(Protocol::Tcp, FIRST), (Protocol::Tcp, FIRST + 1)];
    assert_eq!(hashed(&taken, None), Ok(FIRST + 2));
    assert_eq!(
        hashed(&[(Protocol::Udp, FIRST)], None),
        Ok(FIRST),
        "protocols share no numbers"
    );
    assert_eq!(hashed(&taken, Some(FIRST)), Ok(FIRST));

    let mut one = ports(20_000, 20_000);
    one.set_node_ports([(Protocol::Tcp, 20_000)].into());
    let given = one.allocate(&[claim("web", None)], at(0));
    assert!(given[&name("web", Protocol::Tcp)].is_err());
    one.set_node_ports(BTreeSet::new());
    let given = one.allocate(&[claim("web", None)], at(1));
    assert_eq!(given[&name("web", Protocol::Tcp)], Ok(20_000));
}

proptest! {
    /// No two exports share a port, what is kept stays, and a place is found if there is one.
    #[test]
    fn ports_are_apart_and_stay(
        rounds in proptest::collection::vec(proptest::collection::btree_set(0..12u8, 0..10), 1..8),
    ) {
        let mut allocator = ports(20_000, 20_007);
        let mut had = BTreeMap::new();
        for (round, names) in rounds.into_iter().enumerate() {
            let claims = names.iter().map(|number| {
                with_present(claim(&format!("s{number}"), None), &had)
            });
            let claims: Vec<_> = claims.collect();
            let moment = at(HELD.as_secs() * round as u64);
            let given = allocator.allocate(&claims, moment);
            prop_assert_eq!(given.len(), claims.len());
            let numbers: Vec<u16> = given.values().filter_map(|port| port.clone().ok()).collect();
            let apart: BTreeSet<_> = numbers.iter().collect();
            prop_assert_eq!(apart.len(), numbers.len());
            prop_assert!(numbers.iter().all(|port| (20_000..=20_007).contains(port)));
            for one in claims.iter().filter(|claim| claim.present.is_some()) {
                prop_assert_eq!(given[&one.name].clone().ok(), one.present);
            }
            // What the round before freed is held back.
            prop_assert!(numbers.len() + had.len() >= claims.len().min(8));
            had = given;
        }
    }
}
