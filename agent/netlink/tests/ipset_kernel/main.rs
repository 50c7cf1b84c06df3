// SPDX-License-Identifier: Apache-2.0

//! ipset on a real kernel: needs root, each test has a network namespace of its own.

#[path = "../common/mod.rs"]
mod common;
mod contents;
mod failures;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use portolan_model::ipset::{SetEntry, SetHeader, SetKind};
use portolan_model::{Family, Protocol};
use portolan_netlink::ipset::{Ipset, Request};

pub(crate) const LANES: &[&str] = &["netns", "uml", "debian"];
pub(crate) const KINDS: [SetKind; 6] = [
    SetKind::HashIp,
    SetKind::HashIpPort,
    SetKind::HashIpPortMark,
    SetKind::HashIpPortIp,
    SetKind::HashIpPortNet,
    SetKind::BitmapPort,
];

pub(crate) fn header(kind: SetKind, family: Family) -> SetHeader {
    SetHeader {
        kind,
        family,
        max_entries: 65_536,
    }
}

pub(crate) fn create(name: &str, header: &SetHeader) -> Request {
    let (name, header) = (name.to_owned(), header.clone());
    Request::Create {
        name,
        header,
        expected_entries: 5000,
        exclusive: true,
    }
}

pub(crate) fn add(name: &str, entries: Vec<SetEntry>) -> Request {
    Request::Add {
        name: name.to_owned(),
        entries: Arc::new(entries),
    }
}

pub(crate) fn del(name: &str, entries: Vec<SetEntry>) -> Request {
    Request::Del {
        name: name.to_owned(),
        entries: Arc::new(entries),
    }
}

pub(crate) fn ip(family: Family, number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    match family {
        Family::V4 => Ipv4Addr::new(10, 1, high, low).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, number).into(),
    }
}

/// The entry of a number, different for each.
pub(crate) fn entry(kind: SetKind, family: Family, number: u16) -> SetEntry {
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let protocol = protocols[usize::from(number) % protocols.len()];
    let (one, two) = (ip(family, number), ip(family, number.wrapping_mul(3)));
    match kind {
        SetKind::HashIp => SetEntry::Ip(one),
        SetKind::HashIpPort => SetEntry::IpPort(one, protocol, number),
        SetKind::HashIpPortMark => {
            SetEntry::IpPortMark(one, protocol, number, u32::from(number) << 16 | 1)
        }
        SetKind::HashIpPortIp => SetEntry::IpPortIp(one, protocol, number, two),
        SetKind::HashIpPortNet => {
            let prefix = if number.is_multiple_of(2) { 1 } else { 24 };
            let net = ipnet::IpNet::new(two, prefix)
                .expect("prefix lengths of both families")
                .trunc();
            SetEntry::IpPortNet(one, protocol, number, net)
        }
        SetKind::BitmapPort => SetEntry::Port(number),
    }
}

pub(crate) fn entries(kind: SetKind, family: Family, count: u16) -> Vec<SetEntry> {
    (1..=count)
        .map(|number| entry(kind, family, number))
        .collect()
}

pub(crate) fn apply(ipset: &mut Ipset, requests: &[Request]) {
    assert_eq!(ipset.apply(requests), Ok(Vec::new()));
}

pub(crate) fn listed(ipset: &mut Ipset, name: &str) -> BTreeSet<SetEntry> {
    ipset
        .list()
        .expect("a listing")
        .sets
        .remove(name)
        .expect("the set")
        .entries
}
