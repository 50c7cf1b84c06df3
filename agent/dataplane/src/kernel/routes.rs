//! VIPs as local routes, and the node's addresses, through rtnetlink.
//!
//! `local VIP/32 dev lo table local proto 99 src NODE`: packets to the VIP are delivered to the
//! node, its own connections to the VIP leave with the node's address, and the protocol number
//! says whose route it is. Adding 10,000 takes milliseconds where addresses take seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use netlink_packet_route::address::{AddressAttribute, AddressScope};
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType,
};
use portolan_model::Family;
use portolan_netlink::Errno;
use portolan_netlink::route::{LocalRoutes, Request};
use portolan_plan::NodeFacts;
use rtnetlink::{Handle, RouteMessageBuilder};

use crate::{DataplaneError, NodePortAddresses};

/// The routing protocol number of our routes (`ip route ... proto 99`), which marks them as ours.
pub const ROUTE_PROTOCOL: u8 = 99;

/// `RT_TABLE_LOCAL`.
const TABLE_LOCAL: u32 = 255;

/// Devices whose addresses are VIPs.
const VIP_DEVICES: [&str; 2] = [portolan_plan::takeover::VIP_DEVICE, super::binding::DEVICE];

/// Reads through one rtnetlink connection, and changes routes in batches of our own: as one
/// acknowledged request each, 10,000 of them cost more than all virtual servers.
#[derive(Debug)]
pub(crate) struct Routes {
    handle: Handle,
    local: LocalRoutes,
}

impl Routes {
    /// Opens the connection; must be called within a tokio runtime.
    pub(crate) fn open() -> Result<Self, DataplaneError> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        let local = LocalRoutes::open(ROUTE_PROTOCOL).map_err(DataplaneError::RouteSocket)?;
        Ok(Self { handle, local })
    }

    /// What reads.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Our local routes, with their sources.
    pub(crate) async fn observe(&self) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, DataplaneError> {
        let mut routes = BTreeMap::new();
        for family in Family::ALL {
            let mut found = self.handle.route().get(any_local(family)).execute();
            while let Some(route) = found.try_next().await? {
                routes.extend(ours(&route));
            }
        }
        Ok(routes)
    }

    /// Makes changes, all in one batch; the result has one entry per change, in order.
    pub(crate) fn apply(&mut self, changes: &[Request]) -> Vec<Result<(), String>> {
        let errors = match self.local.apply(changes) {
            Ok(errors) => errors,
            Err(error) => return vec![Err(error.to_string()); changes.len()],
        };
        let mut results = vec![Ok(()); changes.len()];
        for error in errors {
            // That what is to be deleted is not there is no failure.
            let is_gone = error.errno == Errno::ESRCH;
            if !(is_gone && matches!(changes[error.index], Request::Del(_))) {
                results[error.index] = Err(error.errno.to_string());
            }
        }
        results
    }

    /// Reads the node's addresses. `node_ips` are the sources to use for the node's own
    /// connections; for a family without one the first address of the lowest interface is taken.
    pub(crate) async fn facts(
        &self,
        node_ips: &[IpAddr],
        node_ports: &NodePortAddresses,
    ) -> Result<NodeFacts, DataplaneError> {
        let ignored = self.ignored_links().await?;
        let mut facts = NodeFacts::default();
        let mut sources: BTreeMap<(Family, u32), IpAddr> = BTreeMap::new();
        let mut addresses = self.handle.address().get().execute();
        while let Some(message) = addresses.try_next().await? {
            if ignored.contains(&message.header.index) {
                continue;
            }
            let global = message.header.scope != AddressScope::Link
                && message.header.scope != AddressScope::Host;
            if let Some(ip) = own_address(&message.attributes) {
                facts.addresses.insert(ip);
                if global && !ip.is_loopback() {
                    facts.node_port_addresses.insert(ip);
                    sources
                        .entry((Family::of(ip), message.header.index))
                        .or_insert(ip);
                }
            }
        }
        for ((family, _), ip) in sources {
            facts.source.entry(family).or_insert(ip);
        }
        facts
            .source
            .extend(node_ips.iter().map(|ip| (Family::of(*ip), *ip)));
        let source = &facts.source;
        facts
            .node_port_addresses
            .retain(|ip| node_ports.take(*ip, source.get(&Family::of(*ip)).copied()));
        Ok(facts)
    }

    /// Dummy devices, a kube-proxy's and ours: the addresses on them are VIPs, not the node's.
    async fn ignored_links(&self) -> Result<BTreeSet<u32>, DataplaneError> {
        let mut ignored = BTreeSet::new();
        let mut links = self.handle.link().get().execute();
        while let Some(link) = links.try_next().await? {
            let name = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::IfName(name) if VIP_DEVICES.contains(&name.as_str()));
            if link.attributes.iter().any(name) {
                ignored.insert(link.header.index);
            }
        }
        Ok(ignored)
    }
}

fn any_local(family: Family) -> RouteMessage {
    match family {
        Family::V4 => RouteMessageBuilder::<std::net::Ipv4Addr>::new()
            .table_id(TABLE_LOCAL)
            .build(),
        Family::V6 => RouteMessageBuilder::<std::net::Ipv6Addr>::new()
            .table_id(TABLE_LOCAL)
            .build(),
    }
}

/// The VIP and source of a route, if it is one of ours.
fn ours(route: &RouteMessage) -> Option<(IpAddr, Option<IpAddr>)> {
    let local = route.header.kind == RouteType::Local;
    if !local || route.header.protocol != RouteProtocol::Other(ROUTE_PROTOCOL) {
        return None;
    }
    let (mut vip, mut source) = (None, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(address) => vip = ip(address),
            RouteAttribute::PrefSource(address) => source = ip(address),
            _ => {}
        }
    }
    Some((vip?, source))
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

/// The interface's own address: `Local` on a point-to-point link, where `Address` is the peer's.
pub(super) fn own_address(attributes: &[AddressAttribute]) -> Option<IpAddr> {
    let local = attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    local.or_else(|| {
        attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })
}
