//! What the plan depends on besides the table.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::Family;
use portolan_model::ipvs::VirtualServerConfig;

use crate::Names;

/// How the agent was told to program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The families to program.
    pub families: BTreeSet<Family>,
    /// What sets and chains are called.
    pub names: Names,
    /// The scheduler, for virtual servers without a choice of their own.
    pub scheduler: VirtualServerConfig,
    /// Which connections to cluster IPs are masqueraded.
    pub masquerade: Masquerade,
    /// The mark of a packet that is to be masqueraded: one bit; kube-proxy's is `0x4000`.
    pub masquerade_mark: u32,
}

/// Which connections to cluster IPs are masqueraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Masquerade {
    /// All (`--masquerade-all`).
    All,
    /// Those from outside these networks, the first of each family (`--cluster-cidr`).
    From(Vec<IpNet>),
    /// Only those whose source is the virtual server's own address.
    FromVip,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            families: Family::ALL.into(),
            names: Names::default(),
            scheduler: VirtualServerConfig::round_robin(),
            masquerade: Masquerade::FromVip,
            masquerade_mark: 0x4000,
        }
    }
}

/// What the node is like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Every address on any interface, loopback included.
    pub addresses: BTreeSet<IpAddr>,
    /// Those of them that take node ports.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// The source of the node's own connections to VIPs, by family.
    pub source: BTreeMap<Family, IpAddr>,
}
