// SPDX-License-Identifier: Apache-2.0

//! Gateways: Nodes of a cluster at whose addresses other clusters reach its exports.
//!
//! Pods of two Flat clusters reach each other. Where one of two clusters is behind gateways, no packet may
//! carry the address of a pod from one to the other: connections go to a Node of the exporting cluster, at a
//! port that stands for one port of one export, and have the address of a Node of the importing cluster.

mod ports;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::Family;
use portolan_policy::spec::{AddressType, NetworkMode};
use portolan_policy::{Cluster, Gateway, Labels, Network, NotAdmitted};

pub use ports::{PortClaim, PortName, PortProblem, Ports};

use crate::stable;

/// The most gateways of a cluster and family that are in use at a time.
pub const MAX_GATEWAYS: usize = 8;

/// Path of connections from one cluster to the endpoints of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// By the addresses of pods.
    Pods,
    /// By the gateways of the exporting cluster.
    Gateways,
}

/// Reason why no connection from one cluster reaches the endpoints of another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum NoPath {
    /// One of both is behind gateways, and the exporting one has none.
    #[error(
        "this cluster is behind gateways, and Cluster {0} has no spec.network.gateway to reach it by"
    )]
    NoGateway(String),
    /// Gateways admit Nodes by their networks, and the importing cluster declares none.
    #[error("spec.network.nodeCIDRs of Cluster {0} is empty: gateways would refuse its nodes")]
    NoNodeNetwork(String),
}

/// Returns the path of connections from `importing` to endpoints of `exporting`.
///
/// # Errors
/// If there is none, with the reason.
pub fn path(importing: &Cluster, exporting: &Cluster) -> Result<Path, NoPath> {
    let is_flat = |cluster: &Cluster| cluster.network.mode == NetworkMode::Flat;
    if importing.meta.name == exporting.meta.name || is_flat(importing) && is_flat(exporting) {
        return Ok(Path::Pods);
    }
    if exporting.network.gateway.is_none() {
        return Err(NoPath::NoGateway(exporting.meta.name.clone()));
    }
    if importing.network.nodes.is_empty() {
        return Err(NoPath::NoNodeNetwork(importing.meta.name.clone()));
    }
    Ok(Path::Gateways)
}

/// A Node as far as gateways are concerned.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// Its name.
    pub name: &'a Arc<str>,
    /// Whether it takes connections.
    pub ready: bool,
    /// Its labels.
    pub labels: &'a Labels,
    /// Its addresses of type InternalIP.
    pub internal: &'a BTreeSet<IpAddr>,
    /// Its addresses of type ExternalIP.
    pub external: &'a BTreeSet<IpAddr>,
}

/// The gateways of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gateways {
    /// The addresses that connections go to, each with its Node: one of a Node and family, of at most
    /// [`MAX_GATEWAYS`] Nodes of each family.
    pub chosen: BTreeMap<IpAddr, Arc<str>>,
    /// The addresses that accept connections, each with its Node: `chosen`, and those that would be chosen if all
    /// Nodes were ready, whose connections go on.
    pub open: BTreeMap<IpAddr, Arc<str>>,
    /// By Node, the addresses that cannot be those of a gateway.
    pub refused: BTreeMap<Arc<str>, BTreeMap<IpAddr, NotAdmitted>>,
}

impl Gateways {
    /// The gateways of a cluster with these Nodes. Of a cluster without `gateway` there are none.
    ///
    /// The choice among more than [`MAX_GATEWAYS`] depends on names alone, so that one that goes is replaced by one
    /// other, and nothing else moves.
    #[must_use]
    pub fn choose<'a>(cluster: &Cluster, hosts: impl Iterator<Item = Host<'a>>) -> Self {
        let Some(gateway) = &cluster.network.gateway else {
            return Self::default();
        };
        let selected = hosts.filter(|host| gateway.nodes.selects(host.name, host.labels));
        let mut gateways = Self::default();
        // By family, the place in the order of choice, and the name.
        let mut candidates = BTreeMap::<(Family, u64, &Arc<str>), (IpAddr, bool)>::new();
        for host in selected {
            let (good, refused) = addresses(gateway, &cluster.network, host);
            let place = place(&cluster.id, host.name);
            for (family, ip) in good {
                candidates.insert((family, place, host.name), (ip, host.ready));
            }
            if !refused.is_empty() {
                gateways.refused.insert(Arc::clone(host.name), refused);
            }
        }
        for family in Family::ALL {
            let of_family = candidates.iter().filter(|((of, ..), _)| *of == family);
            let ready = of_family.clone().filter(|(_, (_, ready))| *ready);
            let named = |((_, _, name), (ip, _)): (&(Family, u64, &Arc<str>), &(IpAddr, bool))| {
                (*ip, Arc::clone(name))
            };
            let chosen: Vec<_> = ready.take(MAX_GATEWAYS).map(named).collect();
            gateways
                .open
                .extend(of_family.take(MAX_GATEWAYS).map(named));
            gateways.open.extend(chosen.iter().cloned());
            gateways.chosen.extend(chosen);
        }
        gateways
    }

    /// The chosen addresses of a family, each with its Node.
    pub fn of_family(&self, family: Family) -> impl Iterator<Item = (IpAddr, &Arc<str>)> {
        let all = self.chosen.iter().map(|(ip, node)| (*ip, node));
        all.filter(move |(ip, _)| Family::of(*ip) == family)
    }
}

/// The address of each family that a Node is a gateway with, the first one, and those that it cannot be.
fn addresses(
    gateway: &Gateway,
    network: &Network,
    host: Host<'_>,
) -> (BTreeMap<Family, IpAddr>, BTreeMap<IpAddr, NotAdmitted>) {
    let of_type = match gateway.address {
        AddressType::Internal => host.internal,
        AddressType::External => host.external,
    };
    let (mut good, mut refused) = (BTreeMap::new(), BTreeMap::new());
    for ip in of_type {
        match network.admits_node(*ip) {
            Ok(()) => _ = good.entry(Family::of(*ip)).or_insert(*ip),
            Err(why) => _ = refused.insert(*ip, why),
        }
    }
    (good, refused)
}

/// The place of a Node in the order of choice.
fn place(cluster: &str, node: &str) -> u64 {
    stable::hash([b"gateway".as_slice(), cluster.as_bytes(), node.as_bytes()])
}
