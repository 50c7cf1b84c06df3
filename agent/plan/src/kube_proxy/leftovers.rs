// SPDX-License-Identifier: Apache-2.0

//! Objects of a kube-proxy without a counterpart of ours.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portolan_model::Family;

use super::takeover_marker;
use crate::rules::{Jump, Rules, Table};
use crate::{Config, KernelState, Names};

/// The dummy device on which a kube-proxy in IPVS mode has all virtual addresses.
pub const VIP_DEVICE: &str = "kube-ipvs0";

/// Addresses of the device that can be deleted: those with a local route of ours, the node's `own` on other
/// interfaces, which are never bound, and those without a virtual server. Addresses that could not be bound yet,
/// and those of foreign virtual servers, stay: nothing else makes their packets arrive.
#[must_use]
pub fn releasable(
    bound: &BTreeSet<IpAddr>,
    observed: &KernelState,
    desired: &KernelState,
    own: &BTreeSet<IpAddr>,
) -> Vec<IpAddr> {
    let in_use: BTreeSet<IpAddr> = observed
        .virtual_servers
        .keys()
        .filter_map(|key| Some(key.socket()?.ip()))
        .chain(desired.routes.keys().copied())
        .collect();
    let arrives = |ip: &IpAddr| observed.routes.contains_key(ip) || own.contains(ip);
    let can_go = |ip: &&IpAddr| arrives(ip) || !in_use.contains(*ip);
    bound.iter().filter(can_go).copied().collect()
}

/// The chain that only a kube-proxy has. It checks source ranges of the node's own connections, whose
/// source is a virtual address with a kube-proxy, and never with us.
#[must_use]
pub fn leftover_rules(config: &Config) -> Rules {
    let chain = config.names.chain("IPVS-OUT-FILTER");
    Rules {
        tables: vec![Table {
            name: "filter".into(),
            chains: vec![(chain.clone(), Vec::new())],
        }],
        jumps: vec![Jump {
            table: "filter".into(),
            chain: "OUTPUT".into(),
            target: chain,
        }],
        obsolete: Vec::new(),
        sets: BTreeSet::new(),
    }
}

/// The sets that only a kube-proxy has, followed by the marker of a takeover.
#[must_use]
pub fn leftover_sets(names: &Names) -> Vec<String> {
    let of = |family: Family| match family {
        Family::V4 => names.chain("LOAD-BALANCER-SOURCE-IP"),
        Family::V6 => names.chain("6-LOAD-BALANCER-SOURCE-IP"),
    };
    let mut sets: Vec<String> = Family::ALL.map(of).into();
    sets.push(takeover_marker(names));
    sets
}
