// SPDX-License-Identifier: Apache-2.0

//! Records of Service ports, and the overlay of one node.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::ipvs::Flags;
use crate::{Balancing, Families, Family, RecordKey};

/// One Service port as nodes must program it. It is *final*: agents evaluate no policy.
///
/// Nearly everything is equal on all nodes, so the record is shared, encoded once and broadcast;
/// differences of a node are in its [`NodeOverlay`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Key of the Service port.
    pub key: RecordKey,
    /// Addresses and ports for clients; sorted, without duplicates.
    pub frontends: Vec<Frontend>,
    /// The cluster-wide list, both families; sorted by address, without duplicates.
    pub destinations: Vec<Destination>,
    /// Subsets of `destinations` by zone; `None` if every zone uses all of them.
    pub zone_mask: Option<ZoneMask>,
    /// ClientIP affinity, or `None`.
    pub affinity: Option<Affinity>,
    /// Families in which some node has a usable endpoint. Without one, connections are refused; with
    /// one elsewhere, a node whose frontend forwards to local destinations only drops them.
    pub available: Families,
    /// The Service's own choice of a scheduler.
    pub scheduling: Scheduling,
    /// Time for which a removed destination keeps its connections, in seconds; `None` for the agent's
    /// own setting.
    pub drain_seconds: Option<u32>,
    /// `spec.healthCheckNodePort`, at which load balancers ask each node for its local endpoints.
    pub health_check_port: Option<u16>,
    /// Fields of a load balancer's record beyond these; `None` for a Service's.
    pub balancing: Option<Arc<Balancing>>,
    /// The group of nodes that serve it, of an import whose ImportPolicy names some; `None` for all. A load balancer's
    /// is in `balancing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_group: Option<Arc<str>>,
}

impl Record {
    /// A record with a key and nothing else.
    #[must_use]
    pub fn new(key: RecordKey) -> Self {
        Self {
            key,
            frontends: Vec::new(),
            destinations: Vec::new(),
            zone_mask: None,
            affinity: None,
            available: Families::NONE,
            scheduling: Scheduling::default(),
            drain_seconds: None,
            health_check_port: None,
            balancing: None,
            node_group: None,
        }
    }

    /// Returns `true` if a node serves it: all do, unless it is of a group of nodes.
    #[must_use]
    pub fn is_for(&self, node: &crate::NodeInfo) -> bool {
        self.group().is_none_or(|group| node.groups.contains(group))
    }

    /// The group of nodes that it is for; `None` for all nodes.
    #[must_use]
    pub fn group(&self) -> Option<&Arc<str>> {
        let balancing = self.balancing.as_ref();
        let of_balancer = balancing.and_then(|balancing| balancing.group.as_ref());
        self.node_group.as_ref().or(of_balancer)
    }
}

/// Scheduling of a Service's virtual servers; absent values are the agent's choice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    /// The scheduler's kernel name (`rr`, `lc`, `mh` ...), 1 to 15 bytes.
    pub scheduler: Option<Arc<str>>,
    /// The scheduler's flags.
    pub flags: Option<Flags>,
}

/// ClientIP session affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// Time for which a client stays with its destination, in seconds, 1 to 86,400.
    pub timeout_seconds: u32,
}

/// One address and port at which clients reach a Service port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frontend {
    /// Kind of the address.
    pub kind: FrontendKind,
    /// The address.
    pub address: FrontendAddress,
    /// The port that clients connect to, 1 to 65,535; 0 for all ports of a load balancer with persistence, and
    /// where there is no single one.
    pub port: u16,
    /// The ports of [`FrontendKind::BalancedRanges`], ascending and apart from each other; empty for any other kind.
    pub ranges: Vec<PortRange>,
    /// List of destinations that it forwards to.
    pub lists: Lists,
    /// Whether every connection gets the node's address as its source. Connections to a cluster IP may
    /// be masqueraded in any case, by the node's own rule for local clients.
    pub masquerade: bool,
    /// Permitted sources, of the frontend's family, sorted; empty for all.
    pub source_ranges: Vec<IpNet>,
    /// Whether nodes bind the address. They do not bind the address of a Node: other nodes could not
    /// reach that Node any more, and it has the address anyway.
    pub bind: bool,
}

impl Frontend {
    /// A frontend that forwards to the cluster-wide list, without masquerade or source ranges.
    #[must_use]
    pub fn new(kind: FrontendKind, address: FrontendAddress, port: u16) -> Self {
        Self {
            kind,
            address,
            port,
            ranges: Vec::new(),
            lists: Lists::Cluster,
            masquerade: false,
            source_ranges: Vec::new(),
            bind: true,
        }
    }

    /// Returns `true` if connections from the node itself and from its own pods go to the
    /// cluster-wide list: `externalTrafficPolicy: Local` limits only connections from elsewhere to
    /// local destinations, as in kube-proxy's iptables and nftables modes.
    #[must_use]
    pub fn has_short_circuit(&self) -> bool {
        self.lists == Lists::Local && self.kind != FrontendKind::ClusterIp
    }

    /// The family of the frontend's connections.
    #[must_use]
    pub fn family(&self) -> Family {
        match self.address {
            FrontendAddress::Vip(ip) => Family::of(ip),
            FrontendAddress::NodeAddresses(family) | FrontendAddress::Mark { family, .. } => family,
        }
    }

    /// Where clients connect to: `192.0.2.10:80`, `192.0.2.10:21,20000-20999`, `NODE-IPv4:30080`, or `FWM 7 IPv4`.
    #[must_use]
    pub fn place(&self) -> String {
        let ports = match &self.ranges[..] {
            [] => self.port.to_string(),
            ranges => {
                let ranges: Vec<_> = ranges.iter().map(PortRange::to_string).collect();
                ranges.join(",")
            }
        };
        match self.address {
            FrontendAddress::Vip(IpAddr::V4(ip)) => format!("{ip}:{ports}"),
            FrontendAddress::Vip(IpAddr::V6(ip)) => format!("[{ip}]:{ports}"),
            FrontendAddress::NodeAddresses(family) => format!("NODE-{family}:{ports}"),
            FrontendAddress::Mark { family, mark } => format!("FWM {mark} {family}"),
        }
    }

    /// The ports that clients connect to; none if they are any.
    pub fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        let single = Some(self.port).filter(|port| *port != 0);
        let ranges = self
            .ranges
            .iter()
            .flat_map(|range| range.first..=range.last);
        single.into_iter().chain(ranges)
    }
}

/// Ports from a first to a last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortRange {
    /// The first port, at least 1.
    pub first: u16,
    /// The last port, at least the first.
    pub last: u16,
}

impl fmt::Display for PortRange {
    /// As a file has it: `80` or `20000-20999`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { first, last } if first == last => write!(f, "{first}"),
            Self { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

/// The kind of a [`Frontend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FrontendKind {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// `spec.externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress[].ip`.
    LoadBalancer,
    /// `spec.ports[].nodePort`.
    NodePort,
    /// `spec.frontends[].addresses` of a load balancer, with one port or all; or its `mark`.
    Balanced,
    /// `spec.frontends[].addresses` of a load balancer, with ranges of ports. The agent marks packets to them. All
    /// addresses of one family are one virtual server.
    BalancedRanges,
}

/// The address of a [`Frontend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FrontendAddress {
    /// A virtual address, the same on every node.
    Vip(IpAddr),
    /// The node's own addresses, of one family, that accept node ports.
    NodeAddresses(Family),
    /// Packets of a family with a firewall mark, which rules of an operator set. They have any protocol, whatever the
    /// record's key says.
    Mark {
        /// The family.
        family: Family,
        /// The mark, never 0.
        mark: u32,
    },
}

/// List of destinations of a [`Frontend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Lists {
    /// The node's own cluster-wide list if it has one of the family, else the record's.
    Cluster,
    /// The node's list of local destinations, which may be empty.
    Local,
}

/// A destination of connections. Identified by its address alone, never by a pod's name: both
/// families of a dual-stack pod, and two ports of one pod, are different destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Destination {
    /// Address and port.
    pub address: SocketAddr,
    /// Share of new connections; 1 by default.
    pub weight: u32,
}

impl Destination {
    /// A destination of weight 1.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address, weight: 1 }
    }
}

/// Subsets of a record's destinations by zone (KEP-2433): the result of hints, not the hints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneMask {
    /// The zones that use only some destinations, sorted; at most [`ZoneMask::MAX_ZONES`]. A node
    /// of any other zone, or of none, uses all.
    pub zones: Vec<Arc<str>>,
    /// One per destination, in their order: bit `i` is set if `zones[i]` uses the destination.
    pub masks: Vec<u64>,
}

impl ZoneMask {
    /// Number of zones that fit a mask.
    pub const MAX_ZONES: usize = 64;

    /// The bit of a zone, or `None` if that zone uses all destinations.
    #[must_use]
    pub fn bit(&self, zone: &str) -> Option<u64> {
        let index = self
            .zones
            .binary_search_by(|name| (**name).cmp(zone))
            .ok()?;
        Some(1 << index)
    }
}

/// Differences of one node for one record. An absent overlay equals [`NodeOverlay::default`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOverlay {
    /// Replaces the record's cluster-wide list on this node (KEP-3015, same-node hints) in each family
    /// of which it has any destination. Sorted.
    pub cluster: Vec<Destination>,
    /// For frontends with a Local traffic policy; sorted.
    pub local: Vec<Destination>,
    /// Families in which every endpoint of `local` is terminating. Load balancers that ask for the
    /// node's health must count none of them.
    pub terminating: Families,
    /// Every endpoint on this node, ready or not: a pod that reaches itself through a virtual
    /// server must be masqueraded (hairpin). Sorted.
    pub own: Vec<SocketAddr>,
}

impl NodeOverlay {
    /// Returns `true` if it equals an absent overlay.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.cluster.is_empty()
            && self.local.is_empty()
            && self.terminating.is_empty()
            && self.own.is_empty()
    }
}
