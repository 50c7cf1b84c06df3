// SPDX-License-Identifier: Apache-2.0

//! A deterministic cluster that every process builds alike: Services with endpoints on nodes, and
//! changes of them.
//!
//! It has the form of selection's result. Every Service has a record. Every node with endpoints has
//! lists that name them (hairpin); for each tenth Service they are also local destinations
//! (`externalTrafficPolicy: Local`). A change replaces one endpoint of one Service by a new one on
//! another node, so it touches one record and the overlays of two nodes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::Args;
use ipnet::{IpNet, Ipv4Net};
use portolan_model::{
    Destination, Families, Family, Frontend, FrontendAddress, FrontendKind, Lists, NodeInfo,
    NodeKey, NodeOverlay, NodeTable, Protocol, Record, RecordKey,
};
use portolan_select::TableDelta;

/// The port of Pods, and the port of Services.
const POD_PORT: u16 = 8080;
const SERVICE_PORT: u16 = 80;

/// One Service of this many has a node port with the policy Local.
const LOCAL_EVERY: u32 = 10;

/// The distance by which an endpoint moves among the nodes of its slot.
const STEP: u32 = 7;

/// The size of a cluster.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Size {
    /// Services, of one port each; at most 1,048,576
    #[arg(long, default_value_t = 10_000)]
    pub(crate) services: u32,
    /// Endpoints of each Service
    #[arg(long, default_value_t = 10)]
    pub(crate) endpoints: u32,
    /// Nodes; at most 32,768, and twice as many as a Service has endpoints
    #[arg(long, default_value_t = 5_010)]
    pub(crate) nodes: u32,
}

/// The cluster after a number of changes.
#[derive(Debug, Clone)]
pub(crate) struct World {
    size: Size,
    /// Built once and shared, as a catalog shares names.
    keys: Arc<[RecordKey]>,
    nodes: Arc<[NodeKey]>,
    /// The number of changes of each Service.
    generations: Vec<u32>,
    /// The Service that changes next, in rotation.
    turn: u32,
}

/// The location of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The number of its node.
    pub(crate) node: u32,
    ip: Ipv4Addr,
}

impl Endpoint {
    /// Its address and port.
    pub(crate) fn address(self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.ip), POD_PORT)
    }
}

impl World {
    pub(crate) fn new(size: Size) -> Result<Self> {
        ensure!(size.services > 0 && size.endpoints > 0, "an empty cluster");
        ensure!(size.services <= 1 << 20, "--services: too many addresses");
        ensure!(size.nodes <= 1 << 15, "--nodes: too many networks");
        ensure!(size.nodes >= 2 * size.endpoints, "--nodes: too few");
        Ok(Self {
            size,
            keys: (0..size.services).map(record_key).collect(),
            nodes: (0..size.nodes).map(node_key).collect(),
            generations: vec![0; size.services as usize],
            turn: 0,
        })
    }

    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// The whole cluster, as the first transition of a controller.
    pub(crate) fn whole(&self) -> TableDelta {
        let mut delta = TableDelta::default();
        for service in 0..self.size.services {
            let key = self.key(service);
            delta
                .records
                .insert(key.clone(), Some(Arc::new(self.record(service))));
            for endpoint in self.endpoints(service) {
                let lists = delta.lists.entry(self.node(endpoint.node)).or_default();
                lists.insert(key.clone(), Some(Arc::new(lists_of(service, endpoint))));
            }
        }
        for node in 0..self.size.nodes {
            delta.nodes.insert(self.node(node), node_info(node));
        }
        delta
    }

    /// Changes the next Service, and adds the change to a transition. Returns the Service's number.
    pub(crate) fn change(&mut self, delta: &mut TableDelta) -> u32 {
        let service = self.turn;
        self.turn = (service + 1) % self.size.services;
        let slot = self.generations[service as usize] % self.size.endpoints;
        let before = self.endpoint(service, slot);
        self.generations[service as usize] += 1;
        let after = self.endpoint(service, slot);
        let key = self.key(service);
        delta
            .records
            .insert(key.clone(), Some(Arc::new(self.record(service))));
        for (node, lists) in [
            (before.node, None),
            (after.node, Some(Arc::new(lists_of(service, after)))),
        ] {
            let of_node = delta.lists.entry(self.node(node)).or_default();
            of_node.insert(key.clone(), lists);
        }
        service
    }

    /// The shared record of a Service.
    pub(crate) fn record(&self, service: u32) -> Record {
        let vip = Ipv4Addr::from((10 << 24 | 96 << 16) + service.wrapping_mul(7_919) % (1 << 20));
        let mut frontends = vec![Frontend::new(
            FrontendKind::ClusterIp,
            FrontendAddress::Vip(vip.into()),
            SERVICE_PORT,
        )];
        if is_local(service) {
            let address = FrontendAddress::NodeAddresses(Family::V4);
            frontends.push(Frontend {
                lists: Lists::Local,
                ..Frontend::new(FrontendKind::NodePort, address, node_port(service))
            });
        }
        let mut destinations: Vec<_> = self
            .endpoints(service)
            .map(|endpoint| Destination::new(endpoint.address()))
            .collect();
        destinations.sort_unstable();
        Record {
            frontends,
            destinations,
            available: Families::from_iter([Family::V4]),
            ..Record::new(self.key(service))
        }
    }

    /// The endpoints of a Service.
    pub(crate) fn endpoints(&self, service: u32) -> impl Iterator<Item = Endpoint> {
        (0..self.size.endpoints).map(move |slot| self.endpoint(service, slot))
    }

    /// The table that a node's agent must have in the end.
    pub(crate) fn table(&self, node: u32) -> NodeTable {
        let mut table = NodeTable {
            node: node_info(node),
            ..NodeTable::default()
        };
        for service in 0..self.size.services {
            let key = self.key(service);
            table
                .records
                .insert(key.clone(), Arc::new(self.record(service)));
            for endpoint in self.endpoints(service).filter(|e| e.node == node) {
                let lists = Arc::new(lists_of(service, endpoint));
                table.lists.insert(key.clone(), lists);
            }
        }
        table
    }

    fn key(&self, service: u32) -> RecordKey {
        self.keys[service as usize].clone()
    }

    fn node(&self, node: u32) -> NodeKey {
        self.nodes[node as usize].clone()
    }

    /// The current endpoint of a slot. Each slot has its own nodes, so two endpoints of a Service
    /// are never on one node.
    fn endpoint(&self, service: u32, slot: u32) -> Endpoint {
        let Size {
            endpoints, nodes, ..
        } = self.size;
        let generation = (self.generations[service as usize] + endpoints - 1 - slot) / endpoints;
        let row = (scramble(service, slot) % nodes + generation * STEP) % (nodes / endpoints);
        let node = row * endpoints + slot;
        let host = 2 + scramble(service, slot + generation * endpoints) % 250;
        Endpoint {
            node,
            ip: Ipv4Addr::from(u32::from(network(node)) + host),
        }
    }
}

/// The key of a node.
fn node_key(node: u32) -> NodeKey {
    NodeKey {
        cluster: "".into(),
        name: node_name(node).into(),
    }
}

/// The name of a node.
pub(crate) fn node_name(node: u32) -> String {
    format!("node-{node:05}")
}

/// The name of a node's zone.
pub(crate) fn zone(node: u32) -> &'static str {
    ["zone-a", "zone-b", "zone-c"][node as usize % 3]
}

/// The key of a Service's only port.
pub(crate) fn record_key(service: u32) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: format!("namespace-{:02}", service % 50).into(),
        service: format!("service-{service:05}").into(),
        port: "http".into(),
        protocol: Protocol::Tcp,
    }
}

/// Returns `true` if a Service has the policy Local.
fn is_local(service: u32) -> bool {
    service.is_multiple_of(LOCAL_EVERY)
}

fn node_port(service: u32) -> u16 {
    // The number is less than 2,768, so it fits.
    30_000 + u16::try_from(service / LOCAL_EVERY % 2_768).unwrap_or_default()
}

fn node_info(node: u32) -> NodeInfo {
    let network = Ipv4Net::new_assert(network(node), 24);
    NodeInfo {
        zone: Some(zone(node).into()),
        pod_cidrs: vec![IpNet::V4(network)],
        eligible: true,
        groups: Vec::new(),
        director: None,
    }
}

fn lists_of(service: u32, endpoint: Endpoint) -> NodeOverlay {
    let local = is_local(service).then(|| Destination::new(endpoint.address()));
    NodeOverlay {
        own: vec![endpoint.address()],
        local: local.into_iter().collect(),
        ..NodeOverlay::default()
    }
}

/// The Pod network of a node, a /24.
fn network(node: u32) -> Ipv4Addr {
    Ipv4Addr::from((10 << 24 | 128 << 16) + (node << 8))
}

/// A pseudorandom number, to leave no pattern to a compressor.
fn scramble(a: u32, b: u32) -> u32 {
    let mut x = u64::from(a) << 32 | u64::from(b);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SIZE: Size = Size {
        services: 30,
        endpoints: 10,
        nodes: 40,
    };

    #[test]
    fn a_service_has_all_its_endpoints_on_nodes_of_their_own_whatever_changed() {
        let mut world = World::new(SIZE).unwrap();
        for _ in 0..1_000 {
            let service = world.change(&mut TableDelta::default());
            let nodes: BTreeSet<_> = world.endpoints(service).map(|e| e.node).collect();
            assert_eq!(nodes.len(), 10);
            assert!(nodes.iter().all(|node| *node < 40));
        }
    }

    #[test]
    fn a_change_touches_one_record_and_two_nodes_and_adds_up_to_the_whole() {
        let mut world = World::new(SIZE).unwrap();
        let (mut records, mut lists) = (world.whole().records, world.whole().lists);
        for _ in 0..100 {
            let mut delta = TableDelta::default();
            let before = world.clone();
            let service = world.change(&mut delta);
            assert_ne!(world.record(service), before.record(service));
            assert_eq!((delta.records.len(), delta.lists.len()), (1, 2));
            records.extend(delta.records);
            for (node, changed) in delta.lists {
                lists.entry(node).or_default().extend(changed);
            }
        }
        for of_node in lists.values_mut() {
            of_node.retain(|_, lists| lists.is_some());
        }
        let whole = world.whole();
        assert_eq!(records, whole.records);
        lists.retain(|_, of_node| !of_node.is_empty());
        assert_eq!(lists, whole.lists);
    }
}
