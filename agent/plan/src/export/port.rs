// SPDX-License-Identifier: Apache-2.0

//! A Service port in one family, as both texts of a kube-proxy's rules need it.

use std::net::IpAddr;

use portolan_model::{
    Destination, Family, Frontend, FrontendAddress, FrontendKind, Lists, NodeTable, Protocol,
    Record, RecordKey,
};

/// A Service port in one family. `N` is the names of its chains.
pub(super) struct Port<'a, N> {
    pub(super) record: &'a Record,
    /// `namespace/service:port`, without the colon if the port has no name.
    pub(super) name: String,
    /// The protocol in lower case.
    pub(super) protocol: &'static str,
    pub(super) names: N,
    frontends: Vec<&'a Frontend>,
    /// The cluster-wide list, in kube-proxy's order; empty where no connection uses it.
    pub(super) cluster: Vec<Destination>,
    /// The node's own list; the same.
    pub(super) local: Vec<Destination>,
    /// Whether some node has an endpoint.
    pub(super) has_endpoints: bool,
}

impl<'a, N> Port<'a, N> {
    /// `None` if no client can reach it by this family.
    pub(super) fn new(
        table: &NodeTable,
        family: Family,
        record: &'a Record,
        names: impl FnOnce(&RecordKey) -> N,
    ) -> Option<Self> {
        let frontends = record.frontends.iter();
        let frontends: Vec<_> = frontends.filter(|f| f.family() == family).collect();
        if frontends.is_empty() {
            return None;
        }
        let list = |lists| {
            let mut list = table.list(record, family, lists);
            list.retain(|destination| destination.weight > 0);
            list.sort_by_key(|destination| destination.address.to_string());
            list
        };
        let uses_cluster = |f: &&Frontend| f.lists == Lists::Cluster || f.has_short_circuit();
        let cluster = match frontends.iter().any(uses_cluster) {
            true => list(Lists::Cluster),
            false => Vec::new(),
        };
        let local = match frontends.iter().any(|f| f.lists == Lists::Local) {
            true => list(Lists::Local),
            false => Vec::new(),
        };
        Some(Self {
            has_endpoints: record.available.contains(family) || !cluster.is_empty(),
            record,
            name: port_name(&record.key),
            protocol: protocol(record.key.protocol),
            names: names(&record.key),
            frontends,
            cluster,
            local,
        })
    }

    /// Frontends of a kind.
    pub(super) fn of_kind(&self, kind: FrontendKind) -> impl Iterator<Item = &'a Frontend> {
        let frontends = self.frontends.iter().copied();
        frontends.filter(move |frontend| frontend.kind == kind)
    }

    /// A way from outside, if there is one: all have one policy.
    pub(super) fn external(&self) -> Option<&'a Frontend> {
        let mut frontends = self.frontends.iter().copied();
        frontends.find(|frontend| frontend.kind != FrontendKind::ClusterIp)
    }

    /// Returns `true` if a list that connections are limited to has an endpoint.
    pub(super) fn has_any(&self, lists: Lists) -> bool {
        match lists {
            Lists::Cluster => self.has_endpoints,
            Lists::Local => !self.local.is_empty(),
        }
    }

    /// The endpoints of a list.
    pub(super) fn list(&self, lists: Lists) -> &[Destination] {
        match lists {
            Lists::Cluster => &self.cluster,
            Lists::Local => &self.local,
        }
    }

    /// The permitted sources of balancer IPs.
    pub(super) fn ranges(&self) -> &'a [ipnet::IpNet] {
        let mut balancers = self.of_kind(FrontendKind::LoadBalancer);
        let restricted = balancers.find(|frontend| !frontend.source_ranges.is_empty());
        restricted.map_or(&[], |frontend| &frontend.source_ranges)
    }

    /// Balancer IPs that are permitted sources: the node's own connections to one that it has as an address come from
    /// that address. They are, if the node's address is permitted.
    pub(super) fn permitted_balancers(
        &self,
        node_ip: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> {
        let ranges = self.ranges();
        let is_permitted = node_ip.is_some_and(|ip| ranges.iter().any(|range| range.contains(&ip)));
        let balancers = self.of_kind(FrontendKind::LoadBalancer).filter_map(vip);
        balancers.filter(move |_| is_permitted)
    }
}

/// The address of a frontend that has one of its own.
pub(super) fn vip(frontend: &Frontend) -> Option<IpAddr> {
    match frontend.address {
        FrontendAddress::Vip(ip) => Some(ip),
        _ => None,
    }
}

/// The protocol in lower case.
pub(super) const fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// `namespace/service:port`, without the colon if the port has no name.
pub(super) fn port_name(key: &RecordKey) -> String {
    let mut name = format!("{}/{}", key.namespace, key.service);
    if !key.port.is_empty() {
        name.push(':');
        name.push_str(&key.port);
    }
    name
}
