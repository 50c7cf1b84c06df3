// SPDX-License-Identifier: Apache-2.0

//! Ways of health checks through IPVS: virtual servers by mark that have one backend alone.
//!
//! A check with `via: Service` connects to the virtual address with a mark. The kernel finds the virtual server by
//! that mark before any by address, so that the probe reaches its own backend, with the forwarding method and the
//! tunnel that clients get. A way depends on the backend alone, not on the virtual address: checks by way of several
//! frontends share it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::check::{Check, Via};
use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::{
    Flags, ForwardingMethod, RealServerConfig, Thresholds, VirtualServer, VirtualServerConfig,
    VirtualServerKey,
};
use portolan_model::{Balancing, ByRecord, Family, FrontendAddress, Record, RecordKey};

use crate::desire::is_behind;
use crate::{Config, KernelState, MarkMask, SetName, marks};

/// Destination of a way. Equal ones are one virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WayTo {
    /// The family of the virtual address.
    pub family: Family,
    /// The backend. Its port is 0 with a method that translates none: the packet keeps its own.
    pub backend: SocketAddr,
    /// Forwarding method of the packets to it.
    pub forwarding: ForwardingMethod,
}

impl fmt::Display for WayTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            family,
            backend,
            forwarding,
        } = self;
        write!(f, "{family} {backend} {forwarding:?}")
    }
}

/// The ways that the kernel has, for those that send probes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ways {
    /// The mark of each way.
    pub marks: BTreeMap<WayTo, u32>,
    /// Source of the node's own connections to virtual addresses. The kernel's choice may be the virtual address
    /// itself, which a backend with that address would answer to itself.
    pub sources: BTreeMap<Family, IpAddr>,
}

/// The way of a check to a destination of a record, and the virtual address that the check connects to. `None` for
/// a direct check, and if the table has no such frontend before the destination.
#[must_use]
pub fn way_of(
    records: &ByRecord<Record>,
    record: &Record,
    index: usize,
    check: &Check,
) -> Option<(WayTo, SocketAddr)> {
    let Via::Service { frontend } = &check.via else {
        return None;
    };
    let key = RecordKey {
        port: frontend
            .as_ref()
            .map_or_else(|| Arc::clone(&record.key.port), Arc::clone),
        protocol: check.probe.protocol()?,
        ..record.key.clone()
    };
    let target = records.get(&key)?;
    let own = record.destinations.get(index)?.address;
    let forwarding = record.balancing.as_ref()?.profile(index)?.forwarding;
    let balancing = target.balancing.as_ref()?;
    let backend = same_backend(target, balancing, own, forwarding)?;
    let frontends = target.frontends.iter();
    let mut behind = frontends.filter(|frontend| is_behind(target, frontend, backend, forwarding));
    behind.find_map(|frontend| {
        let FrontendAddress::Vip(address) = frontend.address else {
            return None;
        };
        let port = frontend.ports().next()?;
        let to = WayTo {
            family: Family::of(address),
            backend: match forwarding {
                ForwardingMethod::Masquerade => backend,
                _ => SocketAddr::new(backend.ip(), 0),
            },
            forwarding,
        };
        Some((to, SocketAddr::new(address, port)))
    })
}

/// The destination of a record that is the same backend as one of another frontend, whose port may differ.
fn same_backend(
    target: &Record,
    balancing: &Balancing,
    own: SocketAddr,
    forwarding: ForwardingMethod,
) -> Option<SocketAddr> {
    let all = target.destinations.iter().enumerate();
    let mut alike = all.filter(|(index, destination)| {
        let profile = balancing.profile(*index);
        destination.address.ip() == own.ip()
            && profile.is_some_and(|profile| profile.forwarding == forwarding)
    });
    let first = alike.next()?.1.address;
    let is_own = first == own || alike.any(|(_, destination)| destination.address == own);
    Some(if is_own { own } else { first })
}

/// Returns `true` if a record has checks by way of the service.
#[must_use]
pub fn has_ways(record: &Record) -> bool {
    let by_service = |check: &Arc<Check>| check.via != Via::Direct;
    record.balancing.as_ref().is_some_and(|balancing| {
        let mut profiles = balancing.profiles.iter();
        profiles.any(|profile| profile.checks.iter().any(by_service))
    })
}

/// The ways that the checks of a table need, each with the first record that needs it.
pub(crate) fn wanted(records: &ByRecord<Record>) -> BTreeMap<WayTo, RecordKey> {
    let mut wanted = BTreeMap::new();
    for record in records.values().filter(|record| has_ways(record)) {
        let Some(balancing) = &record.balancing else {
            continue;
        };
        for index in 0..record.destinations.len() {
            let checks = balancing.profile(index).map(|profile| &profile.checks);
            for check in checks.into_iter().flatten() {
                if let Some((to, _)) = way_of(records, record, index, check) {
                    wanted.entry(to).or_insert_with(|| record.key.clone());
                }
            }
        }
    }
    wanted
}

/// The virtual server of a way. A datagram of one-packet scheduling leaves no connection behind, to which a later
/// probe from the same port would belong; masquerading needs the connection for the answer.
pub(crate) fn server(to: &WayTo) -> VirtualServer {
    let flags = match to.forwarding {
        ForwardingMethod::Masquerade => Flags::default(),
        _ => Flags(Flags::ONE_PACKET),
    };
    let real_server = RealServerConfig {
        weight: 1,
        forwarding: to.forwarding,
        thresholds: Thresholds::default(),
    };
    VirtualServer {
        config: VirtualServerConfig {
            flags,
            ..VirtualServerConfig::round_robin()
        }
        .into(),
        real_servers: Arc::new([(to.backend, real_server)].into()),
    }
}

impl KernelState {
    /// The bits of the marks that the kernel has of ours: those that sets give to packets, and those of ways. All of
    /// these marks are within the result.
    #[must_use]
    pub fn mapped_mask(&self, config: &Config) -> MarkMask {
        let of_rules = marks_of_rules(self, config).into_iter();
        let of_ways = ways_with(self, config, |_| true).into_values();
        let all = of_rules.map(|(_, mark)| mark).chain(of_ways);
        let masquerade = config.masquerade_mark;
        // A virtual server that looks like a way may be by a mark of an operator, which may have a reserved bit.
        let bits = all.filter_map(|mark| MarkMask::new(mark, masquerade).ok());
        let bits = bits.fold(0, |bits, mark| bits | mark.bits());
        MarkMask::new(bits, masquerade).unwrap_or(MarkMask::NONE)
    }
}

/// The ways in the kernel by a mark that we use.
pub(crate) fn kept(observed: &KernelState, config: &Config) -> BTreeMap<WayTo, u32> {
    let mask = config.short_circuit_mask;
    ways_with(observed, config, |mark| mask.contains(mark))
}

/// The ways in the kernel: virtual servers of ours by a mark that no rule sets, with one real server.
fn ways_with(
    observed: &KernelState,
    config: &Config,
    is_usable: impl Fn(u32) -> bool,
) -> BTreeMap<WayTo, u32> {
    let names = &config.names;
    let mut kept = BTreeMap::new();
    let mut set_by_rules = None;
    for (key, have) in &observed.virtual_servers {
        let VirtualServerKey::Mark { family, mark } = *key else {
            continue;
        };
        if have.real_servers.len() != 1 || !is_usable(mark) || !observed.owns(names, key) {
            continue;
        }
        let set_by_rules = set_by_rules.get_or_insert_with(|| marks_of_rules(observed, config));
        let of_way = have.real_servers.iter().map(|(backend, config)| WayTo {
            family,
            backend,
            forwarding: config.forwarding,
        });
        for to in of_way {
            if !set_by_rules.contains(&(family, mark)) && *have == server(&to) {
                kept.entry(to).or_insert(mark);
            }
        }
    }
    kept
}

/// The marks that entries of our sets give packets.
fn marks_of_rules(observed: &KernelState, config: &Config) -> BTreeSet<(Family, u32)> {
    let mut found = BTreeSet::new();
    for (family, set) in Family::ALL
        .into_iter()
        .flat_map(|family| SetName::MARKS.map(|set| (family, set)))
    {
        let set = observed.sets.get(&config.names.set(set, family));
        let entries = set.into_iter().flat_map(|set| &set.entries);
        found.extend(entries.filter_map(|entry| match entry {
            SetEntry::IpPortMark(.., mark) => Some((family, *mark)),
            _ => None,
        }));
    }
    found
}

/// Allocates a mark to each way of a family. A way keeps the mark that it has in the kernel. `taken` are the marks
/// of all other virtual servers of the family. A way is missing from the result if no mark is free.
pub(crate) fn allocate<'a>(
    wanted: impl Iterator<Item = &'a WayTo> + Clone,
    kept: &BTreeMap<WayTo, u32>,
    taken: &BTreeSet<u32>,
    mask: MarkMask,
) -> BTreeMap<WayTo, u32> {
    let mut marks = BTreeMap::new();
    for to in wanted.clone() {
        if let Some(mark) = kept.get(to).filter(|mark| !taken.contains(mark)) {
            marks.insert(*to, *mark);
        }
    }
    // A mark of a way that is no longer wanted still leads to its backend.
    let mut taken: BTreeSet<u32> = taken.iter().chain(kept.values()).copied().collect();
    taken.retain(|mark| mask.contains(*mark));
    for to in wanted {
        if marks.contains_key(to) {
            continue;
        }
        if let Some(mark) = marks::free(to, &taken, mask) {
            taken.insert(mark);
            marks.insert(*to, mark);
        }
    }
    marks
}

#[cfg(test)]
mod tests;
