// SPDX-License-Identifier: Apache-2.0

//! Records of load balancers: one for each frontend.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::check::{Check, CheckDefaults, Via};
use portolan_model::{
    Balancing, ByRecord, Destination, Family, Frontend, FrontendAddress, FrontendKind, PortRange,
    Profile, Protocol, Record, RecordKey, Scheduling, ipvs,
};

use crate::check::DeclaredCheck;
use crate::document::{PersistenceEngine, SchedulerFlag, TunnelChecksum};
use crate::rules::frontend_of;
use crate::{Backend, Forwarding, LoadBalancer, ObjectName, Packets, Tunnel};

/// The records of load balancers on a host, whose director gives the defaults of checks; without them, for hosts that
/// each have their own.
///
/// A mark has any protocol; its record's key has TCP, as the kernel says of marks too.
#[must_use]
pub fn records<'a>(
    balancers: impl IntoIterator<Item = &'a LoadBalancer>,
    defaults: Option<&CheckDefaults>,
    cluster: &Arc<str>,
) -> ByRecord<Record> {
    let of_one = |balancer| records_of(balancer, defaults, cluster);
    let all = balancers.into_iter().flat_map(of_one);
    all.map(|record| (record.key.clone(), Arc::new(record)))
        .collect()
}

/// The records of the last reading, of which those of load balancers that did not change are not made again.
///
/// A record that is equal to the one before is the same allocation: comparisons of whole tables are cheap then.
#[derive(Debug, Default)]
pub struct RecordCache {
    defaults: Option<CheckDefaults>,
    cluster: Arc<str>,
    made: HashMap<ObjectName, Made>,
}

#[derive(Debug)]
struct Made {
    balancer: Arc<LoadBalancer>,
    records: Vec<Arc<Record>>,
}

impl RecordCache {
    /// Like [`records`]. Load balancers that this reading does not have are forgotten.
    pub fn records(
        &mut self,
        balancers: &[Arc<LoadBalancer>],
        defaults: Option<&CheckDefaults>,
        cluster: &Arc<str>,
    ) -> ByRecord<Record> {
        let is_same = self.defaults.as_ref() == defaults && self.cluster == *cluster;
        (self.defaults, self.cluster) = (defaults.cloned(), Arc::clone(cluster));
        let mut before = std::mem::take(&mut self.made);
        let mut all = ByRecord::new();
        for balancer in balancers {
            let records = match before.remove(&balancer.name) {
                Some(old) if is_same && old.balancer == *balancer => old.records,
                old => {
                    let old = old.map(|old| old.records).unwrap_or_default();
                    let new = records_of(balancer, defaults, cluster);
                    new.map(|record| same_or_new(record, &old)).collect()
                }
            };
            all.extend(records.iter().map(|one| (one.key.clone(), Arc::clone(one))));
            let balancer = Arc::clone(balancer);
            let name = balancer.name.clone();
            self.made.insert(name, Made { balancer, records });
        }
        all
    }
}

/// The old record that is equal to this one, or this one.
fn same_or_new(record: Record, old: &[Arc<Record>]) -> Arc<Record> {
    let same = old.iter().find(|old| ***old == record);
    same.map_or_else(|| Arc::new(record), Arc::clone)
}

fn records_of<'a>(
    balancer: &'a LoadBalancer,
    defaults: Option<&'a CheckDefaults>,
    cluster: &'a Arc<str>,
) -> impl Iterator<Item = Record> + 'a {
    balancer.frontends.iter().map(move |frontend| {
        let protocol = frontend.packets.protocol();
        let key = RecordKey {
            cluster: Arc::clone(cluster),
            namespace: balancer.name.namespace.as_str().into(),
            service: balancer.name.name.as_str().into(),
            port: frontend.name.as_str().into(),
            protocol: protocol.unwrap_or(Protocol::Tcp),
        };
        let frontends = frontends(balancer, frontend);
        // A backend of several ports or of a mark without a port of its own gets packets at the client's.
        let port = frontend.packets.port().unwrap_or_default();
        let (destinations, balancing) = balancing(balancer, port, protocol, defaults);
        Record {
            frontends,
            available: destinations
                .iter()
                .map(|destination| Family::of(destination.address.ip()))
                .collect(),
            destinations,
            scheduling: Scheduling {
                scheduler: Some(balancer.scheduler.as_str().into()),
                flags: Some(flags(balancer, protocol)),
            },
            drain_seconds: balancer
                .drain_timeout
                .map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX)),
            balancing: Some(Arc::new(balancing)),
            ..Record::new(key)
        }
    })
}

/// The addresses or marks of a frontend, sorted.
fn frontends(balancer: &LoadBalancer, from: &crate::Frontend) -> Vec<Frontend> {
    let (kind, port, ranges) = match &from.packets {
        Packets::Port { port, .. } => (FrontendKind::Balanced, *port, Vec::new()),
        Packets::Mark { .. } => (FrontendKind::Balanced, 0, Vec::new()),
        Packets::Ranges { ports, .. } => {
            let range = |(first, last): &(u16, u16)| PortRange {
                first: *first,
                last: *last,
            };
            let ranges = ports.iter().map(range).collect();
            (FrontendKind::BalancedRanges, 0, ranges)
        }
    };
    let at = |ip: &IpAddr| Frontend {
        masquerade: balancer.source_nat,
        source_ranges: admitted(&from.source_ranges, *ip),
        ranges: ranges.clone(),
        ..Frontend::new(kind, FrontendAddress::Vip(*ip), port)
    };
    let mut frontends: Vec<_> = match &from.packets {
        Packets::Mark { mark, families } => {
            let of_family = |family| FrontendAddress::Mark {
                family,
                mark: *mark,
            };
            let addresses = families.iter().map(of_family);
            let by_mark = |address| Frontend::new(kind, address, port);
            addresses.map(by_mark).collect()
        }
        packets => packets.addresses().iter().map(at).collect(),
    };
    frontends.sort();
    frontends
}

/// The ranges of an address's family, sorted.
pub(crate) fn of_family(ranges: &[IpNet], ip: IpAddr) -> Vec<IpNet> {
    let of_family = |range: &&IpNet| Family::of(range.addr()) == Family::of(ip);
    let mut ranges: Vec<_> = ranges.iter().filter(of_family).copied().collect();
    ranges.sort();
    ranges.dedup();
    ranges
}

/// The ranges whose clients may connect to an address; none if all may.
fn admitted(ranges: &[IpNet], ip: IpAddr) -> Vec<IpNet> {
    let ranges = of_family(ranges, ip);
    // The kernel's sets cannot have a range of all addresses, which opens all anyway.
    match ranges.iter().any(|range| range.prefix_len() == 0) {
        true => Vec::new(),
        false => ranges,
    }
}

/// The backends behind a frontend's port, sorted by address, with their settings. A mark has no protocol.
fn balancing(
    balancer: &LoadBalancer,
    port: u16,
    protocol: Option<Protocol>,
    defaults: Option<&CheckDefaults>,
) -> (Vec<Destination>, Balancing) {
    let mut profiles = Vec::new();
    let mut rows = BTreeMap::new();
    for backend in &balancer.backends {
        let profile = profile(balancer, backend, defaults);
        let known = profiles.iter().position(|known| *known == profile);
        let index = known.unwrap_or_else(|| {
            profiles.push(profile);
            profiles.len() - 1
        });
        let address = SocketAddr::new(backend.address, backend.port.unwrap_or(port));
        // At most 4,096 backends.
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        rows.insert(address, (u32::from(backend.weight), index));
    }
    let destination = |(address, (weight, _)): (&SocketAddr, &(u32, u16))| Destination {
        address: *address,
        weight: *weight,
    };
    let sorry = balancer.sorry_server.as_ref();
    let balancing = Balancing {
        persistence: balancer.persistence.map(|it| persistence(it, protocol)),
        profile_of: rows.values().map(|(_, profile)| *profile).collect(),
        profiles,
        sorry_server: sorry.map(|sorry| portolan_model::SorryServer {
            address: SocketAddr::new(sorry.address, sorry.port.unwrap_or(port)),
            forwarding: method(sorry.forwarding),
            keep_idle: sorry.keep_idle,
        }),
        health: balancer.health,
        group: portolan_model::group_name(&balancer.node_selector),
    };
    (rows.iter().map(destination).collect(), balancing)
}

fn profile(
    balancer: &LoadBalancer,
    backend: &Backend,
    defaults: Option<&CheckDefaults>,
) -> Profile {
    let checks = balancer.checks_of(backend).iter();
    Profile {
        forwarding: method(backend.forwarding),
        thresholds: ipvs::Thresholds {
            upper: backend.thresholds.maximum,
            lower: backend.thresholds.resume,
        },
        checks: checks
            .map(|check| Arc::new(resolved(balancer, backend, check, defaults)))
            .collect(),
        administrative_state: match backend.administrative_state {
            crate::AdministrativeState::Enabled => portolan_model::AdministrativeState::Enabled,
            crate::AdministrativeState::Drain => portolan_model::AdministrativeState::Drain,
            crate::AdministrativeState::Disabled => portolan_model::AdministrativeState::Disabled,
        },
    }
}

/// A check with the defaults that are known here. The records do not have the order of the frontends: the first one is named here.
fn resolved(
    balancer: &LoadBalancer,
    backend: &Backend,
    check: &DeclaredCheck,
    defaults: Option<&CheckDefaults>,
) -> Check {
    let mut resolved = match defaults {
        Some(defaults) => check.resolve(defaults),
        None => check.for_each_host(),
    };
    if let Some(frontend) = frontend_of(balancer, backend, check) {
        resolved.via = Via::Service {
            frontend: Some(frontend.name.as_str().into()),
        };
    }
    resolved
}

/// The engine reads UDP only, also by mark: the kernel (`ip_vs_sip_fill_param`) drops all other packets.
fn persistence(
    from: crate::Persistence,
    protocol: Option<Protocol>,
) -> portolan_model::Persistence {
    let engine = from.engine.filter(|_| has_udp(protocol));
    portolan_model::Persistence {
        timeout_seconds: u32::try_from(from.timeout.as_secs()).unwrap_or(u32::MAX),
        ipv4_prefix_length: from.ipv4_prefix_length,
        ipv6_prefix_length: from.ipv6_prefix_length,
        engine: engine.map(|engine| match engine {
            PersistenceEngine::Sip => "sip".into(),
        }),
    }
}

fn method(from: Forwarding) -> ipvs::ForwardingMethod {
    match from {
        Forwarding::Masquerade => ipvs::ForwardingMethod::Masquerade,
        Forwarding::Direct => ipvs::ForwardingMethod::Direct,
        Forwarding::Tunnel(tunnel) => ipvs::ForwardingMethod::Tunnel(match tunnel {
            Tunnel::Ipip => ipvs::Tunnel::Ipip,
            Tunnel::Gre { checksum } => ipvs::Tunnel::Gre { checksum },
            Tunnel::Gue { port, checksum } => ipvs::Tunnel::Gue {
                port,
                checksum: match checksum {
                    TunnelChecksum::None => ipvs::GueChecksum::None,
                    TunnelChecksum::Full => ipvs::GueChecksum::Full,
                    TunnelChecksum::Remote => ipvs::GueChecksum::Remote,
                },
            },
        }),
    }
}

/// One-packet scheduling acts on UDP only, also by mark.
fn flags(balancer: &LoadBalancer, protocol: Option<Protocol>) -> ipvs::Flags {
    let bit = |flag: &SchedulerFlag| match flag {
        SchedulerFlag::Fallback | SchedulerFlag::Flag1 => ipvs::Flags::SCHED1,
        SchedulerFlag::Port | SchedulerFlag::Flag2 => ipvs::Flags::SCHED2,
        SchedulerFlag::Flag3 => ipvs::Flags::SCHED3,
    };
    let mut flags = balancer
        .scheduler_flags
        .iter()
        .fold(0, |all, flag| all | bit(flag));
    if balancer.one_packet && has_udp(protocol) {
        flags |= ipvs::Flags::ONE_PACKET;
    }
    ipvs::Flags(flags)
}

/// Returns `true` for UDP, and for a mark, which any packet may have.
fn has_udp(protocol: Option<Protocol>) -> bool {
    protocol.is_none_or(|protocol| protocol == Protocol::Udp)
}

#[cfg(test)]
mod tests;
