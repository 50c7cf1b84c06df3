// SPDX-License-Identifier: Apache-2.0

//! Methods that bring packets to a server, and clients that stay with it.

use std::time::Duration;

use crate::document::{Method, PersistenceEngine, TunnelChecksum};

/// Forwarding of packets to a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Forwarding {
    /// NAT of the destination, `ipvsadm -m`.
    #[default]
    Masquerade,
    /// The packet unchanged to the server's link-layer address, `ipvsadm -g`.
    Direct,
    /// The packet unchanged within another, `ipvsadm -i`.
    Tunnel(Tunnel),
}

impl Forwarding {
    /// The method, without the tunnel's settings.
    #[must_use]
    pub fn method(self) -> Method {
        match self {
            Self::Masquerade => Method::Masquerade,
            Self::Direct => Method::Direct,
            Self::Tunnel(_) => Method::Tunnel,
        }
    }

    /// Returns `true` if a server can have another port than the frontend.
    #[must_use]
    pub fn translates_ports(self) -> bool {
        self == Self::Masquerade
    }
}

/// The encapsulation of packets to a server, and what it needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Tunnel {
    /// IP in IP.
    #[default]
    Ipip,
    /// Generic UDP encapsulation.
    Gue {
        /// The server's UDP port, never 0.
        port: u16,
        /// The checksum.
        checksum: TunnelChecksum,
    },
    /// Generic routing encapsulation.
    Gre {
        /// Whether packets have a checksum.
        checksum: bool,
    },
}

/// Limits on the connections of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Thresholds {
    /// Connections above which it gets no new ones, inactive ones included; 0 for no limit.
    pub maximum: u32,
    /// Connections below which it gets new ones again, at most `maximum`; 0 for three quarters.
    pub resume: u32,
}

/// Clients that stay with their backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Persistence {
    /// Time without a connection after which a client may change: whole seconds, 1 s to 31 d.
    pub timeout: Duration,
    /// IPv4 clients with equal first bits count as one; 1 to 32.
    pub ipv4_prefix_length: u8,
    /// IPv6 clients with equal first bits count as one; 1 to 128.
    pub ipv6_prefix_length: u8,
    /// Identifier of a client instead of its address.
    pub engine: Option<PersistenceEngine>,
}

impl Default for Persistence {
    /// Six minutes, as `ipvsadm` and keepalived have it.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(360),
            ipv4_prefix_length: 32,
            ipv6_prefix_length: 128,
            engine: None,
        }
    }
}
