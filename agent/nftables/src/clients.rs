// SPDX-License-Identifier: Apache-2.0

//! Clients of ways with affinity, and whether they may stay with their destinations.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portolan_model::{Family, NodeInfo};
use portolan_plan::{Config, DetectLocal, NodeFacts};

use crate::layout::{address_len, read_address, read_destination, read_way};
use crate::{List, WayKey, Ways};

/// A client that is remembered with the destination of its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// Its address.
    pub address: IpAddr,
    /// The way that it asks for.
    pub way: WayKey,
    /// The endpoint that its connections go to.
    pub destination: SocketAddr,
}

impl Client {
    /// Reads an element of [`AFFINITY`](crate::AFFINITY); `None` if it is none.
    #[must_use]
    pub fn read(family: Family, key: &[u8], value: &[u8]) -> Option<Self> {
        Some(Self {
            address: read_address(family, key)?,
            way: read_way(family, key.get(address_len(family)..)?)?,
            destination: read_destination(family, value)?,
        })
    }
}

/// The node by which connections are from outside or not.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The settings by which the node's own pods are recognised.
    pub config: &'a Config,
    /// The node as the cluster describes it.
    pub node: &'a NodeInfo,
    /// The addresses of the node.
    pub facts: &'a NodeFacts,
}

impl Place<'_> {
    /// Returns `true` if a client is certainly the node itself or one of its pods. One of another node may be taken for
    /// one of these by the network of the cluster, but not where it asks for an address of this node.
    fn has(&self, client: &Client) -> bool {
        let family = Family::of(client.address);
        let contains = |networks: &[IpNet]| {
            let mut of_family = networks.iter().filter(|n| Family::of(n.addr()) == family);
            of_family
                .next()
                .is_some_and(|network| network.contains(&client.address))
        };
        let is_own_pod = contains(&self.node.pod_cidrs);
        let is_own = match &self.config.detect_local {
            DetectLocal::ClusterCidr(networks) => {
                let is_address_of_node = self.facts.addresses.contains(&client.way.address);
                contains(networks) && (is_own_pod || !is_address_of_node)
            }
            DetectLocal::NodeCidr | DetectLocal::Bridge(_) | DetectLocal::InterfacePrefix(_) => {
                is_own_pod
            }
        };
        is_own || self.facts.addresses.contains(&client.address)
    }
}

impl Ways {
    /// Returns `true` if a client's connections may still go where they went. One that may be from outside needs a
    /// destination of the list for those: it is not masqueraded, and an endpoint of another node would answer it directly.
    #[must_use]
    pub fn keeps(&self, client: &Client, place: Place<'_>) -> bool {
        let Some(way) = self.ways.get(&client.way) else {
            return false;
        };
        let list = match &way.outside {
            Some(outside) if !place.has(client) => outside,
            _ => &way.inside,
        };
        let is_listed = match list {
            List::To(list) => list.iter().any(|to| to.address == client.destination),
            List::Drop | List::Refuse => false,
        };
        way.affinity.is_some() && is_listed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_model::{Destination, FrontendKind, Record};

    use super::*;
    use crate::tests::way as way_at;
    use crate::{Masquerade, Way};

    const VIP: &str = "192.0.2.1";
    const NODE: &str = "192.168.77.11";
    const OWN: &str = "10.244.1.2:8080";
    const OTHER: &str = "10.244.2.2:8080";

    fn to(all: &[&str]) -> List {
        let destinations = all.iter().map(|socket| socket.parse().unwrap());
        List::To(destinations.map(Destination::new).collect())
    }

    /// A way with both endpoints, of which clients from outside have that of this node alone.
    fn ways(address: &str) -> Ways {
        let record = Record::new(crate::tests::key("web"));
        let way = Way {
            record: Arc::new(record),
            kind: FrontendKind::NodePort,
            inside: to(&[OWN, OTHER]),
            outside: Some(to(&[OWN])),
            masquerade: Masquerade::Own,
            ranges: Vec::new(),
            affinity: Some(60),
        };
        let mut ways = Ways::default();
        ways.ways.insert(way_at(address), way);
        ways
    }

    fn networks(text: &str) -> Vec<IpNet> {
        vec!["fd00:244::/32".parse().unwrap(), text.parse().unwrap()]
    }

    /// The clients of a way that stay with the endpoint of another node.
    fn staying(ways: &Ways, way: &str, detect_local: DetectLocal, pods: &[IpNet]) -> Vec<String> {
        let config = Config {
            detect_local,
            ..Config::default()
        };
        let node = NodeInfo {
            pod_cidrs: pods.to_vec(),
            ..NodeInfo::default()
        };
        let facts = NodeFacts {
            addresses: [NODE.parse().unwrap()].into(),
            ..NodeFacts::default()
        };
        let place = Place {
            config: &config,
            node: &node,
            facts: &facts,
        };
        let all = ["10.244.1.9", "10.244.2.9", NODE, "203.0.113.9"];
        let stays = |address: &&str| {
            let client = |destination: &str| Client {
                address: address.parse().unwrap(),
                way: way_at(way),
                destination: destination.parse().unwrap(),
            };
            assert!(ways.keeps(&client(OWN), place), "{address}");
            assert!(!ways.keeps(&client("10.244.1.3:8080"), place), "{address}");
            ways.keeps(&client(OTHER), place)
        };
        all.into_iter().filter(stays).map(str::to_owned).collect()
    }

    #[test]
    fn a_client_from_outside_stays_with_endpoints_of_its_own_list_alone() {
        let cluster = || DetectLocal::ClusterCidr(networks("10.244.0.0/16"));
        let own = networks("10.244.1.0/24");
        let (of_vip, of_node) = (ways(VIP), ways(NODE));
        let inside = ["10.244.1.9", "10.244.2.9", NODE];
        assert_eq!(staying(&of_vip, VIP, cluster(), &[]), inside);
        // A pod of another node asks for the address of this one by the interface that has it.
        assert_eq!(
            staying(&of_node, NODE, cluster(), &own),
            ["10.244.1.9", NODE]
        );
        assert_eq!(staying(&of_node, NODE, cluster(), &[]), [NODE]);
        for detected in [DetectLocal::NodeCidr, DetectLocal::Bridge("cni0".into())] {
            assert_eq!(
                staying(&of_vip, VIP, detected.clone(), &own),
                ["10.244.1.9", NODE]
            );
            assert_eq!(staying(&of_vip, VIP, detected, &[]), [NODE]);
        }
    }

    #[test]
    fn all_clients_of_a_single_list_stay_with_its_endpoints() {
        let mut ways = ways(VIP);
        for way in ways.ways.values_mut() {
            way.outside = None;
        }
        let staying = staying(&ways, VIP, DetectLocal::NodeCidr, &[]);
        assert_eq!(staying.len(), 4, "{staying:?}");
    }

    #[test]
    fn no_client_stays_without_affinity_or_with_a_way_that_is_gone() {
        let (config, node, facts) = Default::default();
        let place = Place {
            config: &config,
            node: &node,
            facts: &facts,
        };
        let mut ways = ways(VIP);
        let mut client = Client {
            address: "203.0.113.9".parse().unwrap(),
            way: way_at(VIP),
            destination: OWN.parse().unwrap(),
        };
        assert!(ways.keeps(&client, place));
        client.way.port = 81;
        assert!(!ways.keeps(&client, place));
        client.way.port = 80;
        for way in ways.ways.values_mut() {
            way.affinity = None;
        }
        assert!(!ways.keeps(&client, place));
    }
}
