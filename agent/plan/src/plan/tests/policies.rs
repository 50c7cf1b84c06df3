// SPDX-License-Identifier: Apache-2.0

//! Steps from one traffic policy to another.

use super::*;

/// A record with one external address, and its table with these local destinations.
fn table(protocol: Protocol, lists: Lists, local: &[&str]) -> NodeTable {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: "svc".into(),
        port: "".into(),
        protocol,
    };
    let destinations = |list: &[&str]| {
        let parsed = list.iter().map(|a| Destination::new(a.parse().unwrap()));
        parsed.collect()
    };
    let vip = FrontendAddress::Vip(address());
    let record = Record {
        frontends: vec![Frontend {
            lists,
            ..Frontend::new(FrontendKind::ExternalIp, vip, 80)
        }],
        destinations: destinations(&["10.0.0.1:80", "10.0.0.2:80"]),
        available: [Family::V4].into_iter().collect(),
        ..Record::new(key.clone())
    };
    let lists = NodeOverlay {
        local: destinations(local),
        ..NodeOverlay::default()
    };
    NodeTable {
        records: [(key.clone(), Arc::new(record))].into_iter().collect(),
        lists: [(key, Arc::new(lists))].into_iter().collect(),
        ..NodeTable::default()
    }
}

/// The steps from one table to another, without those that prepare the node.
fn steps_between(before: &NodeTable, after: &NodeTable) -> Vec<String> {
    let config = Config {
        families: [Family::V4].into(),
        ..Config::default()
    };
    let to = |table: &NodeTable, state: &KernelState| {
        let desired = desire(table, &NodeFacts::default(), &config, state);
        let steps = plan(&desired, state, &config);
        let mut state = state.clone();
        steps.iter().for_each(|step| state.advance(step));
        assert_eq!(plan(&desired, &state, &config), []);
        (state, steps)
    };
    let (state, _) = to(&NodeTable::default(), &KernelState::default());
    let (state, _) = to(before, &state);
    let (_, steps) = to(after, &state);
    let marked = state.virtual_servers.keys().find_map(|key| key.mark());
    let mark = steps.iter().find_map(|step| step.virtual_server()?.mark());
    let mark = mark.or(marked).map(|mark| format!("FWM {mark} IPv4"));
    let steps = shown(&steps).into_iter();
    steps
        .map(|step| match &mark {
            Some(mark) => step.replace(mark, "MARK"),
            None => step,
        })
        .collect()
}

#[test]
fn short_circuit_is_complete_while_it_is_used() {
    let none = NodeTable::default();
    let local = table(Protocol::Tcp, Lists::Local, &["10.0.0.1:80"]);
    let vip = "TCP 10.96.0.1:80";
    assert_eq!(
        steps_between(&none, &local),
        [
            "add 1 entries to set KUBE-EXTERNAL-IP-LOCAL".to_owned(),
            "add 1 entries to set KUBE-IPVS-IPS".to_owned(),
            "add 2 entries to set KUBE-PORTOLAN-OWNED".to_owned(),
            "add local route 10.96.0.1".to_owned(),
            "add virtual server MARK".to_owned(),
            "add real servers 10.0.0.1:80, 10.0.0.2:80 to MARK".to_owned(),
            "add 1 entries to set KUBE-SHORT-CIRCUIT".to_owned(),
            format!("add virtual server {vip}"),
            format!("add real servers 10.0.0.1:80 to {vip}"),
        ]
    );
    assert_eq!(
        steps_between(&local, &none),
        [
            format!("delete virtual server {vip}"),
            "delete 1 entries from set KUBE-SHORT-CIRCUIT".to_owned(),
            "delete virtual server MARK".to_owned(),
            "delete local route 10.96.0.1".to_owned(),
            "delete 2 entries from set KUBE-PORTOLAN-OWNED".to_owned(),
            "delete 1 entries from set KUBE-IPVS-IPS".to_owned(),
            "delete 1 entries from set KUBE-EXTERNAL-IP-LOCAL".to_owned(),
        ]
    );
}

#[test]
fn outside_packets_are_dropped_before_the_last_local_destination_goes() {
    let one = |protocol| table(protocol, Lists::Local, &["10.0.0.1:80"]);
    let gone = |protocol| table(protocol, Lists::Local, &[]);
    for (protocol, removal) in [
        (
            Protocol::Tcp,
            "set real server 10.0.0.1:80 of TCP 10.96.0.1:80",
        ),
        (
            Protocol::Udp,
            "delete real server 10.0.0.1:80 of UDP 10.96.0.1:80",
        ),
    ] {
        assert_eq!(
            steps_between(&one(protocol), &gone(protocol)),
            ["add 1 entries to set KUBE-NO-LOCAL", removal]
        );
    }
    assert_eq!(
        steps_between(&gone(Protocol::Udp), &one(Protocol::Udp)),
        [
            "add real server 10.0.0.1:80 to UDP 10.96.0.1:80",
            "delete 1 entries from set KUBE-NO-LOCAL"
        ]
    );
}

#[test]
fn pods_are_served_at_every_moment_of_a_change_of_policy() {
    let cluster = table(Protocol::Udp, Lists::Cluster, &[]);
    let local = table(Protocol::Udp, Lists::Local, &[]);
    let index = |steps: &[String], what: &str| {
        let found = steps.iter().position(|step| step.contains(what));
        found.unwrap_or_else(|| panic!("no {what} in {steps:?}"))
    };
    let steps = steps_between(&cluster, &local);
    let short = index(&steps, "add 1 entries to set KUBE-SHORT-CIRCUIT");
    let drop = index(&steps, "add 1 entries to set KUBE-NO-LOCAL");
    assert!(index(&steps, "to MARK") < short && short < drop);
    assert!(drop < index(&steps, "delete real server"));

    let steps = steps_between(&local, &cluster);
    let accept = index(&steps, "delete 1 entries from set KUBE-NO-LOCAL");
    let long = index(&steps, "delete 1 entries from set KUBE-SHORT-CIRCUIT");
    assert!(index(&steps, "add real server") < accept && accept < long);
    assert!(long < index(&steps, "delete virtual server MARK"));
}

#[test]
fn changed_mark_is_replaced_in_place() {
    let set = |mark| {
        let entry = SetEntry::IpPortMark(address(), Protocol::Tcp, 80, mark);
        let header = SetHeader {
            kind: SetKind::HashIpPortMark,
            family: Family::V4,
            max_entries: 65_536,
        };
        let entries = BTreeSet::from([entry]);
        KernelState {
            sets: BTreeMap::from([("KUBE-SHORT-CIRCUIT".to_owned(), Set { header, entries })]),
            ..KernelState::default()
        }
    };
    let steps = steps(&set(2), &set(1));
    assert_eq!(steps, ["add 1 entries to set KUBE-SHORT-CIRCUIT"]);
}

#[test]
fn real_servers_by_mark_drain_by_the_protocol_of_their_record() {
    let before = |protocol| table(protocol, Lists::Local, &["10.0.0.1:80"]);
    let after = |protocol| {
        let mut table = before(protocol);
        for key in before(protocol).records.keys() {
            Arc::make_mut(&mut table.records[key])
                .destinations
                .truncate(1);
        }
        table
    };
    let steps = |protocol| steps_between(&before(protocol), &after(protocol));
    assert_eq!(
        steps(Protocol::Tcp),
        ["set real server 10.0.0.2:80 of MARK"]
    );
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        assert_eq!(steps(protocol), ["delete real server 10.0.0.2:80 of MARK"]);
    }
}
