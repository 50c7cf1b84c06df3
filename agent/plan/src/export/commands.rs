// SPDX-License-Identifier: Apache-2.0

//! Commands of `ipset`, `ip` and `iptables-restore`.

use std::net::IpAddr;

use portolan_model::Family;
use portolan_model::ipset::{SetEntry, SetHeader};

/// Adds an entry to a set.
pub(super) fn add_entry(name: &str, entry: &SetEntry) -> String {
    format!("ipset add {name} {entry}")
}

/// Creates a set.
pub(super) fn create_set(name: &str, header: &SetHeader) -> String {
    let family = match header.family {
        Family::V4 => "inet",
        Family::V6 => "inet6",
    };
    let (kind, max) = (header.kind.type_name(), header.max_entries);
    format!("ipset create {name} {kind} family {family} maxelem {max}")
}

/// Adds, replaces or deletes the route of a VIP.
pub(super) fn route(verb: &str, vip: IpAddr, source: Option<IpAddr>) -> String {
    let source = source.map_or_else(String::new, |source| format!(" src {source}"));
    format!("ip route {verb} local {vip} dev lo proto 99{source}")
}

/// The program that writes the rules of a family.
pub(super) fn restore_program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables-restore",
        Family::V6 => "ip6tables-restore",
    }
}
