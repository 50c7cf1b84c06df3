// SPDX-License-Identifier: Apache-2.0

//! The networks of a cluster, and what may be exported from them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use portolan_director::read::Path;
use portolan_model::Family;

use crate::faults::Faults;
use crate::selector::Selector;
use crate::spec::{AddressType, GatewaySpec, NetworkMode, NetworkSpec};
use crate::{Fault, PolicyError};

/// The networks of a cluster. None has bits of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Way in which pods of other clusters reach those of this one.
    pub mode: NetworkMode,
    /// The networks of pods, at least one.
    pub pods: Vec<IpNet>,
    /// The networks of nodes; at least one of a cluster with gateways.
    pub nodes: Vec<IpNet>,
    /// The networks of cluster IPs.
    pub services: Vec<IpNet>,
    /// The ranges of the imports' virtual addresses in this cluster, at most one of each family.
    pub cluster_set_ips: Vec<IpNet>,
    /// The gateways; present in mode Gateway. A Flat cluster with gateways is reached by them from clusters in mode
    /// Gateway.
    pub gateway: Option<Gateway>,
}

/// The gateways of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// The nodes.
    pub nodes: Selector,
    /// The type of their addresses.
    pub address: AddressType,
    /// Their ports.
    pub ports: PortRange,
}

/// Ports from the first to the last one, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// The first port, at least 1.
    pub first: u16,
    /// The last port, at least the first.
    pub last: u16,
}

/// A text that is not a [`PortRange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a range of ports such as 20000-29999")]
pub struct PortRangeError;

impl PortRange {
    /// The node ports that an API server gives by default (`--service-node-port-range`).
    pub const NODE_PORTS: Self = Self {
        first: 30_000,
        last: 32_767,
    };

    /// Returns `true` if a port is one of them.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Returns `true` if both have a port in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let (first, last) = text.split_once('-').ok_or(PortRangeError)?;
        let port = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse::<u16>().ok()).flatten()
        };
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first > 0 && first <= last => Ok(Self { first, last }),
            _ => Err(PortRangeError),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Reason why an endpoint's address may not be exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum NotAdmitted {
    /// It is unspecified, loopback, link-local, multicast, broadcast, or IPv4 within IPv6.
    #[error("no address that another cluster can reach")]
    Special,
    /// It is outside the networks that the operator declared.
    #[error("outside the cluster's networks")]
    Outside,
    /// It is a virtual address of imports, or a cluster IP.
    #[error("an address of Services")]
    ServiceAddress,
}

impl Network {
    /// Returns `true` if an address is unspecified, loopback, link-local, multicast, broadcast, or
    /// IPv4 within IPv6.
    #[must_use]
    pub fn is_special(address: IpAddr) -> bool {
        let of_family = match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0,
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
        };
        of_family || address.is_unspecified() || address.is_loopback() || address.is_multicast()
    }

    /// Whether an endpoint with this address may be exported: it lies in the networks of pods, or
    /// for host-network pods of nodes, and is no virtual address.
    ///
    /// # Errors
    /// Reason why it may not.
    pub fn admits(&self, address: IpAddr) -> Result<(), NotAdmitted> {
        if Self::is_special(address) {
            return Err(NotAdmitted::Special);
        }
        let is_in = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&address));
        if is_in(&self.services) || is_in(&self.cluster_set_ips) {
            return Err(NotAdmitted::ServiceAddress);
        }
        if is_in(&self.pods) || is_in(&self.nodes) {
            Ok(())
        } else {
            Err(NotAdmitted::Outside)
        }
    }

    /// Whether a gateway may have this address: it lies in the networks of nodes, and is no virtual address.
    ///
    /// # Errors
    /// Reason why it may not.
    pub fn admits_node(&self, address: IpAddr) -> Result<(), NotAdmitted> {
        self.admits(address)?;
        let mut nodes = self.nodes.iter();
        if nodes.any(|network| network.contains(&address)) {
            Ok(())
        } else {
            Err(NotAdmitted::Outside)
        }
    }

    /// The range of virtual addresses of a family.
    #[must_use]
    pub fn cluster_set_range(&self, family: Family) -> Option<IpNet> {
        let mut ranges = self.cluster_set_ips.iter();
        ranges
            .find(|range| Family::of(range.addr()) == family)
            .copied()
    }

    /// The networks that a spec describes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn of(spec: &NetworkSpec) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let network = Self::new(spec, &Path::default(), &mut faults);
        faults.into_result(network)
    }

    /// A spec that describes it: [`Self::of`] gives these networks again.
    #[must_use]
    pub fn to_spec(&self) -> NetworkSpec {
        // All fields by name: a new one must be handled here.
        let Self {
            mode,
            pods,
            nodes,
            services,
            cluster_set_ips,
            gateway,
        } = self;
        let texts = |networks: &[IpNet]| networks.iter().map(IpNet::to_string).collect();
        NetworkSpec {
            mode: *mode,
            pod_cidrs: texts(pods),
            node_cidrs: texts(nodes),
            service_cidrs: texts(services),
            cluster_set_ips: texts(cluster_set_ips),
            gateway: gateway.as_ref().map(|gateway| GatewaySpec {
                nodes: gateway.nodes.to_spec(),
                address: gateway.address,
                ports: gateway.ports.to_string(),
            }),
        }
    }

    pub(crate) fn new(spec: &NetworkSpec, path: &Path, faults: &mut Faults) -> Self {
        let ranges = networks(&spec.cluster_set_ips, &path.field("clusterSetIPs"), faults);
        let mut networks = |name, texts: &Vec<String>| {
            let networks = networks(texts, &path.field(name), faults);
            networks.into_iter().map(|(_, network)| network).collect()
        };
        let network = Self {
            mode: spec.mode,
            pods: networks("podCIDRs", &spec.pod_cidrs),
            nodes: networks("nodeCIDRs", &spec.node_cidrs),
            services: networks("serviceCIDRs", &spec.service_cidrs),
            cluster_set_ips: ranges.iter().map(|(_, range)| *range).collect(),
            gateway: spec
                .gateway
                .as_ref()
                .map(|gateway| gateway_of(gateway, &path.field("gateway"), faults)),
        };
        let family = |range: &IpNet| Family::of(range.addr());
        for (number, (index, range)) in ranges.iter().enumerate() {
            let mut before = ranges[..number].iter();
            if let Some((_, other)) = before.find(|(_, other)| family(other) == family(range)) {
                let error = PolicyError::FamilyTwice {
                    found: range.to_string(),
                    other: other.to_string(),
                };
                faults.add(&path.field("clusterSetIPs").item(*index), error);
            }
        }
        if spec.pod_cidrs.is_empty() {
            faults.add(&path.field("podCIDRs"), PolicyError::NoPodNetwork);
        }
        if spec.mode == NetworkMode::Gateway && spec.gateway.is_none() {
            faults.add(&path.field("gateway"), PolicyError::NoGateway);
        }
        let has_gateway = spec.mode == NetworkMode::Gateway || spec.gateway.is_some();
        if has_gateway && spec.node_cidrs.is_empty() {
            faults.add(&path.field("nodeCIDRs"), PolicyError::NoNodeNetwork);
        }
        network
    }
}

/// The networks that texts spell, with their indexes.
fn networks(texts: &[String], path: &Path, faults: &mut Faults) -> Vec<(usize, IpNet)> {
    let parsed = texts.iter().enumerate().filter_map(|(index, text)| {
        let path = path.item(index);
        let Ok(network) = text.parse::<IpNet>() else {
            faults.add(&path, PolicyError::NetworkText(text.clone()));
            return None;
        };
        if network.trunc() != network {
            let error = PolicyError::HostBits {
                found: text.clone(),
                network: network.trunc().to_string(),
            };
            faults.add(&path, error);
        }
        Some((index, network))
    });
    parsed.collect()
}

fn gateway_of(spec: &GatewaySpec, path: &Path, faults: &mut Faults) -> Gateway {
    let ports = spec.ports.parse().unwrap_or_else(|_| {
        faults.add(
            &path.field("ports"),
            PolicyError::PortRange(spec.ports.clone()),
        );
        PortRange { first: 1, last: 1 }
    });
    Gateway {
        nodes: Selector::new(&spec.nodes, &path.field("nodes"), faults),
        address: spec.address,
        ports,
    }
}

#[cfg(test)]
mod tests;
