// SPDX-License-Identifier: Apache-2.0

//! Desired state, and the parts of a table that it leaves out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::{self, VirtualServerKey};
use portolan_model::{ByRecord, Family, Protocol, Record, RecordHealth, RecordKey, Standing};

use crate::{KernelState, WayTo, ownership_entry};

/// Desired state of the kernel, with the parts of the table that it leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// The state.
    pub state: KernelState,
    /// Record of each virtual server, except those of ways.
    pub records: BTreeMap<VirtualServerKey, Arc<Record>>,
    /// Health of the table's load balancers: why a backend has no real server.
    pub health: ByRecord<RecordHealth>,
    /// Ways of health checks, with the mark of the virtual server of each.
    pub ways: BTreeMap<WayTo, u32>,
    /// Parts of the table that were left out, or work only in part.
    pub refused: Vec<Refused>,
    /// Deviations from the expected that are no errors.
    pub notes: BTreeSet<Note>,
}

impl Desired {
    /// Returns `true` if any real server is masqueraded.
    #[must_use]
    pub fn masquerades(&self) -> bool {
        let servers = self.state.virtual_servers.values();
        let mut configs = servers.flat_map(|server| server.real_servers.values());
        configs.any(|config| config.forwarding == ipvs::ForwardingMethod::Masquerade)
    }

    /// The records that need a set entry, for error messages. Searches all virtual servers.
    #[must_use]
    pub fn records_of(&self, entry: &SetEntry) -> BTreeSet<&RecordKey> {
        let servers = self.state.virtual_servers.iter();
        let needing = servers.filter(|(key, server)| match entry {
            SetEntry::IpPort(ip, protocol, port) => {
                ownership_entry(key) == *entry
                    || self.protocol(key) == Some(*protocol)
                        && server.real_servers.contains_key(&(*ip, *port).into())
            }
            SetEntry::IpPortMark(ip, protocol, port, mark) => {
                let by_mark = key.mark() == Some(*mark) && key.family() == Family::of(*ip);
                by_mark || **key == VirtualServerKey::new(*protocol, *ip, *port)
            }
            SetEntry::IpPortNet(ip, protocol, port, _) => {
                **key == VirtualServerKey::new(*protocol, *ip, *port)
            }
            SetEntry::Ip(ip) => key.socket().is_some_and(|socket| socket.ip() == *ip),
            SetEntry::Port(port) => key.socket().is_some_and(|socket| socket.port() == *port),
            SetEntry::IpPortIp(ip, protocol, port, _) => {
                self.protocol(key) == Some(*protocol)
                    && server.real_servers.contains_key(&(*ip, *port).into())
            }
        });
        needing
            .filter_map(|(key, _)| Some(&self.records.get(key)?.key))
            .collect()
    }

    /// Returns `true` if a backend has no real server because it failed.
    #[must_use]
    pub fn is_failed(&self, record: &Record, backend: SocketAddr) -> bool {
        let health = self.health.get(&record.key);
        let standing = health.and_then(|health| health.backends.get(&backend));
        standing == Some(&Standing::Failed)
    }

    /// Need of marks for health checks, also if none is free.
    #[must_use]
    pub fn needs_ways(&self) -> bool {
        let is_refused = |refused: &Refused| matches!(refused, Refused::NoWay { .. });
        !self.ways.is_empty() || self.refused.iter().any(is_refused)
    }

    /// Protocol of a virtual server's connections; for a mark that of its record.
    #[must_use]
    pub fn protocol(&self, key: &VirtualServerKey) -> Option<Protocol> {
        let of_record = || self.records.get(key).map(|record| record.key.protocol);
        key.protocol().or_else(of_record)
    }
}

/// Part of a table that was left out, or works only in part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A foreign virtual server has the same key.
    #[error("{record}: virtual server {key} exists and is not ours: left untouched")]
    Foreign {
        /// The record.
        record: RecordKey,
        /// The virtual server.
        key: VirtualServerKey,
    },
    /// A foreign route of a virtual address takes precedence over ours.
    #[error(
        "{record}: a route of {address} in the local table is not ours: left untouched, and it takes \
        precedence while it exists"
    )]
    ForeignRoute {
        /// The record.
        record: RecordKey,
        /// The virtual address.
        address: IpAddr,
    },
    /// A port of a gateway is one that the host's own connections may begin from.
    #[error(
        "{record}: port {port} of the gateway lies within net.ipv4.ip_local_port_range {range} of this node: \
         replies to the node's own connections may meet it; spec.network.gateway.ports of the Cluster must lie outside, \
         or be in net.ipv4.ip_local_reserved_ports"
    )]
    LocalPort {
        /// The record.
        record: RecordKey,
        /// The port.
        port: u16,
        /// The range, `FIRST-LAST`.
        range: String,
    },
    /// Another record has the virtual server.
    #[error("{record}: virtual server {key} already belongs to {holder}")]
    Taken {
        /// The record.
        record: RecordKey,
        /// The virtual server.
        key: VirtualServerKey,
        /// The record that has it.
        holder: RecordKey,
    },
    /// The kernel has no such scheduler. The agent's default is used.
    #[error(
        "{record}: scheduler: {name:?} is not a scheduler of IPVS ({}): the default is used",
        ipvs::SCHEDULERS.join(", ")
    )]
    UnknownScheduler {
        /// The record.
        record: RecordKey,
        /// The unknown name.
        name: Arc<str>,
    },
    /// The mask has too few marks for all records with short circuits and ranges of ports.
    #[error(
        "{record}: no {family} packet mark is free in --short-circuit-mask: a Service's connections of this \
         node and its pods to external addresses are held to local destinations, a load balancer's ranges of \
         ports are not served"
    )]
    NoMark {
        /// The record.
        record: RecordKey,
        /// The family.
        family: Family,
    },
    /// The mask has too few marks for all health checks by way of the service.
    #[error(
        "{record}: no {} packet mark is free in --short-circuit-mask: checks of {} with via Service are not run, \
         and it stays as it is",
        to.family,
        to.backend.ip()
    )]
    NoWay {
        /// The first record that needs it.
        record: RecordKey,
        /// Destination of the way.
        to: WayTo,
    },
}

impl Refused {
    /// The affected record.
    #[must_use]
    pub fn record(&self) -> &RecordKey {
        match self {
            Self::Foreign { record, .. }
            | Self::ForeignRoute { record, .. }
            | Self::LocalPort { record, .. }
            | Self::Taken { record, .. }
            | Self::UnknownScheduler { record, .. }
            | Self::NoMark { record, .. }
            | Self::NoWay { record, .. } => record,
        }
    }
}

/// Deviation from the expected that is no error.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Note {
    /// A virtual address is one of the node's own.
    #[error("{record}: {address} is an address of this node: not bound as a virtual one")]
    OwnAddress {
        /// The record.
        record: RecordKey,
        /// The address.
        address: IpAddr,
    },
    /// The kernel lacks the scheduler that virtual servers by mark need for affinity.
    #[error(
        "the kernel has no scheduler mh: connections of this node and its pods to external addresses \
         of Services with externalTrafficPolicy Local have no ClientIP affinity"
    )]
    NoMaglev,
}
