//! What virtual servers do with connections.

use std::borrow::Cow;
use std::sync::Arc;

use portolan_model::ipvs::{
    self, Flags, ForwardingMethod, RealServerConfig, RealServers, VirtualServerConfig,
};
use portolan_model::{Destination, Record};

use crate::{Config, NodeFacts};

/// The scheduler by the hash of the client's address (`ip_vs_mh`, Maglev). The same destinations
/// give the same choice in every virtual server, on every node.
const MAGLEV: &str = "mh";
/// kube-proxy's default.
const ROUND_ROBIN: &str = "rr";

/// Whether the kernel has [`MAGLEV`].
pub(super) fn has_maglev(facts: &NodeFacts) -> bool {
    !facts.missing_schedulers.contains(MAGLEV)
}

/// Whether [`MAGLEV`] would be used for a record if the kernel had it.
pub(super) fn wants_maglev(record: &Record, config: &Config) -> bool {
    record.affinity.is_some() && named(record).is_none() && config.scheduler.is_none()
}

/// The scheduler that a record names; `None` if it names none, or one that is not the kernel's,
/// for which the kernel would look for a module.
fn named(record: &Record) -> Option<&'static str> {
    ipvs::scheduler(record.scheduling.scheduler.as_deref()?)
}

/// The name of a record's scheduler, if the kernel has none of that name.
pub(super) fn unknown(record: &Record) -> Option<&Arc<str>> {
    let name = record.scheduling.scheduler.as_ref();
    name.filter(|name| ipvs::scheduler(name).is_none())
}

/// Of a virtual server of an address. The Service's own choice goes before the agent's, and that
/// before the defaults.
pub(super) fn of_address(
    record: &Record,
    config: &Config,
    facts: &NodeFacts,
) -> VirtualServerConfig {
    let none = Flags::default();
    let (scheduler, flags) = match (named(record), config.scheduler) {
        (Some(named), _) => (named, none),
        // As upstream: hashes the client's port too.
        (None, Some(MAGLEV)) => (MAGLEV, Flags(Flags::SCHED2)),
        (None, Some(told)) => (told, none),
        (None, None) if record.affinity.is_some() && has_maglev(facts) => (MAGLEV, none),
        (None, None) => (ROUND_ROBIN, none),
    };
    let chosen = |flags: Flags| Flags(flags.0 & Flags::MASK);
    VirtualServerConfig {
        scheduler: Cow::Borrowed(scheduler),
        flags: record.scheduling.flags.map_or(flags, chosen),
        persistence: record.affinity.map(|affinity| affinity.timeout_seconds),
    }
}

/// Of a virtual server of a mark. A persistent one does not translate ports: it forwards to the
/// port that the client asked for (`ip_vs_sched_persist`). So affinity is left to the hash.
pub(super) fn of_mark(record: &Record, config: &Config, facts: &NodeFacts) -> VirtualServerConfig {
    let by_address = of_address(record, config, facts);
    if record.affinity.is_some() && has_maglev(facts) {
        return VirtualServerConfig {
            scheduler: Cow::Borrowed(MAGLEV),
            flags: Flags::default(),
            persistence: None,
        };
    }
    VirtualServerConfig {
        persistence: None,
        ..by_address
    }
}

/// Destinations as real servers.
pub(super) fn real_servers(destinations: &[Destination]) -> Arc<RealServers> {
    let real_server = |destination: &Destination| {
        let weight = destination.weight;
        let forwarding = ForwardingMethod::Masquerade;
        (destination.address, RealServerConfig { weight, forwarding })
    };
    Arc::new(destinations.iter().map(real_server).collect())
}
