// SPDX-License-Identifier: Apache-2.0

//! Places that clients connect to.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::{Families, Family, Protocol};

/// One entry of `frontends`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// Its name, unique in the object.
    pub name: String,
    /// The packets that are its own.
    pub packets: Packets,
    /// Clients that may connect; all if empty.
    pub source_ranges: Vec<IpNet>,
}

/// The packets of a frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packets {
    /// Packets to addresses and one port.
    Port {
        /// The addresses, unicast, at least one.
        addresses: Vec<IpAddr>,
        /// The protocol.
        protocol: Protocol,
        /// The port; 0 for all, and then the object has persistence.
        port: u16,
    },
    /// Packets to addresses and any of several ports: a virtual server per family, by a mark that
    /// the agent chooses and sets.
    Ranges {
        /// The addresses, unicast, at least one.
        addresses: Vec<IpAddr>,
        /// The protocol.
        protocol: Protocol,
        /// The ports: inclusive ranges, ascending, apart from each other, without 0.
        ports: Vec<(u16, u16)>,
    },
    /// Packets with a firewall mark that rules of the operator set.
    Mark {
        /// The mark, never 0.
        mark: u32,
        /// Families of the virtual servers, at least one.
        families: Families,
    },
}

impl Frontend {
    /// Returns the claims of its virtual servers.
    #[must_use]
    pub fn claims(&self) -> Vec<Claim> {
        self.packets.claims()
    }
}

impl Packets {
    /// The families of its virtual servers.
    #[must_use]
    pub fn families(&self) -> Families {
        match self {
            Self::Mark { families, .. } => *families,
            _ => self.addresses().iter().copied().map(Family::of).collect(),
        }
    }

    /// Its addresses; a mark has none.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        match self {
            Self::Port { addresses, .. } | Self::Ranges { addresses, .. } => addresses,
            Self::Mark { .. } => &[],
        }
    }

    /// Its protocol; a mark serves all.
    #[must_use]
    pub fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Port { protocol, .. } | Self::Ranges { protocol, .. } => Some(*protocol),
            Self::Mark { .. } => None,
        }
    }

    /// Its port, if it has exactly one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Port { port, .. } => Some(*port).filter(|port| *port != 0),
            _ => None,
        }
    }

    /// Returns `true` if the kernel finds its virtual servers by a mark.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        !matches!(self, Self::Port { .. })
    }

    /// The name of a frontend whose file names none: `tcp-80`, `tcp-21-20000-20999`, `mark-7`.
    #[must_use]
    pub fn default_name(&self) -> String {
        match self {
            Self::Port { protocol, port, .. } => {
                format!("{}-{port}", protocol.as_str().to_lowercase())
            }
            Self::Ranges {
                protocol, ports, ..
            } => {
                let ports = ranges_text(ports).replace(',', "-");
                let mut name = format!("{}-{ports}", protocol.as_str().to_lowercase());
                // A name has 63 characters at most; the ports are ASCII.
                name.truncate(63);
                name.trim_end_matches('-').to_owned()
            }
            Self::Mark { mark, .. } => format!("mark-{mark}"),
        }
    }

    /// Returns the claims of its virtual servers.
    fn claims(&self) -> Vec<Claim> {
        let of_addresses = |addresses: &[IpAddr], protocol, ports: &[(u16, u16)]| {
            let claims = addresses.iter().flat_map(|address| {
                ports.iter().map(move |(first, last)| Claim::Ports {
                    address: *address,
                    protocol,
                    first: *first,
                    last: *last,
                })
            });
            claims.collect()
        };
        match self {
            Self::Port {
                addresses,
                protocol,
                port,
            } => of_addresses(addresses, *protocol, &[(*port, *port)]),
            Self::Ranges {
                addresses,
                protocol,
                ports,
            } => of_addresses(addresses, *protocol, ports),
            Self::Mark { mark, families } => {
                let claims = families.iter().map(|family| Claim::Mark {
                    mark: *mark,
                    family,
                });
                claims.collect()
            }
        }
    }
}

/// Ranges of ports as a file spells them.
pub(crate) fn ranges_text(ports: &[(u16, u16)]) -> String {
    let parts: Vec<String> = ports
        .iter()
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect();
    parts.join(",")
}

/// Claim of one virtual server: only one may have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// An address, a protocol and a range of ports; 0 alone is a range of its own, since any
    /// exact port goes before it.
    Ports {
        /// The address.
        address: IpAddr,
        /// The protocol.
        protocol: Protocol,
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
    },
    /// A firewall mark in a family.
    Mark {
        /// The mark.
        mark: u32,
        /// The family.
        family: Family,
    },
}

impl Claim {
    /// Returns the key that a claim shares with every other one that may overlap it.
    pub(crate) fn group(&self) -> (Option<IpAddr>, Option<Protocol>, Option<(u32, Family)>) {
        match self {
            Self::Ports {
                address, protocol, ..
            } => (Some(*address), Some(*protocol), None),
            Self::Mark { mark, family } => (None, None, Some((*mark, *family))),
        }
    }

    /// Returns `true` if no packet may have both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let range = |claim: &Self| match claim {
            Self::Ports { first, last, .. } => (*first, *last),
            Self::Mark { .. } => (0, 0),
        };
        let ((first, last), (other_first, other_last)) = (range(self), range(other));
        self.group() == other.group() && first <= other_last && other_first <= last
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ports {
                address,
                protocol,
                first,
                last,
            } => {
                let ports = ranges_text(&[(*first, *last)]);
                match address {
                    IpAddr::V4(address) => write!(f, "{protocol} {address}:{ports}"),
                    IpAddr::V6(address) => write!(f, "{protocol} [{address}]:{ports}"),
                }
            }
            Self::Mark { mark, family } => write!(f, "mark {mark} of {family}"),
        }
    }
}
