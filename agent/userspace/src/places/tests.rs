// SPDX-License-Identifier: Apache-2.0

use portolan_model::{Destination, Frontend, FrontendAddress, NodeTable, Record};
use portolan_plan::NodeFacts;

use super::*;

fn record(name: &str, port: u16, addresses: &[(FrontendKind, &str)]) -> Record {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "default".into(),
        service: name.into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    let frontend = |(kind, address): &(FrontendKind, &str)| {
        let address = FrontendAddress::Vip(address.parse().unwrap());
        Frontend::new(*kind, address, port)
    };
    Record {
        frontends: addresses.iter().map(frontend).collect(),
        destinations: vec![Destination::new("192.0.2.1:8080".parse().unwrap())],
        ..Record::new(key)
    }
}

fn ways(records: Vec<Record>) -> Ways {
    let mut table = NodeTable::default();
    for record in records {
        table.records.insert(record.key.clone(), Arc::new(record));
    }
    Ways::new(&table, &NodeFacts::default())
}

fn places(loopback: &mut Loopback, records: Vec<Record>) -> Vec<String> {
    let (places, _) = loopback.places(&ways(records));
    places.keys().map(ToString::to_string).collect()
}

#[test]
fn addresses_are_by_name_and_stay() {
    let web = || record("web", 80, &[(FrontendKind::ClusterIp, "10.96.0.1")]);
    let loopback = || Loopback {
        unprivileged: 1024,
        ..Loopback::default()
    };
    let mut first = loopback();
    let alone = places(&mut first, vec![web()]);
    // Where it is does not depend on others, nor on the machine: this is the hash of "/default/web".
    assert_eq!(alone, ["TCP 127.125.1.8:10080"]);
    let with_others = places(
        &mut loopback(),
        vec![
            record("api", 8080, &[(FrontendKind::ClusterIp, "10.96.0.2")]),
            web(),
        ],
    );
    assert!(with_others.contains(&alone[0]), "{with_others:?}");
}

#[test]
fn a_port_that_moves_to_one_of_the_same_service_moves_on() {
    let port = |name: &str, port| {
        let mut record = record("web", port, &[(FrontendKind::ClusterIp, "10.96.0.1")]);
        record.key.port = name.into();
        record
    };
    // The order of their names does not matter.
    for [own, moved] in [["a", "b"], ["b", "a"]] {
        let mut loopback = Loopback::new(1024);
        let ways = ways(vec![port(own, 10080), port(moved, 80)]);
        let (places, listed) = loopback.places(&ways);
        let found: Vec<_> = places
            .iter()
            .map(|(listen, key)| (listen.at.port(), key.port))
            .collect();
        assert_eq!(found, [(10080, 10080), (10081, 80)]);
        let mut names: Vec<_> = listed.iter().map(|item| &*item.record.port).collect();
        assert!(names.is_sorted(), "{names:?}");
        names.sort_unstable_by_key(|name| *name != own);
        assert_eq!(names, [own, moved]);
    }
}

#[test]
fn of_two_services_with_one_hash_the_older_one_stays() {
    let mut loopback = Loopback::default();
    let name = |name: &str| -> ServiceName { ("".into(), "default".into(), name.into()) };
    let web = loopback.address(name("web"));
    loopback.addresses.clear();
    loopback.addresses.insert(name("older"), web);
    let next = loopback.address(name("web"));
    assert_ne!(next, web);
    assert_eq!(loopback.address(name("older")), web);
}

#[test]
fn the_cluster_ip_counts_and_ipv6_has_ports_of_its_own() {
    let mut loopback = Loopback::default();
    let web = record(
        "web",
        8080,
        &[
            (FrontendKind::LoadBalancer, "192.0.2.9"),
            (FrontendKind::ClusterIp, "10.96.0.1"),
            (FrontendKind::ClusterIp, "fd00::1"),
        ],
    );
    let (places, _) = loopback.places(&ways(vec![web]));
    let found: Vec<_> = places
        .iter()
        .map(|(listen, key)| (listen.at.ip().is_ipv4(), key.address.to_string()))
        .collect();
    let expected = [
        (true, "10.96.0.1".to_owned()),
        (false, "fd00::1".to_owned()),
    ];
    assert_eq!(found, expected);
    assert!(
        places
            .keys()
            .any(|listen| PORTS.contains(&listen.at.port()))
    );
}

#[test]
fn inside_every_way_has_its_own_address() {
    let web = record(
        "web",
        80,
        &[
            (FrontendKind::LoadBalancer, "192.0.2.9"),
            (FrontendKind::ClusterIp, "10.96.0.1"),
        ],
    );
    let places: Vec<_> = own(&ways(vec![web]))
        .into_keys()
        .map(|l| l.to_string())
        .collect();
    assert_eq!(places, ["TCP 10.96.0.1:80", "TCP 192.0.2.9:80"]);
}
