// SPDX-License-Identifier: Apache-2.0

//! The sync daemon: connections that one director tells others about.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

/// Role of a sync daemon. A network namespace has at most one daemon of each role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SyncRole {
    /// It sends this director's connections.
    Master,
    /// It receives the connections of others.
    Backup,
}

impl SyncRole {
    /// Both roles.
    pub const ALL: [Self; 2] = [Self::Master, Self::Backup];
}

impl std::fmt::Display for SyncRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Master => "master",
            Self::Backup => "backup",
        })
    }
}

/// Configuration of a sync daemon.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SyncDaemon {
    /// The interface to the other directors, 1 to 15 bytes.
    pub interface: String,
    /// Directors with equal ids share connections; a backup with 0 takes those of all.
    pub id: u8,
    /// Largest message in bytes. The kernel limits it; see [`Self::is_in_force`].
    pub max_length: u16,
    /// The multicast group.
    pub group: IpAddr,
    /// The UDP port of the first thread, never 0.
    pub port: u16,
    /// Time to live of the packets, never 0.
    pub ttl: u8,
}

/// The least length of a backup's messages.
const LEAST_OF_BACKUP: u16 = 1024;

impl SyncDaemon {
    /// A daemon on an interface with the kernel's defaults.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            id: 0,
            max_length: 1472,
            group: IpAddr::V4(Ipv4Addr::new(224, 0, 0, 81)),
            port: 8848,
            ttl: 1,
        }
    }

    /// Returns `true` if the kernel has this daemon. It lengthens a backup's short messages, and
    /// shortens those that no packet holds (`start_sync_thread`).
    #[must_use]
    pub fn is_in_force(&self, role: SyncRole, observed: &Self) -> bool {
        let but_length = Self {
            max_length: self.max_length,
            ..observed.clone()
        };
        but_length == *self && self.is_length_of(role, observed.max_length)
    }

    fn is_length_of(&self, role: SyncRole, observed: u16) -> bool {
        let headers = match self.group {
            IpAddr::V4(_) => 20 + 8,
            IpAddr::V6(_) => 40 + 8,
        };
        let least = match role {
            SyncRole::Master => 1,
            SyncRole::Backup => LEAST_OF_BACKUP,
        };
        observed == self.max_length.clamp(least, u16::MAX - headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(asked: &SyncDaemon, role: SyncRole, length: u16) -> bool {
        let observed = SyncDaemon {
            max_length: length,
            ..asked.clone()
        };
        asked.is_in_force(role, &observed)
    }

    #[test]
    fn lengths_that_the_kernel_changes_are_in_force() {
        use SyncRole::{Backup, Master};
        let default = SyncDaemon::new("eth0");
        assert!(observed(&default, Master, 1472) && observed(&default, Backup, 1472));
        assert!(!observed(&default, Master, 1471));
        let of_length = |max_length| SyncDaemon {
            max_length,
            ..SyncDaemon::new("eth0")
        };
        let short = of_length(500);
        assert!(observed(&short, Master, 500) && observed(&short, Backup, 1024));
        assert!(!observed(&short, Backup, 500));
        let long = of_length(65_535);
        assert!(observed(&long, Master, 65_507) && observed(&long, Backup, 65_507));
        let group = "ff02::81".parse().unwrap();
        let v6 = SyncDaemon { group, ..long };
        assert!(observed(&v6, Master, 65_487));
    }

    #[test]
    fn every_other_field_counts() {
        let asked = SyncDaemon::new("eth0");
        let other = [
            SyncDaemon::new("eth1"),
            SyncDaemon {
                id: 1,
                ..asked.clone()
            },
            SyncDaemon {
                port: 8849,
                ..asked.clone()
            },
            SyncDaemon {
                ttl: 2,
                ..asked.clone()
            },
            SyncDaemon {
                group: "224.0.0.82".parse().unwrap(),
                ..asked.clone()
            },
        ];
        for observed in other {
            assert!(!asked.is_in_force(SyncRole::Master, &observed));
        }
    }
}
