//! What is desired, and what of a table could not be.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::{self, VirtualServerKey};
use portolan_model::{Family, Protocol, Record, RecordKey};

use crate::{KernelState, ownership_entry};

/// What the kernel should hold, and what of the table could not be wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// The state.
    pub state: KernelState,
    /// Which record each virtual server comes from.
    pub records: BTreeMap<VirtualServerKey, Arc<Record>>,
    /// What was left out.
    pub refused: Vec<Refused>,
    /// What is done otherwise than one might expect, and is no error.
    pub notes: BTreeSet<Note>,
}

impl Desired {
    /// The records that need an entry of a set. Looks at all virtual servers: for error messages.
    #[must_use]
    pub fn records_of(&self, entry: &SetEntry) -> BTreeSet<&RecordKey> {
        let servers = self.state.virtual_servers.iter();
        let needing = servers.filter(|(key, server)| match entry {
            SetEntry::IpPort(..) => ownership_entry(key) == *entry,
            SetEntry::IpPortMark(ip, protocol, port, _)
            | SetEntry::IpPortNet(ip, protocol, port, _) => {
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

    /// The protocol of a virtual server's connections; a mark has that of its record.
    #[must_use]
    pub fn protocol(&self, key: &VirtualServerKey) -> Option<Protocol> {
        let of_record = || self.records.get(key).map(|record| record.key.protocol);
        key.protocol().or_else(of_record)
    }
}

/// Something that was left out, or cannot be relied on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Somebody else's virtual server is in the way.
    #[error("{record}: virtual server {key} exists and is not ours: left alone")]
    Foreign {
        /// The record.
        record: RecordKey,
        /// The virtual server.
        key: VirtualServerKey,
    },
    /// Somebody else's route of a virtual address goes before ours.
    #[error(
        "{record}: a route of {address} in the table of local ones is not ours: left alone, and what \
         it says counts as long as it is there"
    )]
    ForeignRoute {
        /// The record.
        record: RecordKey,
        /// The virtual address.
        address: IpAddr,
    },
    /// Two records want the same virtual server; the other one has it.
    #[error("{record}: virtual server {key} already belongs to {holder}")]
    Taken {
        /// The record.
        record: RecordKey,
        /// The virtual server.
        key: VirtualServerKey,
        /// Who has it.
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
        /// The name that the record has.
        name: Arc<str>,
    },
    /// There are more records with short circuits than marks.
    #[error(
        "{record}: no {family} packet mark is free in --short-circuit-mask: connections of this \
         node and its pods to external addresses are held to local destinations"
    )]
    NoMark {
        /// The record.
        record: RecordKey,
        /// The family.
        family: Family,
    },
}

impl Refused {
    /// The record that is affected.
    #[must_use]
    pub fn record(&self) -> &RecordKey {
        match self {
            Self::Foreign { record, .. }
            | Self::ForeignRoute { record, .. }
            | Self::Taken { record, .. }
            | Self::UnknownScheduler { record, .. }
            | Self::NoMark { record, .. } => record,
        }
    }
}

/// Something worth knowing that is no error.
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
    /// Affinity without the scheduler that virtual servers of marks need for it.
    #[error(
        "the kernel has no scheduler mh: connections of this node and its pods to external addresses \
         of Services with externalTrafficPolicy Local have no ClientIP affinity"
    )]
    NoMaglev,
}
