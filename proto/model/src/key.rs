// SPDX-License-Identifier: Apache-2.0

//! Protocols, address families, nodes, and the key of a record.

use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A transport protocol that a Service port can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP, IP protocol number 6.
    #[serde(rename = "TCP")]
    Tcp,
    /// UDP, IP protocol number 17.
    #[serde(rename = "UDP")]
    Udp,
    /// SCTP, IP protocol number 132.
    #[serde(rename = "SCTP")]
    Sctp,
}

impl Protocol {
    /// The IANA protocol number, as the kernel's netlink interfaces take it.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol of an IANA number, or `None` if it is not one that a Service port can have.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            132 => Some(Self::Sctp),
            _ => None,
        }
    }

    /// The upper-case name used in Kubernetes objects.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A protocol name that is not `TCP`, `UDP` or `SCTP`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown protocol {0:?}: expected TCP, UDP or SCTP")]
pub struct ParseProtocolError(pub String);

impl FromStr for Protocol {
    type Err = ParseProtocolError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "TCP" => Ok(Self::Tcp),
            "UDP" => Ok(Self::Udp),
            "SCTP" => Ok(Self::Sctp),
            other => Err(ParseProtocolError(other.to_owned())),
        }
    }
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Self::V4
        } else {
            Self::V6
        }
    }

    /// The name used in Kubernetes objects.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// A set of address families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Families(u8);

impl Families {
    /// Neither family.
    pub const NONE: Self = Self(0);

    /// Returns `true` if a family is in the set.
    #[must_use]
    pub fn contains(self, family: Family) -> bool {
        self.0 & Self::bit(family) != 0
    }

    /// Puts a family into the set.
    pub fn insert(&mut self, family: Family) {
        self.0 |= Self::bit(family);
    }

    /// Returns `true` if the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its members, IPv4 first.
    pub fn iter(self) -> impl Iterator<Item = Family> {
        Family::ALL.into_iter().filter(move |f| self.contains(*f))
    }

    fn bit(family: Family) -> u8 {
        match family {
            Family::V4 => 1,
            Family::V6 => 2,
        }
    }
}

impl FromIterator<Family> for Families {
    fn from_iter<I: IntoIterator<Item = Family>>(families: I) -> Self {
        let mut set = Self::NONE;
        families.into_iter().for_each(|family| set.insert(family));
        set
    }
}

impl Serialize for Families {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Families {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let families = Vec::<Family>::deserialize(deserializer)?;
        Ok(families.into_iter().collect())
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The key of a [`Record`](crate::Record): one port of one Service of one cluster.
///
/// The cluster of a single-cluster installation has the empty name.
/// The protocol is part of the key: port 53 over TCP and over UDP are two records.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RecordKey {
    /// The cluster's name; empty for a single cluster.
    pub cluster: Arc<str>,
    /// The Service's namespace.
    pub namespace: Arc<str>,
    /// The Service's name.
    pub service: Arc<str>,
    /// The name of the Service port; empty if the Service has a single unnamed port.
    pub port: Arc<str>,
    /// The protocol of the Service port.
    pub protocol: Protocol,
}

/// Scope of a record, by the end of its Service's name. No Service of Kubernetes has an `@` in its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// A Service of the cluster.
    Cluster,
    /// An import: its endpoints are those of several clusters, the cluster's own ones included.
    ClusterSet,
    /// An export at the gateways of its cluster: its endpoints are the cluster's own.
    Gateway,
}

impl Scope {
    /// Ends the names of imports.
    pub const CLUSTER_SET: &str = "@clusterset";
    /// Ends the names of exports at gateways.
    pub const GATEWAY: &str = "@gateway";
}

impl RecordKey {
    /// Returns the scope of the record.
    #[must_use]
    pub fn scope(&self) -> Scope {
        if self.service.ends_with(Scope::CLUSTER_SET) {
            Scope::ClusterSet
        } else if self.service.ends_with(Scope::GATEWAY) {
            Scope::Gateway
        } else {
            Scope::Cluster
        }
    }
}

impl fmt::Display for RecordKey {
    /// `[cluster/]namespace/service[:port]/PROTOCOL`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.cluster.is_empty() {
            f.write_str(&self.cluster)?;
            f.write_char('/')?;
        }
        f.write_str(&self.namespace)?;
        f.write_char('/')?;
        f.write_str(&self.service)?;
        if !self.port.is_empty() {
            f.write_char(':')?;
            f.write_str(&self.port)?;
        }
        f.write_char('/')?;
        f.write_str(self.protocol.as_str())
    }
}

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeKey {
    /// The cluster's name; empty for a single cluster.
    pub cluster: Arc<str>,
    /// The Node's name.
    pub name: Arc<str>,
}

impl fmt::Display for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.cluster.is_empty() {
            write!(f, "{}/", self.cluster)?;
        }
        f.write_str(&self.name)
    }
}
