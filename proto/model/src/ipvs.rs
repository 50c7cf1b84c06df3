// SPDX-License-Identifier: Apache-2.0

//! IPVS objects, as `ipvsadm -Ln` shows them (kernel: `include/uapi/linux/ip_vs.h`).

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Family, Protocol};

mod real_servers;
mod sync;

pub use real_servers::RealServers;
pub use sync::{SyncDaemon, SyncRole};

/// The identity of a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum VirtualServerKey {
    /// Packets to an address and port.
    Address {
        /// The transport protocol.
        protocol: Protocol,
        /// The address that clients connect to.
        address: IpAddr,
        /// The port that clients connect to.
        port: u16,
    },
    /// Packets with a firewall mark, of any protocol, address and port. The kernel looks for a mark
    /// first.
    Mark {
        /// The family; the same mark of the other family is another virtual server.
        family: Family,
        /// The mark, all 32 bits of it; never 0, which is no mark.
        mark: u32,
    },
}

impl VirtualServerKey {
    /// The virtual server of an address and port.
    #[must_use]
    pub fn new(protocol: Protocol, address: IpAddr, port: u16) -> Self {
        Self::Address {
            protocol,
            address,
            port,
        }
    }

    /// The family of the virtual server. Real servers of the other family are reached by tunnels only.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Self::Address { address, .. } => Family::of(*address),
            Self::Mark { family, .. } => *family,
        }
    }

    /// The address and port that clients connect to; a mark has none.
    #[must_use]
    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Self::Address { address, port, .. } => Some(SocketAddr::new(*address, *port)),
            Self::Mark { .. } => None,
        }
    }

    /// The transport protocol; a mark has none.
    #[must_use]
    pub fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Address { protocol, .. } => Some(*protocol),
            Self::Mark { .. } => None,
        }
    }

    /// The firewall mark, if it has one.
    #[must_use]
    pub fn mark(&self) -> Option<u32> {
        match self {
            Self::Address { .. } => None,
            Self::Mark { mark, .. } => Some(*mark),
        }
    }
}

impl fmt::Display for VirtualServerKey {
    /// As `ipvsadm` prints it, and the family of a mark.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address {
                protocol,
                address,
                port,
            } => write!(f, "{protocol} {}", SocketAddr::new(*address, *port)),
            Self::Mark { family, mark } => write!(f, "FWM {mark} {family}"),
        }
    }
}

/// The schedulers of the Linux kernel (`net/netfilter/ipvs/ip_vs_*.c`). For any other name the
/// kernel looks for a module `ip_vs_NAME`, so a name from elsewhere is checked against these.
pub const SCHEDULERS: [&str; 14] = [
    "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos",
];

/// The scheduler of [`SCHEDULERS`] that has a name.
#[must_use]
pub fn scheduler(name: &str) -> Option<&'static str> {
    SCHEDULERS.into_iter().find(|known| *known == name)
}

/// The settings of a virtual server, without its real servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VirtualServerConfig {
    /// The scheduler's kernel name (`rr`, `wrr`, `lc`, `mh` ...; 15 bytes at most).
    pub scheduler: Cow<'static, str>,
    /// The scheduler's flags `IP_VS_SVC_F_SCHED1..3` and one-packet scheduling; see [`Flags`].
    pub flags: Flags,
    /// Time for which a client stays with its real server, in seconds; `None` without persistence.
    pub persistence: Option<u32>,
    /// Netmask of clients that count as one for persistence: a mask of their addresses for IPv4, in host order, with
    /// 1-bits anywhere; a prefix length of 1 to 127 for IPv6. `None` if each address is a client of its own.
    pub netmask: Option<u32>,
    /// Persistence engine, 1 to 15 bytes; `sip` is the only one of Linux. `None` for the client's address.
    pub engine: Option<Cow<'static, str>>,
}

impl VirtualServerConfig {
    /// Round robin without flags or persistence: kube-proxy's default.
    #[must_use]
    pub fn round_robin() -> Self {
        Self {
            scheduler: Cow::Borrowed("rr"),
            flags: Flags::default(),
            persistence: None,
            netmask: None,
            engine: None,
        }
    }
}

/// Virtual server flags that a user can choose (`ip_vs.h`, `IP_VS_SVC_F_*`). The kernel's own
/// `PERSISTENT` (1) follows from [`VirtualServerConfig::persistence`], its `HASHED` (2) is never
/// part of a comparison.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Flags(pub u32);

impl Flags {
    /// One-packet scheduling, UDP only.
    pub const ONE_PACKET: u32 = 0x0004;
    /// `sched-flag-1`: the fallback of sh and mh.
    pub const SCHED1: u32 = 0x0008;
    /// `sched-flag-2`: sh and mh hash the source port too.
    pub const SCHED2: u32 = 0x0010;
    /// `sched-flag-3`.
    pub const SCHED3: u32 = 0x0020;
    /// All flags that a user can choose; everything else is masked off.
    pub const MASK: u32 = Self::ONE_PACKET | Self::SCHED1 | Self::SCHED2 | Self::SCHED3;
}

/// Forwarding method of packets to a real server (`IP_VS_CONN_F_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ForwardingMethod {
    /// NAT, `ipvsadm -m`; the method of Kubernetes Services.
    Masquerade,
    /// The node itself.
    Local,
    /// A tunnel, `ipvsadm -i`.
    Tunnel(Tunnel),
    /// Direct routing, `ipvsadm -g`.
    Direct,
}

/// Encapsulation of packets to a real server (`IP_VS_CONN_F_TUNNEL_TYPE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tunnel {
    /// IP in IP.
    Ipip,
    /// Generic UDP encapsulation.
    Gue {
        /// Destination port of the outer datagrams, 1 to 65,535.
        port: u16,
        /// Their checksum.
        checksum: GueChecksum,
    },
    /// Generic routing encapsulation.
    Gre {
        /// Whether the header has a checksum.
        checksum: bool,
    },
}

/// Checksum of GUE (`IP_VS_TUNNEL_ENCAP_FLAG_*`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum GueChecksum {
    /// No checksum.
    #[default]
    None,
    /// The outer datagram's.
    Full,
    /// The outer datagram's, which stands in for that of the inner packet (remote checksum offload).
    Remote,
}

/// The settings of a real server, without its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RealServerConfig {
    /// Share of new connections, 0 (none, keeps its old ones) to 2^31 - 1.
    pub weight: u32,
    /// Forwarding method of packets to it.
    pub forwarding: ForwardingMethod,
    /// Limits of its connections.
    pub thresholds: Thresholds,
}

impl RealServerConfig {
    /// A real server reached by masquerading, without thresholds.
    #[must_use]
    pub fn masquerade(weight: u32) -> Self {
        Self {
            weight,
            forwarding: ForwardingMethod::Masquerade,
            thresholds: Thresholds::default(),
        }
    }
}

/// Limits of a real server's connections, active and inactive ones together.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Thresholds {
    /// At this number it gets no new ones; 0 for no limit, at most 2^31 - 1.
    pub upper: u32,
    /// Below this number it gets new ones again; 0 for three quarters of `upper`, at most `upper`.
    pub lower: u32,
}

/// Numbers of connections of a real server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Established ones (`ActiveConn`).
    pub active: u32,
    /// All others that the kernel still remembers (`InActConn`).
    pub inactive: u32,
    /// Persistence templates.
    pub persistent: u32,
}

/// A virtual server with its real servers, as desired or as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualServer {
    /// Its settings. Most virtual servers have the same, and share them; see [`SharedConfigs`].
    pub config: Arc<VirtualServerConfig>,
    /// Its real servers. Desired and observed state share them while they are equal.
    pub real_servers: Arc<RealServers>,
}

/// Settings of virtual servers, each held once: most virtual servers of a node have the same ones.
#[derive(Debug, Clone, Default)]
pub struct SharedConfigs(HashSet<Arc<VirtualServerConfig>>);

impl SharedConfigs {
    /// The shared copy of these settings.
    #[must_use]
    pub fn share(&mut self, config: VirtualServerConfig) -> Arc<VirtualServerConfig> {
        if let Some(shared) = self.0.get(&config) {
            return Arc::clone(shared);
        }
        let shared = Arc::new(config);
        self.0.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_settings_are_held_once() {
        let mut configs = SharedConfigs::default();
        let first = configs.share(VirtualServerConfig::round_robin());
        let second = configs.share(VirtualServerConfig::round_robin());
        let persistent = VirtualServerConfig {
            persistence: Some(60),
            ..VirtualServerConfig::round_robin()
        };
        let third = configs.share(persistent.clone());
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(*third, persistent);
    }
}
