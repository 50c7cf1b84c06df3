// SPDX-License-Identifier: Apache-2.0

//! ipset objects (kernel: `include/uapi/linux/netfilter/ipset/`), the types that kube-proxy uses.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Family, Protocol};

/// A set's name is at most this many bytes (`IPSET_MAXNAMELEN` less the NUL).
pub const MAX_NAME_LEN: usize = 31;

/// The type of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SetKind {
    /// `hash:ip`.
    HashIp,
    /// `hash:ip,port`.
    HashIpPort,
    /// `hash:ip,port` whose entries have a packet mark (`skbinfo`), which `-j SET --map-set` gives
    /// to packets.
    HashIpPortMark,
    /// `hash:ip,port,ip`.
    HashIpPortIp,
    /// `hash:ip,port,net`.
    HashIpPortNet,
    /// `bitmap:port`, range 0-65535; has no address family.
    BitmapPort,
}

impl SetKind {
    /// The kernel's name of the type.
    #[must_use]
    pub fn type_name(self) -> &'static str {
        match self {
            Self::HashIp => "hash:ip",
            Self::HashIpPort | Self::HashIpPortMark => "hash:ip,port",
            Self::HashIpPortIp => "hash:ip,port,ip",
            Self::HashIpPortNet => "hash:ip,port,net",
            Self::BitmapPort => "bitmap:port",
        }
    }

    /// The type of a kernel name, or `None` for an unused one. `marks` tells whether the set has
    /// `skbinfo`, which the kernel does not count as another type.
    #[must_use]
    pub fn from_type_name(name: &str, marks: bool) -> Option<Self> {
        let kind = [
            Self::HashIp,
            Self::HashIpPort,
            Self::HashIpPortIp,
            Self::HashIpPortNet,
            Self::BitmapPort,
        ]
        .into_iter()
        .find(|kind| kind.type_name() == name)?;
        Some(match kind {
            Self::HashIpPort if marks => Self::HashIpPortMark,
            kind => kind,
        })
    }
}

/// A set without its entries.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SetHeader {
    /// Its type.
    pub kind: SetKind,
    /// Its family; for `bitmap:port`, which has none, the family of the rules that refer to it.
    pub family: Family,
    /// Maximum number of entries of a hash set; ignored for `bitmap:port`. kube-proxy's is 65536.
    pub max_entries: u32,
}

/// One entry of a set. Its variant must be that of the set's [`SetKind`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SetEntry {
    /// Of `hash:ip`.
    Ip(IpAddr),
    /// Of `hash:ip,port`.
    IpPort(IpAddr, Protocol, u16),
    /// Of `hash:ip,port` with `skbinfo`: the last is the mark, all 32 bits of it. Address, protocol
    /// and port alone identify the entry; see [`SetEntry::identity`].
    IpPortMark(IpAddr, Protocol, u16, u32),
    /// Of `hash:ip,port,ip`.
    IpPortIp(IpAddr, Protocol, u16, IpAddr),
    /// Of `hash:ip,port,net`. The network's prefix length is 1 at least: the kernel has no `/0`.
    IpPortNet(IpAddr, Protocol, u16, IpNet),
    /// Of `bitmap:port`.
    Port(u16),
}

impl SetEntry {
    /// The identifying part of the entry. The kernel treats entries of the same identity as one:
    /// adding one changes the other, and deleting one deletes the other.
    #[must_use]
    pub fn identity(&self) -> Self {
        match self {
            Self::IpPortMark(ip, protocol, port, _) => Self::IpPortMark(*ip, *protocol, *port, 0),
            other => other.clone(),
        }
    }
}

impl fmt::Display for SetEntry {
    /// As `ipset save` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lower = |protocol: &Protocol| protocol.as_str().to_ascii_lowercase();
        match self {
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::IpPort(ip, protocol, port) => write!(f, "{ip},{}:{port}", lower(protocol)),
            Self::IpPortMark(ip, protocol, port, mark) => {
                let protocol = lower(protocol);
                write!(f, "{ip},{protocol}:{port} skbmark {mark:#x}")
            }
            Self::IpPortIp(ip, protocol, port, ip2) => {
                write!(f, "{ip},{}:{port},{ip2}", lower(protocol))
            }
            Self::IpPortNet(ip, protocol, port, net) => {
                write!(f, "{ip},{}:{port},{net}", lower(protocol))
            }
            Self::Port(port) => write!(f, "{port}"),
        }
    }
}

/// A set with its entries, as desired or as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set {
    /// Type, family and size.
    pub header: SetHeader,
    /// Its entries.
    pub entries: BTreeSet<SetEntry>,
}

impl Set {
    /// The entry with the identity of another one, if there is one.
    #[must_use]
    pub fn of_identity(&self, entry: &SetEntry) -> Option<&SetEntry> {
        let identity = entry.identity();
        // A mark comes last in the order, and that of an identity is the smallest.
        let mut from = self.entries.range(identity.clone()..);
        from.next().filter(|found| found.identity() == identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_by_its_identity_whatever_its_mark() {
        let at = |port, mark| SetEntry::IpPortMark([10, 0, 0, 1].into(), Protocol::Tcp, port, mark);
        let set = |entries: &[SetEntry]| Set {
            header: SetHeader {
                kind: SetKind::HashIpPortMark,
                family: Family::V4,
                max_entries: 8,
            },
            entries: entries.iter().cloned().collect(),
        };
        let marked = set(&[at(80, 7), at(81, 0), at(83, u32::MAX)]);
        for (port, found) in [
            (80, Some(7)),
            (81, Some(0)),
            (82, None),
            (83, Some(u32::MAX)),
        ] {
            let expected = found.map(|mark| at(port, mark));
            assert_eq!(
                marked.of_identity(&at(port, 9)),
                expected.as_ref(),
                "{port}"
            );
        }
        let plain = set(&[SetEntry::Port(80)]);
        assert_eq!(
            plain.of_identity(&SetEntry::Port(80)),
            Some(&SetEntry::Port(80))
        );
        assert_eq!(plain.of_identity(&SetEntry::Port(79)), None);
    }
}
