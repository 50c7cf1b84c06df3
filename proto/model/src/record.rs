//! Records: what every node must program for one Service port, and what differs on one node.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::ipvs::Flags;
use crate::{Families, Family, RecordKey};

/// One Service port as nodes must program it, *final*: whoever programs it evaluates no policy.
///
/// Nearly everything is equal on all nodes, so the record is shared, encoded once and broadcast;
/// what differs on a node is in that node's [`NodeOverlay`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Which Service port this is.
    pub key: RecordKey,
    /// Where clients reach it; sorted, no two alike.
    pub frontends: Vec<Frontend>,
    /// The cluster-wide list, both families; sorted by address, no two alike.
    pub destinations: Vec<Destination>,
    /// Which of `destinations` a zone uses; `None` if every zone uses all of them.
    pub zone_mask: Option<ZoneMask>,
    /// ClientIP affinity, or `None`.
    pub affinity: Option<Affinity>,
    /// The families in which some node has an endpoint that could be used. Where there is none,
    /// connections are refused; where there is one, but not on a node whose frontend forwards to
    /// local destinations only, that node drops them.
    pub available: Families,
    /// How virtual servers choose a destination, where the Service says so.
    pub scheduling: Scheduling,
    /// How long a destination that went away keeps its connections, in seconds; `None` for what
    /// the agent was told.
    pub drain_seconds: Option<u32>,
    /// `spec.healthCheckNodePort`, where the load balancer is to ask each node for local endpoints.
    pub health_check_port: Option<u16>,
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
        }
    }
}

/// How a Service wants its virtual servers to choose; what it does not say is the agent's choice.
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
    /// How long a client stays with its destination, in seconds, 1 to 86,400.
    pub timeout_seconds: u32,
}

/// One way in to a Service port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frontend {
    /// What kind of address it is.
    pub kind: FrontendKind,
    /// The address.
    pub address: FrontendAddress,
    /// The port that clients connect to, 1 to 65,535.
    pub port: u16,
    /// Which destinations it forwards to.
    pub lists: Lists,
    /// Whether every connection gets the node's address as its source. A cluster IP's connections
    /// may be masqueraded all the same, by the node's own notion of what is local.
    pub masquerade: bool,
    /// Which sources may connect; empty if all may. Sorted, all of the frontend's family.
    pub source_ranges: Vec<IpNet>,
    /// Whether a node makes the address its own. Not if it is a Node's: the others could not reach
    /// that Node any more, and it has the address anyway.
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
            lists: Lists::Cluster,
            masquerade: false,
            source_ranges: Vec::new(),
            bind: true,
        }
    }

    /// Whether connections from the node itself and from its own pods go to the cluster-wide list
    /// all the same: with `externalTrafficPolicy: Local` only what comes from elsewhere is held to
    /// local destinations, as in kube-proxy's iptables and nftables modes.
    #[must_use]
    pub fn has_short_circuit(&self) -> bool {
        self.lists == Lists::Local && self.kind != FrontendKind::ClusterIp
    }

    /// The family of the connections that come in here.
    #[must_use]
    pub fn family(&self) -> Family {
        match self.address {
            FrontendAddress::Vip(ip) => Family::of(ip),
            FrontendAddress::NodeAddresses(family) => family,
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
}

/// The address of a [`Frontend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FrontendAddress {
    /// A virtual address, the same on every node.
    Vip(IpAddr),
    /// Those of the node's own addresses, of one family, that take node ports.
    NodeAddresses(Family),
}

/// Which destinations a [`Frontend`] forwards to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Lists {
    /// The node's own cluster-wide list if it has one of the family, else the record's.
    Cluster,
    /// The node's list of local destinations; if the node has none, nothing.
    Local,
}

/// Where a connection may go. Identified by its address alone, never by a pod's name: both
/// families of a dual-stack pod, and two ports of one pod, are different destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Destination {
    /// Address and port.
    pub address: SocketAddr,
    /// Share of new connections; 1 unless something says otherwise.
    pub weight: u32,
}

impl Destination {
    /// A destination of weight 1.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address, weight: 1 }
    }
}

/// Which destinations of a record a zone uses (KEP-2433): the outcome of the hints, not the hints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneMask {
    /// The zones that use only some destinations, sorted; at most [`ZoneMask::MAX_ZONES`]. A node
    /// of any other zone, or of none, uses all.
    pub zones: Vec<Arc<str>>,
    /// One per destination, in their order: bit `i` is set if `zones[i]` uses the destination.
    pub masks: Vec<u64>,
}

impl ZoneMask {
    /// How many zones fit a mask.
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

/// What one node has of its own for one record. Absent means [`NodeOverlay::default`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOverlay {
    /// Takes the place of the record's cluster-wide list on this node (KEP-3015, same-node hints),
    /// in each family that it has any destination of. Sorted.
    pub cluster: Vec<Destination>,
    /// For frontends with a Local traffic policy; sorted.
    pub local: Vec<Destination>,
    /// The families in which no endpoint of `local` is ready: those there are terminating. A load
    /// balancer that asks for the node's health must count none of them.
    pub terminating: Families,
    /// Every endpoint on this node, ready or not: a pod that reaches itself through a virtual
    /// server must be masqueraded (hairpin). Sorted.
    pub own: Vec<SocketAddr>,
}

impl NodeOverlay {
    /// Whether this says no more than its absence would.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.cluster.is_empty()
            && self.local.is_empty()
            && self.terminating.is_empty()
            && self.own.is_empty()
    }
}
