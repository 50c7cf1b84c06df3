//! VIPs as local routes, and the node's addresses.
//!
//! `local VIP/32 dev lo table local proto 99 metric 1099 src NODE`: packets to the VIP are delivered
//! to the node, its own connections to the VIP leave with the node's address, and the protocol number
//! says whose route it is. Adding 10,000 takes milliseconds where addresses take seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use netlink_packet_route::address::{AddressAttribute, AddressScope};
use netlink_packet_route::link::LinkAttribute;
use portolan_model::Family;
use portolan_netlink::Errno;
use portolan_netlink::route::{LocalRoutes, Mark, Request, Route};
use portolan_plan::{KernelState, NodeFacts, Step};
use rtnetlink::Handle;
use tokio::task::JoinHandle;

use super::glance::Sum;
use crate::runs::StepFailure;
use crate::{DataplaneError, NodePortAddresses};

/// The routing protocol number (`ip route ... proto 99`), which says that a route is ours, and the
/// metric: with one that nobody else has we replace nobody's route. Others' go first: an address's has
/// 0, and one that is made without any has 0 or, in IPv6, 1024.
pub const ROUTE_MARK: Mark = Mark {
    protocol: 99,
    metric: 1099,
};

/// Devices whose addresses are VIPs.
const VIP_DEVICES: [&str; 2] = [
    portolan_plan::kube_proxy::VIP_DEVICE,
    super::binding::DEVICE,
];

/// The routes of single addresses in the table of local ones.
#[derive(Debug, Default)]
pub(crate) struct ObservedRoutes {
    /// Ours, with their sources.
    pub(crate) ours: BTreeMap<IpAddr, Option<IpAddr>>,
    /// The addresses of which somebody else has one.
    pub(crate) foreign: BTreeSet<IpAddr>,
}

/// Reads links and addresses through one rtnetlink connection. Routes go over a socket of our own:
/// as one acknowledged request each, 10,000 of them cost more than all virtual servers.
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
        let (handle, connection) = connect()?;
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

    /// What reads: over a new connection if the last one has ended.
    pub(super) fn handle(&mut self) -> std::io::Result<&Handle> {
        if self.connection.is_finished() {
            tracing::warn!("the connection to rtnetlink has ended: there is a new one");
            (self.handle, self.connection) = connect()?;
        }
        Ok(&self.handle)
    }

    /// Our local routes, and others'.
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

    /// Of all of them.
    pub(crate) fn sum(&mut self) -> Result<Sum, DataplaneError> {
        let mut sums = [Sum::default(); 2];
        for (sum, family) in sums.iter_mut().zip(Family::ALL) {
            let add = |sum: &mut Sum, route| match route {
                Route::Ours { address, source } => sum.add(&(address, Some(source))),
                Route::Foreign { address } => sum.add(&(address, None::<Option<IpAddr>>)),
            };
            let of_family = self.local.read(family, add);
            *sum = of_family.map_err(DataplaneError::RouteSocket)?;
        }
        let mut both = Sum::default();
        both.add(&sums);
        Ok(both)
    }

    /// What is otherwise of them.
    pub(crate) fn glance(
        &mut self,
        observed: &KernelState,
    ) -> Result<Option<String>, DataplaneError> {
        let seen = self.observe()?;
        if seen.foreign != observed.foreign_routes {
            return Ok(Some("others' local routes are not as they were".to_owned()));
        }
        let routes = observed.routes.iter();
        let missing = routes.filter(|(vip, source)| seen.ours.get(*vip) != Some(*source));
        let missing = missing.count();
        Ok((missing > 0).then(|| format!("{missing} local routes are not as they were")))
    }

    /// Makes the changes that steps ask for, all in one batch; one result for each, in order.
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
            // That what is to be deleted is not there is no failure.
            let is_gone = error.errno == Errno::ESRCH;
            if !(is_gone && matches!(changes[error.index], Request::Del(_))) {
                results[error.index] = Err(StepFailure::refused(steps[error.index], error.errno));
            }
        }
        results
    }

    /// Reads the node's addresses. `node_ips` are the sources to use for the node's own
    /// connections; for a family without one the first address of the lowest interface is taken.
    pub(crate) async fn facts(
        &mut self,
        node_ips: &[IpAddr],
        node_ports: &NodePortAddresses,
    ) -> Result<NodeFacts, DataplaneError> {
        let handle = self.handle()?;
        let ignored = ignored_links(handle).await?;
        let mut facts = NodeFacts::default();
        let mut sources: BTreeMap<(Family, u32), IpAddr> = BTreeMap::new();
        let mut addresses = handle.address().get().execute();
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
            .retain(|ip| node_ports.accepts(*ip, source.get(&Family::of(*ip)).copied()));
        Ok(facts)
    }
}

fn change(step: &Step) -> Option<Request> {
    match step {
        Step::AddRoute { vip, source } => Some(Request::Add(*vip, *source)),
        Step::SetRoute { vip, source } => Some(Request::Set(*vip, *source)),
        Step::DelRoute { vip } => Some(Request::Del(*vip)),
        _ => None,
    }
}

fn connect() -> std::io::Result<(Handle, JoinHandle<()>)> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    Ok((handle, tokio::spawn(connection)))
}

/// Dummy devices, a kube-proxy's and ours: the addresses on them are VIPs, not the node's.
async fn ignored_links(handle: &Handle) -> Result<BTreeSet<u32>, DataplaneError> {
    let mut ignored = BTreeSet::new();
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await? {
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
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_is_a_new_connection_when_the_last_one_has_ended() {
        let mut routes = Routes::open().unwrap();
        let node_ports = NodePortAddresses::default();
        let before = routes.facts(&[], &node_ports).await.unwrap();
        routes.connection.abort();
        while !routes.connection.is_finished() {
            tokio::task::yield_now().await;
        }
        assert_eq!(routes.facts(&[], &node_ports).await.unwrap(), before);
    }
}
