// SPDX-License-Identifier: Apache-2.0

//! VIPs as local routes, and the node's addresses.
//!
//! `local VIP/32 dev lo table local proto 99 metric 1099 src NODE` delivers packets to the VIP to the node
//! and gives the node's own connections to the VIP the node's address. The protocol number identifies our
//! routes. Adding 10,000 routes takes milliseconds, adding as many addresses takes seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::LinkAttribute;
use portolan_model::Family;
use portolan_netlink::Errno;
use portolan_netlink::route::{LocalRoutes, Mark, Request, Route};
use portolan_plan::{KernelState, NodeFacts, Step, VipBinding};
use rtnetlink::Handle;
use tokio::task::JoinHandle;

use super::glance::Sum;
use super::{KernelConfig, dumps};
use crate::runs::StepFailure;
use crate::{DataplaneError, NodePortAddresses};

/// Protocol number (`ip route ... proto 99`) and metric of our routes. A metric of our own replaces no
/// foreign route. Foreign ones take precedence: the route of an address has 0, one without a metric 0 or,
/// in IPv6, 1024.
pub const ROUTE_MARK: Mark = Mark {
    protocol: 99,
    metric: 1099,
};

/// Devices with VIPs as addresses.
const VIP_DEVICES: [&str; 2] = [
    portolan_plan::kube_proxy::VIP_DEVICE,
    super::binding::DEVICE,
];

/// Routes of single addresses in the `local` table.
#[derive(Debug, Default)]
pub(crate) struct ObservedRoutes {
    /// Ours, with their sources.
    pub(crate) ours: BTreeMap<IpAddr, Option<IpAddr>>,
    /// Addresses with a foreign route.
    pub(crate) foreign: BTreeSet<IpAddr>,
}

/// Reads links and addresses through one rtnetlink connection. Routes go through a batching socket:
/// 10,000 acknowledged requests would cost more than all virtual servers.
#[derive(Debug)]
pub(crate) struct Routes {
    handle: Handle,
    /// Ends with the last handle, or by an error of its socket.
    connection: JoinHandle<()>,
    local: LocalRoutes,
}

impl Routes {
    /// Opens the connection; must be called within a tokio runtime.
    pub(crate) fn open() -> Result<Self, DataplaneError> {
        let (handle, connection) = dumps::connect()?;
        let local = LocalRoutes::open(ROUTE_MARK).map_err(DataplaneError::RouteSocket)?;
        Ok(Self {
            handle,
            connection,
            local,
        })
    }

    pub(crate) fn requests(&self) -> u32 {
        self.local.requests()
    }

    /// The connection's handle; reconnects if the connection has ended.
    pub(super) fn handle(&mut self) -> std::io::Result<&Handle> {
        if self.connection.is_finished() {
            tracing::warn!("rtnetlink connection ended: reconnecting");
            (self.handle, self.connection) = dumps::connect()?;
        }
        Ok(&self.handle)
    }

    /// Reads our local routes and foreign ones.
    pub(crate) fn observe(&mut self) -> Result<ObservedRoutes, DataplaneError> {
        let mut seen = ObservedRoutes::default();
        for family in Family::ALL {
            let add = |found: &mut Vec<Route>, route| found.push(route);
            let found = self.local.read(family, add);
            for route in found.map_err(DataplaneError::RouteSocket)? {
                match route {
                    Route::Ours { address, source } => drop(seen.ours.insert(address, source)),
                    Route::Foreign { address } => drop(seen.foreign.insert(address)),
                }
            }
        }
        Ok(seen)
    }

    /// Addresses with a route that the kernel added because a device has them.
    pub(crate) fn of_addresses(
        &mut self,
        family: Family,
    ) -> Result<BTreeSet<IpAddr>, DataplaneError> {
        let found = self.local.of_addresses(family);
        found.map_err(DataplaneError::RouteSocket)
    }

    /// Sum of all local routes; with a binding by addresses, of those that the kernel added for addresses too.
    pub(crate) fn sum(&mut self, binding: VipBinding) -> Result<Sum, DataplaneError> {
        let mut sums = [Sum::default(); 2];
        for (sum, family) in sums.iter_mut().zip(Family::ALL) {
            let add = |sum: &mut Sum, route| match route {
                Route::Ours { address, source } => sum.add(&(address, Some(source))),
                Route::Foreign { address } => sum.add(&(address, None::<Option<IpAddr>>)),
            };
            let of_family = self.local.read(family, add);
            *sum = of_family.map_err(DataplaneError::RouteSocket)?;
        }
        let mut all = Sum::default();
        all.add(&sums);
        for address in self.bound(binding)?.into_iter().flatten() {
            all.add(&address);
        }
        Ok(all)
    }

    /// First difference in what binds VIPs.
    pub(crate) fn glance(
        &mut self,
        observed: &KernelState,
        binding: VipBinding,
    ) -> Result<Option<String>, DataplaneError> {
        let seen = self.observe()?;
        let bound = self.bound(binding)?;
        Ok(difference(observed, &seen, bound.as_ref()))
    }

    /// Addresses of all devices, if they bind VIPs.
    fn bound(&mut self, binding: VipBinding) -> Result<Option<BTreeSet<IpAddr>>, DataplaneError> {
        if binding != VipBinding::Address {
            return Ok(None);
        }
        let mut bound = BTreeSet::new();
        for family in Family::ALL {
            bound.extend(self.of_addresses(family)?);
        }
        Ok(Some(bound))
    }

    /// Applies steps in one batch; one result each.
    pub(crate) fn apply(&mut self, steps: &[&Step]) -> Vec<Result<(), StepFailure>> {
        let changes: Vec<Request> = steps.iter().filter_map(|step| change(step)).collect();
        let mut results: Vec<Result<(), StepFailure>> = steps.iter().map(|_| Ok(())).collect();
        let errors = match self.local.apply(&changes) {
            Ok(errors) => errors,
            Err(error) => {
                results.fill_with(|| Err(StepFailure::lost(error.to_string())));
                return results;
            }
        };
        for error in errors {
            // Deletion of a missing route is no failure.
            let is_gone = error.errno == Errno::ESRCH;
            if !(is_gone && matches!(changes[error.index], Request::Del(_))) {
                results[error.index] = Err(StepFailure::refused(steps[error.index], error.errno));
            }
        }
        results
    }

    /// Reads the node's addresses. `node_ips` are the sources of the node's own connections; the default is
    /// the first address of the lowest interface.
    pub(crate) async fn facts(
        &mut self,
        node_ips: &[IpAddr],
        node_ports: &NodePortAddresses,
    ) -> Result<NodeFacts, DataplaneError> {
        let handle = self.handle()?;
        let ignored = ignored_links(handle).await?;
        let mut facts = facts_of(&dumps::addresses(handle).await?, &ignored);
        facts
            .source
            .extend(node_ips.iter().map(|ip| (Family::of(*ip), *ip)));
        let source = &facts.source;
        facts
            .node_port_addresses
            .retain(|ip| node_ports.accepts(*ip, source.get(&Family::of(*ip)).copied()));
        Ok(facts)
    }
}

/// The facts that the addresses of links tell. Those of `ignored` links are left out.
///
/// Each link has a link-local address of IPv6, and each Pod that starts or stops adds or removes a link. No packet to a
/// VIP has such an address, and other facts would have everything computed again: they are left out too. An operator
/// may give the scope to any address of IPv4.
fn facts_of(messages: &[AddressMessage], ignored: &BTreeSet<u32>) -> NodeFacts {
    let mut facts = NodeFacts::default();
    let mut sources: BTreeMap<(Family, u32), IpAddr> = BTreeMap::new();
    for message in messages {
        let (scope, index) = (message.header.scope, message.header.index);
        let Some(ip) = own_address(&message.attributes) else {
            continue;
        };
        let is_link_local = scope == AddressScope::Link && ip.is_ipv6();
        if is_link_local || ignored.contains(&index) {
            continue;
        }
        facts.addresses.insert(ip);
        let is_global = scope != AddressScope::Link && scope != AddressScope::Host;
        if is_global && !ip.is_loopback() {
            facts.node_port_addresses.insert(ip);
            sources.entry((Family::of(ip), index)).or_insert(ip);
        }
    }
    for ((family, _), ip) in sources {
        facts.source.entry(family).or_insert(ip);
    }
    facts
}

/// Reads the facts about the node that need no right and nothing of IPVS. Must be called within a tokio
/// runtime.
///
/// # Errors
/// If addresses cannot be read.
pub async fn node_facts(config: &KernelConfig) -> Result<NodeFacts, DataplaneError> {
    let mut routes = Routes::open()?;
    let facts = routes.facts(&config.node_ips, &config.node_port_addresses);
    facts.await
}

/// First difference between observed routes of VIPs and those that are there. VIPs that are bound by addresses have no
/// route of ours: the kernel has one for each address.
fn difference(
    observed: &KernelState,
    seen: &ObservedRoutes,
    bound: Option<&BTreeSet<IpAddr>>,
) -> Option<String> {
    if seen.foreign != observed.foreign_routes {
        return Some("foreign local routes have changed".to_owned());
    }
    let is_there = |vip: &IpAddr, source: &Option<IpAddr>| match bound {
        None => seen.ours.get(vip) == Some(source),
        Some(bound) => bound.contains(vip) && !seen.ours.contains_key(vip),
    };
    let routes = observed.routes.iter();
    let changed = routes
        .filter(|(vip, source)| !is_there(vip, source))
        .count();
    let what = match bound {
        None => "local routes",
        Some(_) => "addresses of VIPs",
    };
    (changed > 0).then(|| format!("{changed} {what} have changed"))
}

fn change(step: &Step) -> Option<Request> {
    match step {
        Step::AddRoute { vip, source } => Some(Request::Add(*vip, *source)),
        Step::SetRoute { vip, source } => Some(Request::Set(*vip, *source)),
        Step::DelRoute { vip } => Some(Request::Del(*vip)),
        _ => None,
    }
}

/// Dummy devices of a kube-proxy and of ours: their addresses are VIPs, not the node's.
async fn ignored_links(handle: &Handle) -> Result<BTreeSet<u32>, DataplaneError> {
    let mut ignored = BTreeSet::new();
    for link in dumps::links(handle).await? {
        let name = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::IfName(name) if VIP_DEVICES.contains(&name.as_str()));
        if link.attributes.iter().any(name) {
            ignored.insert(link.header.index);
        }
    }
    Ok(ignored)
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

#[cfg(test)]
mod tests;
