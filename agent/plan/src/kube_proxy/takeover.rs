// SPDX-License-Identifier: Apache-2.0

//! Takeover from a stopped kube-proxy.
//!
//! The virtual servers of one in IPVS mode become ours by entries in the ownership record, which changes nothing in the data
//! path. From then on they are treated like any others of ours: desired ones are edited in place, the
//! others are deleted after all additions. Most sets and chains have the same names as ours and need no
//! step of their own. The leftovers have no counterpart: the dummy device with its addresses, one
//! chain, one set. The rules of one in another mode are treated in
//! [`packet_rules`](super::packet_rules).
//!
//! The empty set [`takeover_marker`] records in the kernel that a takeover has begun and not ended, so
//! that an agent that starts after a crash continues it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::ipset::{Set, SetEntry, SetHeader, SetKind};
use portolan_model::ipvs::{ForwardingMethod, VirtualServer, VirtualServerKey};
use portolan_model::{Family, NodeTable, Protocol};

use super::PacketRules;
use crate::desire::{desire, room_for};
use crate::{Config, KernelState, Names, NodeFacts, SetName, Step, ownership_entry};

/// Name of the set that marks a takeover as begun and not ended.
pub fn takeover_marker(names: &Names) -> String {
    names.chain("PORTOLAN-TAKEOVER")
}

/// Returns `true` if there is a kube-proxy to take over from: a takeover has begun, or it was
/// requested and the kernel has objects of a kube-proxy. `has_device` is whether the kernel has
/// [`VIP_DEVICE`](super::VIP_DEVICE), `has_rules` whether it has rules of one in iptables or
/// nftables mode.
///
/// Sets alone are evidence only without an ownership record: otherwise they are our own.
#[must_use]
pub fn has_kube_proxy(
    observed: &KernelState,
    has_device: bool,
    has_rules: bool,
    asked: bool,
    names: &Names,
) -> bool {
    let has = |set| Family::ALL.map(|family| observed.sets.contains_key(&names.set(set, family)));
    let sets = has(SetName::ClusterIp).contains(&true);
    let ours = has(SetName::VirtualServers).contains(&true);
    observed.sets.contains_key(&takeover_marker(names))
        || (asked && (has_device || has_rules || (sets && !ours)))
}

/// Returns `true` if IPVS must take over before another dataplane can serve the node: a takeover was requested and
/// the kernel has [`VIP_DEVICE`](super::VIP_DEVICE), or the kernel has the marker of one that has begun and not ended.
#[must_use]
pub fn must_take_over_first(has_marker: bool, has_device: bool, asked: bool) -> bool {
    has_marker || (asked && has_device)
}

/// Virtual servers that a takeover claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    /// The kube-proxy's virtual servers that are desired: they stay.
    pub wanted: BTreeSet<VirtualServerKey>,
    /// The kube-proxy's virtual servers that are not desired: the first reconciliation deletes them.
    pub unwanted: BTreeSet<VirtualServerKey>,
    /// Virtual servers by address that are neither ours nor a kube-proxy's: left untouched.
    pub foreign: BTreeSet<VirtualServerKey>,
    /// Addresses and ports in the rules of a kube-proxy in another mode that are desired.
    pub wanted_rules: BTreeSet<VirtualServerKey>,
    /// Addresses and ports in the rules of a kube-proxy in another mode that are not desired: nothing serves
    /// them once its rules are gone.
    pub unwanted_rules: BTreeSet<VirtualServerKey>,
}

impl Claim {
    /// Classifies the virtual servers that are not ours. `bound` are the addresses on
    /// [`VIP_DEVICE`](super::VIP_DEVICE).
    ///
    /// A kube-proxy marks nothing as its own, but lists each frontend in a set. An unlisted virtual server
    /// is its own too if the table has the same one, on an address of its device or of the node: it may
    /// have been stopped half-way. It masquerades all real servers, so a virtual server with another
    /// forwarding method is foreign.
    #[must_use]
    pub fn new(
        table: &NodeTable,
        facts: &NodeFacts,
        config: &Config,
        observed: &KernelState,
        bound: &BTreeSet<IpAddr>,
        rules: &PacketRules,
    ) -> Self {
        // An empty observed state refuses nothing as foreign.
        let wanted = desire(table, facts, config, &KernelState::default()).records;
        let mut claim = Self::default();
        for (key, server) in observed.foreign_virtual_servers(&config.names) {
            let Some(socket) = key.socket() else { continue };
            let ip = socket.ip();
            let is_wanted = wanted.contains_key(&key);
            let here = bound.contains(&ip) || facts.addresses.contains(&ip);
            let listed = is_listed(observed, &config.names, facts, &key) && !excludes(config, ip);
            let possible = config.families.contains(&key.family()) && is_masqueraded(&server);
            let of_kind = match possible && (listed || (is_wanted && here)) {
                false => &mut claim.foreign,
                true if is_wanted => &mut claim.wanted,
                true => &mut claim.unwanted,
            };
            of_kind.insert(key);
        }
        (claim.wanted_rules, claim.unwanted_rules) = rules
            .frontends
            .iter()
            .copied()
            .partition(|key| wanted.contains_key(key));
        claim
    }

    /// The steps that mark the takeover as begun and record the claimed virtual servers as ours.
    #[must_use]
    pub fn steps(&self, observed: &KernelState, config: &Config) -> Vec<Step> {
        let header = SetHeader {
            kind: SetKind::HashIp,
            family: Family::V4,
            max_entries: 1,
        };
        let name = takeover_marker(&config.names);
        let mut steps = vec![Step::CreateSet { name, header }];
        let mut entries: BTreeMap<Family, BTreeSet<SetEntry>> = BTreeMap::new();
        for key in self.wanted.iter().chain(&self.unwanted) {
            let of_family = entries.entry(key.family()).or_default();
            of_family.insert(ownership_entry(key));
        }
        for (family, entries) in entries {
            let name = config.names.set(SetName::VirtualServers, family);
            steps.extend(record(name, family, entries, observed));
        }
        steps
    }

    /// Returns the number of addresses and ports that the kube-proxy has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept() + self.lacking()
    }

    /// Returns the number of them that are desired.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.wanted.len() + self.wanted_rules.len()
    }

    /// Returns the number of them that are not desired.
    #[must_use]
    pub fn lacking(&self) -> usize {
        self.unwanted.len() + self.unwanted_rules.len()
    }

    /// Returns `true` if it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Adds entries to an ownership record, which is created or enlarged where necessary.
fn record(
    name: String,
    family: Family,
    entries: BTreeSet<SetEntry>,
    observed: &KernelState,
) -> Vec<Step> {
    let before = observed.sets.get(&name);
    let add = |name| Step::AddEntries {
        name,
        entries: Arc::new(entries.iter().cloned().collect()),
    };
    let all: BTreeSet<SetEntry> = match before {
        Some(set) => set.entries.union(&entries).cloned().collect(),
        None => entries.clone(),
    };
    let header = SetHeader {
        kind: SetName::VirtualServers.kind(),
        family,
        max_entries: room_for(all.len()),
    };
    match before {
        Some(set) if set.header.max_entries < header.max_entries => {
            let set = Set {
                header,
                entries: all,
            };
            vec![Step::ReplaceSet {
                name,
                set: Box::new(set),
            }]
        }
        Some(_) => vec![add(name)],
        None => vec![
            Step::CreateSet {
                name: name.clone(),
                header,
            },
            add(name),
        ],
    }
}

fn excludes(config: &Config, ip: IpAddr) -> bool {
    config.exclude_cidrs.iter().any(|net| net.contains(&ip))
}

fn is_masqueraded(server: &VirtualServer) -> bool {
    let mut real_servers = server.real_servers.values();
    real_servers.all(|config| config.forwarding == ForwardingMethod::Masquerade)
}

/// Sets in which a kube-proxy lists frontends by address.
const BY_ADDRESS: [SetName; 6] = [
    SetName::ClusterIp,
    SetName::ExternalIp,
    SetName::ExternalIpLocal,
    SetName::LoadBalancer,
    SetName::NodePortSctp,
    SetName::NodePortLocalSctp,
];

/// Returns `true` if a virtual server is in one of a kube-proxy's sets.
fn is_listed(
    observed: &KernelState,
    names: &Names,
    facts: &NodeFacts,
    key: &VirtualServerKey,
) -> bool {
    let holds = |set: SetName, entry: &SetEntry| {
        let set = observed.sets.get(&names.set(set, key.family()));
        set.is_some_and(|set| set.entries.contains(entry))
    };
    let (Some(socket), Some(protocol)) = (key.socket(), key.protocol()) else {
        return false;
    };
    let by_address = ownership_entry(key);
    let by_port = SetEntry::Port(socket.port());
    let ports = match protocol {
        Protocol::Tcp => Some(SetName::NodePortTcp),
        Protocol::Udp => Some(SetName::NodePortUdp),
        Protocol::Sctp => None,
    };
    let own = facts.addresses.contains(&socket.ip());
    BY_ADDRESS.iter().any(|set| holds(*set, &by_address))
        || ports.is_some_and(|set| own && holds(set, &by_port))
}

#[cfg(test)]
mod tests;
