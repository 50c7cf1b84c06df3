// SPDX-License-Identifier: Apache-2.0

//! The state of the kernel, and the steps that change it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use portolan_model::ipvs::{SyncDaemon, SyncRole};
use serde::Serialize;

/// Timeouts of connections without packets, in seconds. When they are set, 0 leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Timeouts {
    /// Of an established TCP connection.
    pub tcp: u32,
    /// Of a TCP connection that is closing.
    pub tcp_fin: u32,
    /// Of UDP.
    pub udp: u32,
}

impl Timeouts {
    /// Those that another one lacks; 0 for the others.
    #[must_use]
    pub fn missing_from(&self, observed: &Self) -> Self {
        let one = |wanted: u32, there| if wanted == there { 0 } else { wanted };
        Self {
            tcp: one(self.tcp, observed.tcp),
            tcp_fin: one(self.tcp_fin, observed.tcp_fin),
            udp: one(self.udp, observed.udp),
        }
    }

    /// These, and another's where these are 0.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let one = |first, second| if first == 0 { second } else { first };
        Self {
            tcp: one(self.tcp, other.tcp),
            tcp_fin: one(self.tcp_fin, other.tcp_fin),
            udp: one(self.udp, other.udp),
        }
    }
}

/// An address for which an interface answers neighbour solicitations.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Neighbour {
    /// The interface.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
}

/// Observed state of a host's settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostState {
    /// The timeouts in force.
    pub timeouts: Timeouts,
    /// Values of the settings that were asked about, fields separated by one space; the reason why one cannot
    /// be read.
    pub sysctls: BTreeMap<String, Result<String, String>>,
    /// All sync daemons, also those of an operator.
    pub daemons: BTreeMap<SyncRole, SyncDaemon>,
    /// Our proxy neighbours.
    pub neighbours: BTreeSet<Neighbour>,
    /// Our routes in tables that were asked about.
    pub announced: BTreeSet<(u32, IpAddr)>,
}

/// One change of a host's settings. Each is idempotent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum HostStep {
    /// Sets the timeouts that are not 0.
    SetTimeouts(Timeouts),
    /// Writes a setting.
    SetSysctl {
        /// Its name.
        name: String,
        /// Its new value.
        value: String,
    },
    /// Starts a sync daemon.
    AddDaemon {
        /// Its role.
        role: SyncRole,
        /// Its configuration.
        daemon: SyncDaemon,
    },
    /// Stops the sync daemon of a role.
    DelDaemon {
        /// Its role.
        role: SyncRole,
    },
    /// Lets an interface answer for an address.
    AddNeighbour(Neighbour),
    /// Ends that.
    DelNeighbour(Neighbour),
    /// Adds the route by which a routing daemon announces an address.
    Announce {
        /// The table.
        table: u32,
        /// The address.
        vip: IpAddr,
    },
    /// Deletes that route.
    Withdraw {
        /// The table.
        table: u32,
        /// The address.
        vip: IpAddr,
    },
}

impl HostStep {
    /// Returns `true` if it ends something.
    #[must_use]
    pub fn is_removal(&self) -> bool {
        matches!(
            self,
            Self::DelDaemon { .. } | Self::DelNeighbour(_) | Self::Withdraw { .. }
        )
    }
}

impl HostState {
    /// Applies the effect of a step that the kernel executed.
    pub fn advance(&mut self, step: &HostStep) {
        match step {
            HostStep::SetTimeouts(timeouts) => self.timeouts = timeouts.or(&self.timeouts),
            HostStep::SetSysctl { name, value } => {
                self.sysctls.insert(name.clone(), Ok(value.clone()));
            }
            HostStep::AddDaemon { role, daemon } => {
                self.daemons.insert(*role, daemon.clone());
            }
            HostStep::DelDaemon { role } => drop(self.daemons.remove(role)),
            HostStep::AddNeighbour(neighbour) => drop(self.neighbours.insert(neighbour.clone())),
            HostStep::DelNeighbour(neighbour) => drop(self.neighbours.remove(neighbour)),
            HostStep::Announce { table, vip } => drop(self.announced.insert((*table, *vip))),
            HostStep::Withdraw { table, vip } => drop(self.announced.remove(&(*table, *vip))),
        }
    }
}

impl fmt::Display for HostStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetTimeouts(_) => write!(f, "set the timeouts of connections"),
            Self::SetSysctl { name, value } => write!(f, "set {name} = {value}"),
            Self::AddDaemon { role, daemon } => {
                write!(f, "start the sync daemon {role} on {}", daemon.interface)
            }
            Self::DelDaemon { role } => write!(f, "stop the sync daemon {role}"),
            Self::AddNeighbour(Neighbour { interface, address }) => {
                write!(f, "let {interface} answer for {address}")
            }
            Self::DelNeighbour(Neighbour { interface, address }) => {
                write!(f, "let {interface} no longer answer for {address}")
            }
            Self::Announce { table, vip } => write!(f, "announce {vip} by table {table}"),
            Self::Withdraw { table, vip } => write!(f, "withdraw {vip} from table {table}"),
        }
    }
}
