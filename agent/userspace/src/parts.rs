// SPDX-License-Identifier: Apache-2.0

//! Parts of a table that this dataplane uses. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use portolan_model::{FrontendAddress, NodeTable, RecordKey};
use portolan_nftables::{List, Ways};
use portolan_plan::NodeFacts;

/// The node as its own clients see it: all addresses that a table names are here, and node ports are those of the
/// loopback device.
pub(crate) fn facts(table: &NodeTable) -> NodeFacts {
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let frontends = table.records.values().flat_map(|record| &record.frontends);
    let named = frontends.filter_map(|frontend| match frontend.address {
        FrontendAddress::Vip(address) => Some(address),
        _ => None,
    });
    NodeFacts {
        addresses: named.chain(loopback).collect(),
        node_port_addresses: loopback.into(),
        ..NodeFacts::default()
    }
}

/// The endpoints of all ways of each record.
pub(crate) fn endpoints(ways: &Ways) -> BTreeMap<RecordKey, BTreeSet<SocketAddr>> {
    let mut endpoints: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for way in ways.ways.values() {
        if let List::To(list) = &way.inside {
            let of_record = endpoints.entry(way.record.key.clone()).or_default();
            of_record.extend(list.iter().map(|destination| destination.address));
        }
    }
    endpoints
}
