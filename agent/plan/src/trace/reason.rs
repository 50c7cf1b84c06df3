// SPDX-License-Identifier: Apache-2.0

//! Reason why a node's table has a destination, in words.

use std::net::SocketAddr;

use portolan_model::trace::Packet;
use portolan_model::{Family, Frontend, FrontendAddress, Lists, NodeTable, Record, Standing};

use crate::NodeFacts;

/// The record and the frontend of a table that have the destination of a packet on a node.
#[must_use]
pub fn record_of<'a>(
    table: &'a NodeTable,
    facts: &NodeFacts,
    packet: &Packet,
) -> Option<(&'a Record, &'a Frontend)> {
    let (ip, port) = (packet.destination.ip(), packet.destination.port());
    let family = Family::of(ip);
    let has = |frontend: &&Frontend| {
        let is_address = match frontend.address {
            FrontendAddress::Vip(vip) => vip == ip,
            FrontendAddress::NodeAddresses(of) => {
                of == family && facts.node_port_addresses.contains(&ip)
            }
            FrontendAddress::Mark { .. } => false,
        };
        let is_any = frontend.port == 0 && frontend.ranges.is_empty();
        is_address && (is_any || frontend.ports().any(|own| own == port))
    };
    let records = table.records.values();
    let mut of_protocol = records.filter(|record| record.key.protocol == packet.protocol);
    of_protocol.find_map(|record| Some((&**record, record.frontends.iter().find(has)?)))
}

/// A record and its frontend, in words.
#[must_use]
pub fn record_in_words(record: &Record, frontend: &Frontend) -> String {
    let list = match frontend.lists {
        Lists::Cluster => "destinations of the whole cluster",
        Lists::Local if frontend.has_short_circuit() => {
            "destinations of this node, for its pods and itself those of the whole cluster"
        }
        Lists::Local => "destinations of this node",
    };
    format!("{} ({:?}, {list})", record.key, frontend.kind)
}

/// Reason why a record has a destination on a node; why not, if it has none of that address.
#[must_use]
pub fn reason(table: &NodeTable, record: &Record, address: SocketAddr) -> String {
    let own = table.lists.get(&record.key);
    let has = |list: &[portolan_model::Destination]| list.iter().any(|d| d.address == address);
    let mut reasons = Vec::new();
    if record.balancing.is_some() {
        let health = table.health.get(&record.key);
        reasons.push(
            match health.and_then(|health| health.backends.get(&address)) {
                Some(Standing::Weight(weight)) => {
                    format!("a backend; its health gives it the weight {weight}")
                }
                Some(Standing::Disabled | Standing::Failed) => {
                    "a backend that its health takes out".to_owned()
                }
                None if has(&record.destinations) => "a backend that was not judged yet".to_owned(),
                None => "not in the table".to_owned(),
            },
        );
        return reasons.join("; ");
    }
    let family = Family::of(address.ip());
    let overrides = own.is_some_and(|own| {
        let mut cluster = own.cluster.iter();
        cluster.any(|d| Family::of(d.address.ip()) == family)
    });
    if own.is_some_and(|own| has(&own.cluster)) {
        reasons.push("hinted for this node".to_owned());
    } else if !overrides && has(&table.list(record, family, Lists::Cluster)) {
        reasons.push(match (&record.zone_mask, &table.node.zone) {
            (Some(mask), Some(zone)) if mask.bit(zone).is_some() => {
                format!("in the cluster-wide list, for zone {zone}")
            }
            _ => "in the cluster-wide list".to_owned(),
        });
    }
    if own.is_some_and(|own| has(&own.local)) {
        reasons.push("serves on this node".to_owned());
    } else if own.is_some_and(|own| own.own.contains(&address)) {
        reasons.push("on this node".to_owned());
    }
    if reasons.is_empty() {
        reasons.push("not in the table".to_owned());
    }
    reasons.join("; ")
}
