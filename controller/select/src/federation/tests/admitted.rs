// SPDX-License-Identifier: Apache-2.0

//! The quick look at the endpoints of an export, which spares the look at those of each port.

use std::ops::RangeInclusive;

use portolan_catalog::{Catalog, DirtySet, Reason};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// Ports of exports.
const HTTP: &[&str] = &["http"];
const BOTH: &[&str] = &["http", "admin"];
const NO_PORTS: &[&str] = &[];

/// Families of exports.
const V4: &[Family] = &[Family::V4];
const V6: &[Family] = &[Family::V6];
const DUAL: &[Family] = &[Family::V4, Family::V6];

/// Ports of slices. The last ones have one name, which an API server refuses and a file may have.
const PORTS: [&[(&str, u16)]; 5] = [
    &[("http", 8080)],
    &[("admin", 9090)],
    &[],
    &[("http", 8080), ("admin", 9090)],
    &[("http", 8080), ("http", 8081)],
];

/// Networks of `a` and `b`: `b` reaches the pods of `a`, or its gateways.
const FLAT: [&str; 2] = [""; 2];
const BEHIND: [&str; 2] = [
    "mode: Gateway, nodeCIDRs: [192.168.1.0/24], gateway: {ports: 20000-20003}",
    "nodeCIDRs: [192.168.2.0/24]",
];

/// Address number N of a family in the networks of `a`, or in no cluster's.
fn address(family: Family, is_own: bool, number: u8) -> IpAddr {
    match family {
        Family::V4 => pod(if is_own { "a" } else { "nobody" }, number),
        Family::V6 => {
            let network = if is_own { 1 } else { 9 };
            IpAddr::from([0xfd00, network, 0, 0, 0, 0, 0, u16::from(number)])
        }
    }
}

/// A slice of `s0` with these ports.
fn slice_with(ports: &[(&str, u16)], addresses: &[IpAddr]) -> EndpointSlice {
    let family = addresses.first().copied().map_or(Family::V4, Family::of);
    let ports = ports.iter().map(|(name, port)| SlicePort {
        name: (*name).into(),
        protocol: Protocol::Tcp,
        port: *port,
    });
    let endpoints = addresses.iter().copied().map(Endpoint::new);
    EndpointSlice {
        family,
        ports: ports.collect(),
        ..slice_of("a", "s0", endpoints.collect())
    }
}

fn slice_in(ports: &[(&str, u16)], family: Family, numbers: RangeInclusive<u8>) -> EndpointSlice {
    let addresses = numbers.map(|number| address(family, true, number));
    slice_with(ports, &addresses.collect::<Vec<_>>())
}

fn http(family: Family, numbers: RangeInclusive<u8>) -> EndpointSlice {
    slice_in(PORTS[0], family, numbers)
}

fn facts_with(names: &[&str], families: &[Family]) -> ServiceFacts {
    let ports = (80..).zip(names).map(|(port, name)| ExportPort {
        name: (*name).into(),
        protocol: Protocol::Tcp,
        port,
        app_protocol: None,
    });
    ServiceFacts {
        ports: ports.collect(),
        families: families.into(),
        ..facts()
    }
}

/// Returns the answer of the quick look at `s0` of `a`, and the reasons of the problems that the other look finds.
fn looks(
    most: u32,
    [of_a, of_b]: [&str; 2],
    facts: ServiceFacts,
    slices: Vec<EndpointSlice>,
) -> (bool, Vec<Reason>) {
    let set = format!("{{quota: {{endpointsPerExport: {most}}}}}");
    let mut federation = Federation::default();
    federation.set_policies(policies_with(&set, [of_a, of_b, ""], &[]));
    federation.set_states(full());
    let (mut catalog, mut dirty) = (Catalog::default(), DirtySet::default());
    let namespaces = CLUSTERS.map(namespace);
    let own = [
        put(Object::Service(service("a", "s0"))),
        export("a", "s0", facts),
    ];
    let slices = (1_u8..).zip(slices).map(|(number, mut slice)| {
        slice.key.name = format!("s0-{number}").into();
        put(Object::EndpointSlice(slice))
    });
    for change in namespaces.into_iter().chain(own).chain(slices) {
        catalog.apply(change, &mut dirty);
    }
    federation.refresh(&mut catalog, &mut dirty);
    let key = key("a", "s0");
    let found = federation.of_endpoints(&catalog, &key).into_iter();
    let reasons = found.map(|problem| problem.reason).collect();
    (federation.admits_all(&catalog, &key), reasons)
}

/// The same with at most three endpoints of an export.
fn of_three(
    names: &[&str],
    families: &[Family],
    slices: Vec<EndpointSlice>,
) -> (bool, Vec<Reason>) {
    looks(3, FLAT, facts_with(names, families), slices)
}

#[test]
fn an_export_with_more_endpoints_than_its_quota_is_looked_at() {
    let four = |numbers| http(Family::V4, numbers);
    let six = |numbers| http(Family::V6, numbers);
    let too_many = || (false, vec![Reason::TooMany]);
    assert_eq!(of_three(HTTP, V4, vec![]), (true, vec![]));
    assert_eq!(of_three(HTTP, V4, vec![four(1..=3)]), (true, vec![]));
    assert_eq!(of_three(HTTP, V4, vec![four(1..=4)]), too_many());
    let two = vec![four(1..=2), four(3..=4)];
    assert_eq!(of_three(HTTP, V4, two), too_many());
    let copies = vec![four(1..=3), four(1..=3)];
    assert_eq!(of_three(HTTP, V4, copies), (false, vec![]));
    let families = vec![four(1..=3), six(1..=3)];
    assert_eq!(of_three(HTTP, DUAL, families), (false, vec![]));
    let families = vec![four(1..=1), six(1..=4)];
    assert_eq!(of_three(HTTP, DUAL, families), too_many());
}

#[test]
fn the_endpoints_of_all_ports_count() {
    let slice = |ports, numbers| vec![slice_in(ports, Family::V4, numbers)];
    let too_many = || (false, vec![Reason::TooMany]);
    let [_, admin, none, both, same] = PORTS;
    assert_eq!(of_three(HTTP, V4, slice(admin, 1..=3)), (true, vec![]));
    assert_eq!(of_three(HTTP, V4, slice(admin, 1..=4)), (false, vec![]));
    assert_eq!(of_three(NO_PORTS, V4, slice(none, 1..=3)), (true, vec![]));
    assert_eq!(of_three(NO_PORTS, V4, slice(none, 1..=4)), too_many());
    assert_eq!(of_three(BOTH, V4, slice(both, 1..=1)), (true, vec![]));
    assert_eq!(of_three(BOTH, V4, slice(both, 1..=3)), (false, vec![]));
    // Four endpoints, of two addresses.
    assert_eq!(of_three(HTTP, V4, slice(same, 1..=2)), too_many());
}

#[test]
fn an_export_with_addresses_of_others_or_with_gateways_is_looked_at() {
    let outside = |family| slice_with(PORTS[0], &[address(family, false, 1)]);
    let own = || http(Family::V4, 1..=1);
    let of_others = (false, vec![Reason::AddressOutsideNetwork]);
    let found = of_three(HTTP, V4, vec![own(), outside(Family::V4)]);
    assert_eq!(found, of_others);
    let not_exported = of_three(HTTP, V4, vec![own(), outside(Family::V6)]);
    assert_eq!(not_exported, (false, vec![]));
    let at_gateways = looks(3, BEHIND, facts_with(HTTP, V4), vec![own()]);
    // There is neither a Node nor a port.
    let reasons = vec![Reason::InvalidValue, Reason::TooMany];
    assert_eq!(at_gateways, (false, reasons));
}

fn some_slice() -> impl Strategy<Value = EndpointSlice> {
    let endpoints = vec((prop::bool::weighted(0.95), 1..5u8), 0..4);
    let parts = (any::<bool>(), select(&PORTS[..]), endpoints);
    parts.prop_map(|(is_v6, ports, endpoints)| {
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let addresses = endpoints.into_iter();
        let addresses = addresses.map(|(is_own, number)| address(family, is_own, number));
        slice_with(ports, &addresses.collect::<Vec<_>>())
    })
}

proptest! {
    #[test]
    fn an_export_that_the_quick_look_admits_has_no_problem(
        most in 0..6u32,
        networks in select(vec![FLAT, FLAT, BEHIND]),
        names in select(vec![HTTP, BOTH, NO_PORTS]),
        families in select(vec![V4, V6, DUAL]),
        slices in vec(some_slice(), 0..4),
    ) {
        let facts = facts_with(names, families);
        let (admits_all, reasons) = looks(most, networks, facts, slices);
        prop_assert!(!admits_all || reasons.is_empty(), "{reasons:?}");
    }
}
