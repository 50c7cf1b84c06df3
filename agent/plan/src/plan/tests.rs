use std::net::IpAddr;

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_model::ipset::{Set, SetEntry, SetHeader, SetKind};
use portolan_model::ipvs::{ForwardingMethod, RealServerConfig, VirtualServerConfig};
use portolan_model::{
    Destination, Family, Frontend, FrontendAddress, FrontendKind, Lists, NodeLists, NodeTable,
    Protocol, Record, RecordKey,
};

use super::*;
use crate::{NodeFacts, desire};

fn server(weights: &[(&str, u32)]) -> VirtualServer {
    let real = |(address, weight): &(&str, u32)| {
        let forwarding = ForwardingMethod::Masquerade;
        (
            address.parse().unwrap(),
            RealServerConfig {
                weight: *weight,
                forwarding,
            },
        )
    };
    VirtualServer {
        config: VirtualServerConfig::round_robin(),
        real_servers: weights.iter().map(real).collect(),
    }
}

fn address() -> IpAddr {
    "10.96.0.1".parse().unwrap()
}

fn key(protocol: Protocol) -> VirtualServerKey {
    VirtualServerKey::new(protocol, address(), 80)
}

/// A state with one virtual server, owned or not.
fn state(protocol: Protocol, weights: &[(&str, u32)], owned: bool) -> KernelState {
    let key = key(protocol);
    let entry = ownership_entry(&key);
    let set = Set {
        header: SetHeader {
            kind: SetKind::HashIpPort,
            family: Family::V4,
            max_entries: 65_536,
        },
        entries: if owned {
            BTreeSet::from([entry])
        } else {
            BTreeSet::new()
        },
    };
    KernelState {
        sets: BTreeMap::from([("KUBE-PORTOLAN-OWNED".to_owned(), set)]),
        virtual_servers: BTreeMap::from([(key, server(weights))]),
        ..KernelState::default()
    }
}

fn steps(desired: &KernelState, observed: &KernelState) -> Vec<String> {
    let desired = Desired {
        state: desired.clone(),
        ..Desired::default()
    };
    shown(&plan(&desired, observed, &Config::default()))
}

fn shown(steps: &[Step]) -> Vec<String> {
    steps.iter().map(ToString::to_string).collect()
}

fn empty(of: &KernelState) -> KernelState {
    let mut empty = of.clone();
    empty.sets.values_mut().for_each(|set| set.entries.clear());
    empty.virtual_servers.clear();
    empty
}

#[test]
fn what_packets_meet_first_is_added_first_and_removed_last() {
    let full = state(Protocol::Tcp, &[("10.0.0.1:80", 1)], true);
    assert_eq!(
        steps(&full, &KernelState::default()),
        [
            "create set KUBE-PORTOLAN-OWNED (hash:ip,port)",
            "add 1 entries to set KUBE-PORTOLAN-OWNED",
            "add virtual server TCP 10.96.0.1:80",
            "add real server 10.0.0.1:80 to TCP 10.96.0.1:80",
        ]
    );
    assert_eq!(
        steps(&empty(&full), &full),
        [
            "delete virtual server TCP 10.96.0.1:80",
            "delete 1 entries from set KUBE-PORTOLAN-OWNED",
        ]
    );
}

#[test]
fn a_tcp_real_server_drains_and_a_udp_one_goes() {
    let both: &[(&str, u32)] = &[("10.0.0.1:80", 1), ("10.0.0.2:80", 1)];
    let one: &[(&str, u32)] = &[("10.0.0.1:80", 1)];
    let drain = |protocol| steps(&state(protocol, one, true), &state(protocol, both, true));
    assert_eq!(
        drain(Protocol::Tcp),
        ["set real server 10.0.0.2:80 of TCP 10.96.0.1:80"]
    );
    assert_eq!(
        drain(Protocol::Udp),
        ["delete real server 10.0.0.2:80 of UDP 10.96.0.1:80"]
    );

    let draining = state(
        Protocol::Tcp,
        &[("10.0.0.1:80", 1), ("10.0.0.2:80", 0)],
        true,
    );
    assert!(
        steps(&state(Protocol::Tcp, one, true), &draining).is_empty(),
        "drains on"
    );
    // It comes back: also one that an earlier run left at weight 0.
    assert_eq!(
        steps(&state(Protocol::Tcp, both, true), &draining),
        ["set real server 10.0.0.2:80 of TCP 10.96.0.1:80"]
    );
}

#[test]
fn a_foreign_virtual_server_is_not_deleted() {
    let foreign = state(Protocol::Tcp, &[("10.0.0.1:80", 1)], false);
    assert!(steps(&empty(&foreign), &foreign).is_empty());
}

#[test]
fn a_change_is_made_in_place() {
    let before = state(Protocol::Tcp, &[("10.0.0.1:80", 1)], true);
    let mut after = state(Protocol::Tcp, &[("10.0.0.1:80", 5)], true);
    after
        .virtual_servers
        .values_mut()
        .for_each(|s| s.config.persistence = Some(10));
    assert_eq!(
        steps(&after, &before),
        [
            "set virtual server TCP 10.96.0.1:80",
            "set real server 10.0.0.1:80 of TCP 10.96.0.1:80"
        ]
    );
}

#[test]
fn new_comes_before_old() {
    let before = state(Protocol::Udp, &[("10.0.0.1:80", 1)], true);
    let after = state(Protocol::Udp, &[("10.0.0.2:80", 1)], true);
    assert_eq!(
        steps(&after, &before),
        [
            "add real server 10.0.0.2:80 to UDP 10.96.0.1:80",
            "delete real server 10.0.0.1:80 of UDP 10.96.0.1:80",
        ]
    );
}

#[test]
fn a_set_that_is_too_small_is_replaced_and_one_that_is_larger_stays() {
    let want = state(Protocol::Tcp, &[], true);
    let mut have = want.clone();
    let header = |state: &mut KernelState, max| {
        state
            .sets
            .values_mut()
            .for_each(|set| set.header.max_entries = max);
    };
    header(&mut have, 1_000_000);
    assert!(steps(&want, &have).is_empty());
    header(&mut have, 1024);
    assert_eq!(
        steps(&want, &have),
        ["replace set KUBE-PORTOLAN-OWNED (1 entries)"]
    );
}

#[test]
fn an_excluded_virtual_server_is_not_deleted() {
    let full = state(Protocol::Tcp, &[("10.0.0.1:80", 1)], true);
    let plan_without = |cidr: &str| {
        let config = Config {
            exclude_cidrs: vec![cidr.parse().unwrap()],
            ..Config::default()
        };
        let desired = Desired {
            state: empty(&full),
            ..Desired::default()
        };
        shown(&plan(&desired, &full, &config))
    };
    let gone = "delete virtual server TCP 10.96.0.1:80".to_owned();
    assert!(!plan_without("10.96.0.0/16").contains(&gone));
    assert!(plan_without("10.97.0.0/16").contains(&gone));
}

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
    let lists = NodeLists {
        local: destinations(local),
        ..NodeLists::default()
    };
    NodeTable {
        records: BTreeMap::from([(key.clone(), Arc::new(record))]),
        lists: BTreeMap::from([(key, Arc::new(lists))]),
        ..NodeTable::default()
    }
}

/// The steps from one table to another, but for those that make the node ready for any.
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
fn a_short_circuit_is_complete_before_it_is_used_and_until_it_is_not() {
    let none = NodeTable::default();
    let local = table(Protocol::Tcp, Lists::Local, &["10.0.0.1:80"]);
    let vip = "TCP 10.96.0.1:80";
    assert_eq!(
        steps_between(&none, &local),
        [
            "add 1 entries to set KUBE-EXTERNAL-IP-LOCAL".to_owned(),
            "add 1 entries to set KUBE-IPVS-IPS".to_owned(),
            "add 2 entries to set KUBE-PORTOLAN-OWNED".to_owned(),
            "put local route 10.96.0.1".to_owned(),
            "add virtual server MARK".to_owned(),
            "add real server 10.0.0.1:80 to MARK".to_owned(),
            "add real server 10.0.0.2:80 to MARK".to_owned(),
            "add 1 entries to set KUBE-SHORT-CIRCUIT".to_owned(),
            format!("add virtual server {vip}"),
            format!("add real server 10.0.0.1:80 to {vip}"),
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
fn what_comes_from_outside_is_dropped_before_the_last_local_destination_goes() {
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
fn a_mark_that_changes_is_changed_in_place() {
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
fn real_servers_of_a_mark_drain_as_their_record_says() {
    let before = |protocol| table(protocol, Lists::Local, &["10.0.0.1:80"]);
    let after = |protocol| {
        let mut table = before(protocol);
        for record in table.records.values_mut() {
            Arc::make_mut(record).destinations.truncate(1);
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
