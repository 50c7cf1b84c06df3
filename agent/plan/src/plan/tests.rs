// SPDX-License-Identifier: Apache-2.0

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::ipset::{Set, SetEntry, SetHeader, SetKind};
use portolan_model::ipvs::{
    RealServerConfig, VirtualServer, VirtualServerConfig, VirtualServerKey,
};
use portolan_model::{
    Destination, Family, Frontend, FrontendAddress, FrontendKind, Lists, NodeOverlay, NodeTable,
    Protocol, Record, RecordKey,
};

use super::*;
use crate::{NodeFacts, desire, ownership_entry};

mod order;
mod policies;

fn server(weights: &[(&str, u32)]) -> VirtualServer {
    let real = |(address, weight): &(&str, u32)| {
        let config = RealServerConfig::masquerade(*weight);
        (address.parse().unwrap(), config)
    };
    VirtualServer {
        config: VirtualServerConfig::round_robin().into(),
        real_servers: Arc::new(weights.iter().map(real).collect()),
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
fn dependencies_are_added_first_and_removed_last() {
    let full = state(Protocol::Tcp, &[("10.0.0.1:80", 1)], true);
    assert_eq!(
        steps(&full, &KernelState::default()),
        [
            "create set KUBE-PORTOLAN-OWNED (hash:ip,port)",
            "add 1 entries to set KUBE-PORTOLAN-OWNED",
            "add virtual server TCP 10.96.0.1:80",
            "add real servers 10.0.0.1:80 to TCP 10.96.0.1:80",
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
fn our_objects_of_an_unserved_family_stay() {
    let mut full = state(Protocol::Tcp, &[("10.0.0.1:80", 1)], true);
    full.routes.insert(address(), None);
    let of_v6 = Config {
        families: [Family::V6].into(),
        ..Config::default()
    };
    let nothing = Desired::default();
    assert_eq!(shown(&plan(&nothing, &full, &of_v6)), [""; 0]);
    let goes = [
        "delete virtual server TCP 10.96.0.1:80",
        "delete local route 10.96.0.1",
    ];
    assert_eq!(shown(&plan(&nothing, &full, &Config::default())), goes);
}

#[test]
fn tcp_real_server_drains_and_udp_one_is_deleted() {
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
    // A returning one, also after an earlier run left it at weight 0.
    assert_eq!(
        steps(&state(Protocol::Tcp, both, true), &draining),
        ["set real server 10.0.0.2:80 of TCP 10.96.0.1:80"]
    );
}

#[test]
fn foreign_virtual_server_is_not_deleted() {
    let foreign = state(Protocol::Tcp, &[("10.0.0.1:80", 1)], false);
    assert!(steps(&empty(&foreign), &foreign).is_empty());
}

#[test]
fn changes_are_made_in_place() {
    let before = state(Protocol::Tcp, &[("10.0.0.1:80", 1)], true);
    let mut after = state(Protocol::Tcp, &[("10.0.0.1:80", 5)], true);
    after
        .virtual_servers
        .values_mut()
        .for_each(|s| Arc::make_mut(&mut s.config).persistence = Some(10));
    assert_eq!(
        steps(&after, &before),
        [
            "set virtual server TCP 10.96.0.1:80",
            "set real server 10.0.0.1:80 of TCP 10.96.0.1:80"
        ]
    );
}

#[test]
fn additions_precede_removals() {
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
fn small_set_is_replaced_and_larger_one_stays() {
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
fn excluded_virtual_server_is_not_deleted() {
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

#[test]
fn excluded_virtual_server_stays_in_the_ownership_record() {
    let full = state(Protocol::Tcp, &[("10.0.0.1:80", 1)], true);
    let config = Config {
        exclude_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        ..Config::default()
    };
    let desired = Desired {
        state: empty(&full),
        ..Desired::default()
    };
    assert_eq!(shown(&plan(&desired, &full, &config)), [""; 0]);
    // Another program has deleted it.
    let mut deleted = full.clone();
    deleted.virtual_servers.clear();
    let goes = ["delete 1 entries from set KUBE-PORTOLAN-OWNED"];
    assert_eq!(shown(&plan(&desired, &deleted, &config)), goes);
}
