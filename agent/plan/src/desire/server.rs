// SPDX-License-Identifier: Apache-2.0

//! Configuration of virtual servers and real servers.

use std::borrow::Cow;
use std::sync::Arc;

use portolan_model::ipvs::{self, Flags, RealServerConfig, RealServers, VirtualServerConfig};
use portolan_model::{Balancing, Destination, Family, Frontend, Persistence, Record};

use crate::{Config, NodeFacts};

/// Scheduler that hashes the client's address (`ip_vs_mh`, Maglev). Equal lists of destinations yield
/// the same choice in every virtual server on every node.
const MAGLEV: &str = "mh";
/// Older scheduler that hashes the client's address (`ip_vs_sh`).
const SOURCE_HASH: &str = "sh";
/// Scheduler that hashes the virtual address (`ip_vs_dh`).
const DESTINATION_HASH: &str = "dh";
/// keepalived's default, and ours for load balancers.
const WEIGHTED_LEAST_CONNECTIONS: &str = "wlc";
/// kube-proxy's default.
const ROUND_ROBIN: &str = "rr";

/// Returns `true` if a scheduler hashes the client's address.
fn hashes(scheduler: &str) -> bool {
    [MAGLEV, SOURCE_HASH].contains(&scheduler)
}

/// Returns `true` if a scheduler refuses the clients of a destination with weight 0, whatever its flags
/// (`ip_vs_dh_schedule`). Such a destination has to go, so that others get its clients.
pub(crate) fn refuses_at_zero(scheduler: &str) -> bool {
    scheduler == DESTINATION_HASH
}

/// Default flags of a scheduler. Without the fallback flag, `mh` and `sh` refuse the clients of a
/// draining destination (`ip_vs_mh_get`, `ip_vs_sh_get`).
fn default_flags(scheduler: &str) -> Flags {
    if hashes(scheduler) {
        Flags(Flags::SCHED1)
    } else {
        Flags::default()
    }
}

/// Returns `true` if a record's virtual servers by mark need [`MAGLEV`] for affinity and the kernel
/// lacks it.
pub(super) fn lacks_maglev(record: &Record, config: &Config, facts: &NodeFacts) -> bool {
    let has_marks = record.frontends.iter().any(Frontend::has_short_circuit);
    has_marks
        && record.affinity.is_some()
        && !hashes(&of_address(record, config, Family::V4).scheduler)
        && facts.missing_schedulers.contains(MAGLEV)
}

/// The scheduler that a record names; `None` if it names none, or an unknown one, for which the kernel
/// would try to load a module.
fn named(record: &Record) -> Option<&'static str> {
    ipvs::scheduler(record.scheduling.scheduler.as_deref()?)
}

/// The name of a record's scheduler if it is not a scheduler of IPVS.
pub(super) fn unknown(record: &Record) -> Option<&Arc<str>> {
    let name = record.scheduling.scheduler.as_ref();
    name.filter(|name| ipvs::scheduler(name).is_none())
}

/// The scheduler of a load balancer's virtual servers.
pub(super) fn scheduler_of_balanced(record: &Record) -> &'static str {
    named(record).unwrap_or(WEIGHTED_LEAST_CONNECTIONS)
}

/// Configuration of a load balancer's virtual server.
fn of_balanced(record: &Record, balancing: &Balancing, family: Family) -> VirtualServerConfig {
    let scheduler = scheduler_of_balanced(record);
    let persistence = balancing.persistence.as_ref();
    VirtualServerConfig {
        scheduler: Cow::Borrowed(scheduler),
        flags: record
            .scheduling
            .flags
            .map_or(default_flags(scheduler), |flags| {
                Flags(flags.0 & Flags::MASK)
            }),
        persistence: persistence.map(|persistence| persistence.timeout_seconds),
        netmask: persistence.and_then(|persistence| netmask(persistence, family)),
        engine: persistence
            .and_then(|persistence| Some(persistence.engine.as_deref()?.to_owned().into())),
    }
}

/// `None` if each address is a client of its own.
fn netmask(persistence: &Persistence, family: Family) -> Option<u32> {
    match family {
        Family::V4 => {
            let host_bits = 32_u32.saturating_sub(persistence.ipv4_prefix_length.into());
            Some(u32::MAX.checked_shl(host_bits).unwrap_or(0)).filter(|mask| *mask != u32::MAX)
        }
        Family::V6 => Some(persistence.ipv6_prefix_length.into()).filter(|length| *length < 128),
    }
}

/// Configuration of a virtual server by address. The Service's scheduler takes precedence over the
/// agent's, which takes precedence over the default. Affinity is IPVS persistence with any scheduler.
pub(super) fn of_address(record: &Record, config: &Config, family: Family) -> VirtualServerConfig {
    if let Some(balancing) = &record.balancing {
        return of_balanced(record, balancing, family);
    }
    let own = named(record);
    let scheduler = own.or(config.scheduler).unwrap_or(ROUND_ROBIN);
    let mut flags = default_flags(scheduler);
    // Like kube-proxy's, `--scheduler mh` hashes the client's port too, except with affinity: each port
    // of a client would get a destination of its own.
    if own.is_none() && scheduler == MAGLEV && record.affinity.is_none() {
        flags.0 |= Flags::SCHED2;
    }
    let chosen = |flags: Flags| Flags(flags.0 & Flags::MASK);
    VirtualServerConfig {
        scheduler: Cow::Borrowed(scheduler),
        flags: record.scheduling.flags.map_or(flags, chosen),
        persistence: record.affinity.map(|affinity| affinity.timeout_seconds),
        netmask: None,
        engine: None,
    }
}

/// Configuration of a virtual server by mark. A persistent one does not translate ports
/// (`ip_vs_sched_persist`), so affinity is left to a hash of the client's address.
pub(super) fn of_mark(
    record: &Record,
    config: &Config,
    facts: &NodeFacts,
    family: Family,
) -> VirtualServerConfig {
    let by_address = VirtualServerConfig {
        persistence: None,
        ..of_address(record, config, family)
    };
    if record.affinity.is_none() || lacks_maglev(record, config, facts) {
        return by_address;
    }
    if hashes(&by_address.scheduler) {
        let without_port = by_address.flags.0 & !Flags::SCHED2;
        return VirtualServerConfig {
            flags: Flags(without_port),
            ..by_address
        };
    }
    VirtualServerConfig {
        scheduler: Cow::Borrowed(MAGLEV),
        flags: default_flags(MAGLEV),
        ..VirtualServerConfig::round_robin()
    }
}

/// Converts destinations to real servers.
pub(super) fn real_servers(destinations: &[Destination]) -> Arc<RealServers> {
    let real_server = |destination: &Destination| {
        let config = RealServerConfig::masquerade(destination.weight);
        (destination.address, config)
    };
    Arc::new(destinations.iter().map(real_server).collect())
}
