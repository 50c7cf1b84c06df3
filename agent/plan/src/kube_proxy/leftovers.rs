//! What a kube-proxy leaves that has no counterpart here.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portolan_model::Family;

use super::takeover_marker;
use crate::rules::{Jump, Rules, Table};
use crate::{Config, KernelState, Names};

/// The dummy device on which a kube-proxy in IPVS mode has all virtual addresses.
pub const VIP_DEVICE: &str = "kube-ipvs0";

/// The addresses of the device that can go: those that a local route of ours has taken the place
/// of, and those that nobody forwards any more. Of a virtual address that could not be bound yet,
/// and of one that has somebody else's virtual server, the device's is the only one.
#[must_use]
pub fn releasable(
    bound: &BTreeSet<IpAddr>,
    observed: &KernelState,
    desired: &KernelState,
) -> Vec<IpAddr> {
    let in_use: BTreeSet<IpAddr> = observed
        .virtual_servers
        .keys()
        .filter_map(|key| Some(key.socket()?.ip()))
        .chain(desired.routes.keys().copied())
        .collect();
    let can_go = |ip: &&IpAddr| observed.routes.contains_key(*ip) || !in_use.contains(*ip);
    bound.iter().filter(can_go).copied().collect()
}

/// The chain that only a kube-proxy has: what it does about source ranges for the node's own
/// connections, which have a virtual address as their source with it, and never with us.
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

/// The sets that only a kube-proxy has, and at last what says that a takeover has begun.
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
