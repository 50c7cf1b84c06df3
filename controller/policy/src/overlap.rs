// SPDX-License-Identifier: Apache-2.0

//! The condition `NetworkValid`: networks of one cluster, and of all together.

use std::collections::BTreeMap;

use ipnet::IpNet;

use crate::spec::NetworkMode;
use crate::{Cluster, PortRange};

/// Reason why the networks of a cluster cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Overlap {
    /// A network of pods meets one of an older Flat cluster: nobody uses this cluster's exports.
    #[error("{network} of pods overlaps {other_network} of Cluster {other}")]
    Pods {
        /// The network of this cluster.
        network: IpNet,
        /// The other Cluster's name.
        other: String,
        /// Its network.
        other_network: IpNet,
    },
    /// A network of nodes meets one of an older cluster, and one of both is behind gateways.
    #[error("{network} of nodes overlaps {other_network} of Cluster {other}")]
    Nodes {
        /// The network of this cluster.
        network: IpNet,
        /// The other Cluster's name.
        other: String,
        /// Its network.
        other_network: IpNet,
    },
    /// A range of virtual addresses meets another network of the same cluster: no new imports here.
    #[error("range {range} of virtual addresses overlaps {network} {of}")]
    Vips {
        /// The range.
        range: IpNet,
        /// The network.
        network: IpNet,
        /// Users of the network: `of pods`, `of Services` or `of nodes`.
        of: &'static str,
    },
}

impl Overlap {
    /// The reason of the condition `NetworkValid=False`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Pods { .. } => "PodCIDROverlap",
            Self::Nodes { .. } => "NodeAddressOverlap",
            Self::Vips { .. } => "VIPRangeOverlap",
        }
    }

    /// The path of the field with the network.
    pub(crate) fn field(&self) -> &'static str {
        match self {
            Self::Pods { .. } => "spec.network.podCIDRs",
            Self::Nodes { .. } => "spec.network.nodeCIDRs",
            Self::Vips { .. } => "spec.network.clusterSetIPs",
        }
    }
}

/// Returns the overlaps of the networks of all clusters, by the name of the Cluster that is to blame: of two that
/// overlap the younger. Clusters that are not here have the reason `Valid`.
#[must_use]
pub fn overlaps(clusters: &BTreeMap<String, Cluster>) -> BTreeMap<String, Vec<Overlap>> {
    let mut by_age: Vec<&Cluster> = clusters.values().collect();
    by_age.sort_by_key(|cluster| cluster.meta.by_age());
    let mut found: BTreeMap<String, Vec<Overlap>> = BTreeMap::new();
    for (index, cluster) in by_age.iter().enumerate() {
        let mut own = vips_within(cluster);
        for older in &by_age[..index] {
            own.extend(pods(cluster, older));
            own.extend(nodes(cluster, older));
        }
        if !own.is_empty() {
            found.insert(cluster.meta.name.clone(), own);
        }
    }
    found
}

/// Returns the first overlap of the networks of a cluster with those of an older one, as [`overlaps`] finds it.
pub(crate) fn between(cluster: &Cluster, older: &Cluster) -> Option<Overlap> {
    let mut found = pods(cluster, older);
    found.extend(nodes(cluster, older));
    found.into_iter().next()
}

/// Ports of gateways that an API server gives Services as node ports by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.network.gateway.ports: {0} overlaps {default}, the node ports of Kubernetes by default: unless the API server has \
     another --service-node-port-range, a Service may get the port of an export",
    default = PortRange::NODE_PORTS
)]
pub struct MayBeNodePorts(PortRange);

/// Whether a cluster's node ports may be those of its gateways. Both are used, and an export is given no port that a
/// Service has then.
#[must_use]
pub fn may_be_node_ports(cluster: &Cluster) -> Option<MayBeNodePorts> {
    let ports = cluster.network.gateway.as_ref()?.ports;
    ports
        .overlaps(PortRange::NODE_PORTS)
        .then_some(MayBeNodePorts(ports))
}

/// Returns `true` if nodes of a cluster send packets to addresses of another one's pods.
fn reach(cluster: &Cluster, other: &Cluster) -> bool {
    let is_flat = |cluster: &Cluster| cluster.network.mode == NetworkMode::Flat;
    cluster.meta.name != other.meta.name && is_flat(cluster) && is_flat(other)
}

fn vips_within(cluster: &Cluster) -> Vec<Overlap> {
    let network = &cluster.network;
    [
        (&network.pods, "of pods"),
        (&network.services, "of Services"),
        (&network.nodes, "of nodes"),
    ]
    .into_iter()
    .flat_map(|(networks, of)| {
        pairs(&network.cluster_set_ips, networks).map(move |(range, network)| Overlap::Vips {
            range,
            network,
            of,
        })
    })
    .collect()
}

fn pods(cluster: &Cluster, older: &Cluster) -> Vec<Overlap> {
    if !reach(cluster, older) {
        return Vec::new();
    }
    pairs(&cluster.network.pods, &older.network.pods)
        .map(|(network, other_network)| Overlap::Pods {
            network,
            other: older.meta.name.clone(),
            other_network,
        })
        .collect()
}

/// Nodes of different clusters may share a network. They may not if they reach each other by their
/// addresses: two networks with the same addresses are then one, or are ambiguous.
fn nodes(cluster: &Cluster, older: &Cluster) -> Vec<Overlap> {
    let is_gateway = |cluster: &Cluster| cluster.network.mode == NetworkMode::Gateway;
    if !is_gateway(cluster) && !is_gateway(older) {
        return Vec::new();
    }
    pairs(&cluster.network.nodes, &older.network.nodes)
        .map(|(network, other_network)| Overlap::Nodes {
            network,
            other: older.meta.name.clone(),
            other_network,
        })
        .collect()
}

fn pairs<'n>(
    one: &'n [IpNet],
    other: &'n [IpNet],
) -> impl Iterator<Item = (IpNet, IpNet)> + use<'n> {
    one.iter().flat_map(move |network| {
        let meets = move |other: &&IpNet| network.contains(*other) || other.contains(network);
        other
            .iter()
            .filter(meets)
            .map(move |other| (*network, *other))
    })
}

#[cfg(test)]
mod tests;
