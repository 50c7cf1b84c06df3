// SPDX-License-Identifier: Apache-2.0

//! Addresses, protocols and ports that the node answers for, and the destinations of their connections.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::{
    Destination, Family, Frontend, FrontendAddress, FrontendKind, Lists, NodeTable, Protocol,
    Record, RecordKey,
};
use portolan_plan::NodeFacts;

use crate::size::Size;

/// One address, protocol and port that the node answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WayKey {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl std::fmt::Display for WayKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let socket = std::net::SocketAddr::new(self.address, self.port);
        write!(f, "{} {socket}", self.protocol)
    }
}

/// Treatment of the connections of one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The record that it belongs to.
    pub record: Arc<Record>,
    /// Kind of the address.
    pub kind: FrontendKind,
    /// Destinations of connections, but for those that have a list of their own.
    pub inside: List,
    /// Destinations of connections that come neither from the node's own pods nor from the node.
    pub outside: Option<List>,
    /// Connections that are masqueraded.
    pub masquerade: Masquerade,
    /// Permitted sources, none of which contains another; empty for all.
    pub ranges: Vec<IpNet>,
    /// Time for which a client stays with its destination, in seconds.
    pub affinity: Option<u32>,
}

/// Where connections go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum List {
    /// To one of these destinations, at least one of which has a weight.
    To(Vec<Destination>),
    /// Nowhere: other nodes have endpoints.
    Drop,
    /// Back: no node has an endpoint.
    Refuse,
}

/// Connections that get the node's address as their source, besides those to cluster IPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Masquerade {
    /// Nobody's.
    None,
    /// The node's own.
    Own,
    /// Everybody's.
    All,
}

/// An endpoint of this node, which may connect to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hairpin(pub WayKey);

/// Way or record that is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A way that another record has.
    #[error("{record}: {key} already belongs to {holder}")]
    Taken {
        /// The record.
        record: RecordKey,
        /// The way.
        key: WayKey,
        /// The record that has it.
        holder: RecordKey,
    },
    /// A record of so many endpoints and source ranges, at all of its addresses and ports, that the kernel would not
    /// take the table in one transaction.
    #[error(
        "{record}: {elements} endpoints and source ranges, at all of its addresses and ports together, are too many for a \
         transaction of nftables beside those of other records"
    )]
    TooLarge {
        /// The record.
        record: RecordKey,
        /// Their number.
        elements: u64,
    },
    /// A load balancer, whose schedulers and forwarding methods are those of IPVS.
    #[error("{record}: a load balancer needs --dataplane ipvs")]
    Balanced {
        /// The record.
        record: RecordKey,
    },
}

impl Refused {
    /// The affected record.
    #[must_use]
    pub fn record(&self) -> &RecordKey {
        match self {
            Self::Taken { record, .. }
            | Self::TooLarge { record, .. }
            | Self::Balanced { record } => record,
        }
    }
}

/// All ways of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ways {
    /// The ways.
    pub ways: BTreeMap<WayKey, Way>,
    /// The endpoints of this node, and how many times records have each.
    pub hairpins: BTreeMap<Hairpin, u32>,
    /// The TCP endpoints of imports, and how many records have each.
    pub remote: BTreeMap<WayKey, u32>,
    /// Ways and records that are left out. The first record, in order of keys, has a way.
    pub refused: Vec<Refused>,
    /// The size of the ways.
    pub(crate) size: Size,
}

impl Ways {
    /// The ways of a table on a node with these addresses.
    #[must_use]
    pub fn new(table: &NodeTable, facts: &NodeFacts) -> Self {
        let mut this = Self::default();
        for record in table.records.values() {
            this.add(table, facts, record);
        }
        if this.size.is_too_large() {
            this.leave_out_largest(table);
        }
        this
    }

    /// Removes a way, if it is there.
    pub(crate) fn remove_way(&mut self, key: &WayKey) {
        if let Some(way) = self.ways.remove(key) {
            self.size.remove(key, &way);
        }
    }

    /// Counts a record less for each of its endpoints.
    pub(crate) fn release_endpoints(&mut self, table: &NodeTable, record: &Record) {
        for hairpin in Self::hairpins_of(table, record) {
            release(&mut self.hairpins, &hairpin);
        }
        for endpoint in Self::remote_of(table, record) {
            release(&mut self.remote, &endpoint);
        }
    }

    /// Adds what a record has.
    pub(crate) fn add(&mut self, table: &NodeTable, facts: &NodeFacts, record: &Arc<Record>) {
        if record.balancing.is_some() {
            let record = record.key.clone();
            self.refused.push(Refused::Balanced { record });
            return;
        }
        for frontend in &record.frontends {
            self.frontend(table, facts, record, frontend);
        }
        for hairpin in Self::hairpins_of(table, record) {
            *self.hairpins.entry(hairpin).or_default() += 1;
        }
        for endpoint in Self::remote_of(table, record) {
            *self.remote.entry(endpoint).or_default() += 1;
        }
    }

    /// The ways that a record asks for.
    pub(crate) fn keys(record: &Record, facts: &NodeFacts) -> impl Iterator<Item = WayKey> {
        let frontends = match record.balancing {
            None => &record.frontends[..],
            Some(_) => &[],
        };
        let protocol = record.key.protocol;
        frontends.iter().flat_map(move |frontend| {
            let addresses = addresses(facts, frontend).into_iter();
            addresses.map(move |address| WayKey {
                address,
                protocol,
                port: frontend.port,
            })
        })
    }

    /// The endpoints of this node that a record has.
    pub(crate) fn hairpins_of(table: &NodeTable, record: &Record) -> impl Iterator<Item = Hairpin> {
        let own = table.lists.get(&record.key);
        let own = own.filter(|_| record.balancing.is_none()).into_iter();
        let protocol = record.key.protocol;
        own.flat_map(|lists| &lists.own).map(move |socket| {
            Hairpin(WayKey {
                address: socket.ip(),
                protocol,
                port: socket.port(),
            })
        })
    }

    /// The TCP endpoints of a record of an import.
    pub(crate) fn remote_of(
        table: &NodeTable,
        record: &Record,
    ) -> impl Iterator<Item = WayKey> + use<> {
        let protocol = record.key.protocol;
        let endpoints = table.remote_endpoints(record).into_iter();
        endpoints.map(move |socket| WayKey {
            address: socket.ip(),
            protocol,
            port: socket.port(),
        })
    }

    /// The ways of an address.
    pub(crate) fn ways_of_address(&self, address: IpAddr) -> impl Iterator<Item = (&WayKey, &Way)> {
        let first = WayKey {
            address,
            protocol: Protocol::Tcp,
            port: 0,
        };
        let from = self.ways.range(first..);
        from.take_while(move |(key, _)| key.address == address)
    }

    fn frontend(
        &mut self,
        table: &NodeTable,
        facts: &NodeFacts,
        record: &Arc<Record>,
        frontend: &Frontend,
    ) {
        let addresses = addresses(facts, frontend);
        if addresses.is_empty() {
            return;
        }
        let way = way(table, record, frontend);
        for address in addresses {
            let key = WayKey {
                address,
                protocol: record.key.protocol,
                port: frontend.port,
            };
            match self.ways.get(&key) {
                None => {
                    self.size.add(&key, &way);
                    self.ways.insert(key, way.clone());
                }
                Some(held) => self.refused.push(Refused::Taken {
                    record: record.key.clone(),
                    key,
                    holder: held.record.key.clone(),
                }),
            }
        }
    }
}

/// Counts a record less for a key that records share.
fn release<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// The addresses of a frontend on this node. Packets to the address of another Node only pass.
fn addresses(facts: &NodeFacts, frontend: &Frontend) -> Vec<IpAddr> {
    match frontend.address {
        FrontendAddress::Vip(ip) if !frontend.bind && !facts.addresses.contains(&ip) => Vec::new(),
        FrontendAddress::Vip(ip) => vec![ip],
        FrontendAddress::Mark { .. } => Vec::new(),
        FrontendAddress::NodeAddresses(family) => {
            let addresses = facts.node_port_addresses.iter().copied();
            addresses.filter(|ip| Family::of(*ip) == family).collect()
        }
    }
}

fn way(table: &NodeTable, record: &Arc<Record>, frontend: &Frontend) -> Way {
    let family = frontend.family();
    let held = || {
        let is_elsewhere = record.available.contains(family);
        let empty = if is_elsewhere {
            List::Drop
        } else {
            List::Refuse
        };
        list(table, record, family, Lists::Local, empty)
    };
    let cluster = || list(table, record, family, Lists::Cluster, List::Refuse);
    let (inside, outside) = match frontend.lists {
        Lists::Cluster => (cluster(), None),
        Lists::Local if frontend.has_short_circuit() => (cluster(), Some(held())),
        Lists::Local => (held(), None),
    };
    let masquerade = match frontend.kind {
        FrontendKind::ClusterIp => Masquerade::None,
        _ if frontend.masquerade => Masquerade::All,
        _ => Masquerade::Own,
    };
    let ranges = frontend.source_ranges.iter().copied();
    let ranges: Vec<_> = ranges
        .filter(|range| Family::of(range.addr()) == family)
        .collect();
    Way {
        record: Arc::clone(record),
        kind: frontend.kind,
        inside,
        outside,
        masquerade,
        ranges: IpNet::aggregate(&ranges),
        affinity: record.affinity.map(|affinity| affinity.timeout_seconds),
    }
}

fn list(table: &NodeTable, record: &Record, family: Family, lists: Lists, empty: List) -> List {
    let mut list = table.list(record, family, lists);
    list.retain(|destination| destination.weight > 0);
    if list.is_empty() {
        empty
    } else {
        List::To(list)
    }
}
