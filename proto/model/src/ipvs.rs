// SPDX-License-Identifier: Apache-2.0

//! IPVS objects, as `ipvsadm -Ln` shows them (kernel: `include/uapi/linux/ip_vs.h`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Family, Protocol};

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

    /// The family of the virtual server and, as we only masquerade, of all its real servers.
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
}

impl VirtualServerConfig {
    /// Round robin without flags or persistence: kube-proxy's default.
    #[must_use]
    pub fn round_robin() -> Self {
        Self {
            scheduler: Cow::Borrowed("rr"),
            flags: Flags::default(),
            persistence: None,
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

/// How a packet reaches a real server (`IP_VS_CONN_F_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ForwardingMethod {
    /// NAT, `ipvsadm -m`; the method of Kubernetes Services.
    Masquerade,
    /// The node itself.
    Local,
    /// IP-in-IP or another tunnel, `ipvsadm -i`.
    Tunnel,
    /// Direct routing, `ipvsadm -g`.
    Direct,
}

/// The settings of a real server, without its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RealServerConfig {
    /// Share of new connections, 0 (none, keeps its old ones) to 2^31 - 1.
    pub weight: u32,
    /// How packets reach it.
    pub forwarding: ForwardingMethod,
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

/// Real servers by address and port.
pub type RealServers = BTreeMap<SocketAddr, RealServerConfig>;

/// A virtual server with its real servers, as desired or as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualServer {
    /// Its settings.
    pub config: VirtualServerConfig,
    /// Its real servers. Desired and observed state share them while they are equal.
    pub real_servers: Arc<RealServers>,
}
