// SPDX-License-Identifier: Apache-2.0

//! State of the kernel that the agent manages, and the steps that change it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::Family;
use portolan_model::ipset::{Set, SetEntry, SetHeader};
use portolan_model::ipvs::{
    RealServerConfig, RealServers, VirtualServer, VirtualServerConfig, VirtualServerKey,
};
use serde::Serialize;

use crate::Rules;

/// Observed or desired state of the kernel objects that the agent manages.
///
/// An observed state also contains foreign virtual servers and sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelState {
    /// The ipsets by name.
    pub sets: BTreeMap<String, Set>,
    /// Masquerade and filter rules in place, unchanged since the agent wrote them.
    pub rules: BTreeMap<Family, Rules>,
    /// Our local routes: VIP, and source address of the node's own connections to it.
    pub routes: BTreeMap<IpAddr, Option<IpAddr>>,
    /// Addresses with a foreign route in the `local` table.
    pub foreign_routes: BTreeSet<IpAddr>,
    /// The virtual servers.
    pub virtual_servers: BTreeMap<VirtualServerKey, VirtualServer>,
    /// Our virtual servers that the ownership record lacks; see [`Self::recover`].
    pub recovered: BTreeSet<VirtualServerKey>,
}

/// One change of the kernel. Each is idempotent: after a crash it may be repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Step {
    /// Creates a set, empty.
    CreateSet {
        /// Its name.
        name: String,
        /// Its type, family and size.
        header: SetHeader,
    },
    /// Puts a new set in the place of one that is too small or of another type, atomically.
    ReplaceSet {
        /// Its name.
        name: String,
        /// The new set.
        set: Box<Set>,
    },
    /// Adds entries to a set.
    AddEntries {
        /// The set.
        name: String,
        /// The entries, in order.
        entries: Arc<Vec<SetEntry>>,
    },
    /// Deletes entries from a set.
    DelEntries {
        /// The set.
        name: String,
        /// The entries, in order.
        entries: Arc<Vec<SetEntry>>,
    },
    /// Writes all rules of a family, atomically per table.
    WriteRules {
        /// The family.
        family: Family,
        /// The rules.
        rules: Box<Rules>,
    },
    /// Adds a local route for a VIP.
    AddRoute {
        /// The VIP.
        vip: IpAddr,
        /// The source of the node's own connections to it.
        source: Option<IpAddr>,
    },
    /// Gives the local route of a VIP another source.
    SetRoute {
        /// The VIP.
        vip: IpAddr,
        /// The source of the node's own connections to it.
        source: Option<IpAddr>,
    },
    /// Deletes the local route of a VIP.
    DelRoute {
        /// The VIP.
        vip: IpAddr,
    },
    /// Adds a virtual server without real servers.
    AddVirtualServer {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its new configuration.
        config: Arc<VirtualServerConfig>,
    },
    /// Changes a virtual server in place.
    SetVirtualServer {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its new configuration.
        config: Arc<VirtualServerConfig>,
    },
    /// Deletes a virtual server with its real servers.
    DelVirtualServer {
        /// The virtual server.
        key: VirtualServerKey,
    },
    /// Adds the real servers of a virtual server that has none, one by one.
    FillVirtualServer {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its new configuration.
        real_servers: Arc<RealServers>,
    },
    /// Adds a real server.
    AddRealServer {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its address.
        address: SocketAddr,
        /// Its new configuration.
        config: RealServerConfig,
    },
    /// Changes a real server in place.
    SetRealServer {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its address.
        address: SocketAddr,
        /// Its new configuration.
        config: RealServerConfig,
    },
    /// Deletes a real server.
    DelRealServer {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its address.
        address: SocketAddr,
    },
}

impl Step {
    /// The virtual server that the step changes, if any.
    #[must_use]
    pub fn virtual_server(&self) -> Option<&VirtualServerKey> {
        match self {
            Self::AddVirtualServer { key, .. }
            | Self::SetVirtualServer { key, .. }
            | Self::DelVirtualServer { key }
            | Self::FillVirtualServer { key, .. }
            | Self::AddRealServer { key, .. }
            | Self::SetRealServer { key, .. }
            | Self::DelRealServer { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The entries that the step adds to a set.
    #[must_use]
    pub fn added_entries(&self) -> Vec<SetEntry> {
        match self {
            Self::AddEntries { entries, .. } => entries.to_vec(),
            Self::ReplaceSet { set, .. } => set.entries.iter().cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the number of objects of the kernel that the step changes.
    #[must_use]
    pub fn objects(&self) -> usize {
        match self {
            Self::AddEntries { entries, .. } | Self::DelEntries { entries, .. } => entries.len(),
            Self::ReplaceSet { set, .. } => set.entries.len() + 1,
            Self::FillVirtualServer { real_servers, .. } => real_servers.len(),
            _ => 1,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateSet { name, header } => {
                write!(f, "create set {name} ({})", header.kind.type_name())
            }
            Self::ReplaceSet { name, set } => {
                write!(f, "replace set {name} ({} entries)", set.entries.len())
            }
            Self::AddEntries { name, entries } => {
                write!(f, "add {} entries to set {name}", entries.len())
            }
            Self::DelEntries { name, entries } => {
                write!(f, "delete {} entries from set {name}", entries.len())
            }
            Self::WriteRules { family, .. } => write!(f, "write the {family} rules"),
            Self::AddRoute { vip, .. } => write!(f, "add local route {vip}"),
            Self::SetRoute { vip, .. } => write!(f, "set local route {vip}"),
            Self::DelRoute { vip } => write!(f, "delete local route {vip}"),
            Self::AddVirtualServer { key, .. } => write!(f, "add virtual server {key}"),
            Self::SetVirtualServer { key, .. } => write!(f, "set virtual server {key}"),
            Self::DelVirtualServer { key } => write!(f, "delete virtual server {key}"),
            Self::FillVirtualServer { key, real_servers } => {
                let addresses: Vec<_> = real_servers.keys().map(|a| a.to_string()).collect();
                write!(f, "add real servers {} to {key}", addresses.join(", "))
            }
            Self::AddRealServer { key, address, .. } => {
                write!(f, "add real server {address} to {key}")
            }
            Self::SetRealServer { key, address, .. } => {
                write!(f, "set real server {address} of {key}")
            }
            Self::DelRealServer { key, address } => {
                write!(f, "delete real server {address} of {key}")
            }
        }
    }
}
