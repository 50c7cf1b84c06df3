//! Which UDP flows in conntrack lead to where nothing answers any more.
//!
//! The kernel remembers for a UDP client where its packets go, for as long as it sends. Without
//! help a DNS client would stay with a server that is gone. kube-proxy's rule: of a Service port
//! with an endpoint that serves, every flow goes whose answers do not come from such an endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use portolan_dataplane::Flow;
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Families, Family, FrontendAddress, NodeTable, Protocol, Record};
use portolan_plan::{Desired, KernelState, Step};

/// The families in which steps take destinations from UDP records, or give the first one to a
/// virtual server: then flows may be stale.
pub(super) fn affected(steps: &[Step], observed: &KernelState, desired: &Desired) -> Families {
    let is_udp = |key: &VirtualServerKey| {
        let record = desired.records.get(key);
        record.is_some_and(|record| record.key.protocol == Protocol::Udp)
    };
    let was_empty = |key: &VirtualServerKey| {
        let server = observed.virtual_servers.get(key);
        server.is_none_or(|server| server.real_servers.is_empty())
    };
    let family = |step: &Step| match step {
        Step::DelRealServer { key, .. } if is_udp(key) => Some(key.family()),
        Step::AddRealServer { key, .. } | Step::FillVirtualServer { key, .. }
            if is_udp(key) && was_empty(key) =>
        {
            Some(key.family())
        }
        _ => None,
    };
    steps.iter().filter_map(family).collect()
}

/// Knows for each UDP way in of one family whose answers are good.
#[derive(Debug, Default)]
pub struct StaleFlows {
    /// What serves, by record.
    serving: Vec<BTreeSet<SocketAddr>>,
    vips: BTreeMap<SocketAddr, usize>,
    /// Node ports, of whichever address.
    node_ports: BTreeMap<u16, usize>,
}

impl StaleFlows {
    /// Of one family of a table.
    #[must_use]
    pub fn new(table: &NodeTable, family: Family) -> Self {
        let mut this = Self::default();
        let udp = table.records.values();
        for record in udp.filter(|record| record.key.protocol == Protocol::Udp) {
            if let Some(serving) = serving(table, record, family) {
                this.add(record, family, serving);
            }
        }
        this
    }

    fn add(&mut self, record: &Record, family: Family, serving: BTreeSet<SocketAddr>) {
        let index = self.serving.len();
        self.serving.push(serving);
        for frontend in record.frontends.iter().filter(|f| f.family() == family) {
            match frontend.address {
                FrontendAddress::Vip(ip) => {
                    self.vips.insert(SocketAddr::new(ip, frontend.port), index);
                }
                FrontendAddress::NodeAddresses(_) => {
                    self.node_ports.insert(frontend.port, index);
                }
            }
        }
    }

    /// Whether a UDP flow is to be forgotten.
    #[must_use]
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let to = flow.original.destination;
        let by_vip = self.vips.get(&to);
        let index = by_vip.or_else(|| self.node_ports.get(&to.port()));
        index.is_some_and(|index| !self.serving[*index].contains(&flow.reply.source))
    }
}

/// What serves a record on some node, as far as this one knows; `None` if nothing does anywhere:
/// then a flow is as good as any.
fn serving(table: &NodeTable, record: &Record, family: Family) -> Option<BTreeSet<SocketAddr>> {
    let lists = table.lists.get(&record.key);
    let own = lists
        .into_iter()
        .flat_map(|lists| lists.cluster.iter().chain(&lists.local));
    let of_family = |address: &SocketAddr| Family::of(address.ip()) == family;
    let mut serving: BTreeSet<SocketAddr> = record
        .destinations
        .iter()
        .chain(own)
        .map(|destination| destination.address)
        .filter(of_family)
        .collect();
    if serving.is_empty() && !record.available.contains(family) {
        return None;
    }
    let own = lists.into_iter().flat_map(|lists| &lists.own);
    serving.extend(own.copied().filter(of_family));
    Some(serving)
}

#[cfg(test)]
mod tests;
