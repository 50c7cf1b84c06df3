// SPDX-License-Identifier: Apache-2.0

//! Stale UDP flows in conntrack.
//!
//! The kernel keeps the destination of a UDP client for as long as the client sends. A DNS client would
//! stay with a deleted server. The rule is kube-proxy's: if a Service port has a serving endpoint, flows
//! whose replies come from no serving endpoint are stale.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use portolan_dataplane::{Dataplane, DataplaneError, Flow};
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Families, Family, FrontendAddress, NodeTable, Protocol, Record};
use portolan_plan::{Desired, KernelState, Step};

use crate::Reconciler;

/// Families in which flows may be stale after steps: they delete a UDP destination, or add the first one
/// of a virtual server.
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

impl<D: Dataplane> Reconciler<D> {
    /// Deletes UDP flows to endpoints that no longer serve from conntrack, if steps since the last call may
    /// have left any; returns how many.
    ///
    /// # Errors
    /// If the flows cannot be read or deleted. The next call tries again.
    pub async fn forget_stale_flows(
        &mut self,
        table: &NodeTable,
    ) -> Result<Option<usize>, DataplaneError> {
        if self.flows_due.is_empty() {
            return Ok(None);
        }
        let mut deleted = 0;
        for family in self.flows_due.iter() {
            let stale = StaleFlows::new(table, family);
            let is_stale = |flow: &Flow| stale.is_stale(flow);
            let flows = self.dataplane.flows(family, &is_stale).await?;
            if !flows.is_empty() {
                deleted += self.dataplane.delete_flows(&flows).await?;
            }
        }
        self.flows_due = Families::NONE;
        Ok(Some(deleted))
    }
}

/// Serving endpoints of each UDP frontend in one family.
#[derive(Debug, Default)]
pub struct StaleFlows {
    /// Serving endpoints by record.
    serving: Vec<BTreeSet<SocketAddr>>,
    vips: BTreeMap<SocketAddr, usize>,
    /// Node ports of any address.
    node_ports: BTreeMap<u16, usize>,
}

impl StaleFlows {
    /// Collects the frontends of one family of a table.
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
                    let places = frontend.ports().map(|port| SocketAddr::new(ip, port));
                    self.vips.extend(places.map(|place| (place, index)));
                }
                // Which flows have the mark is not known.
                FrontendAddress::Mark { .. } => {}
                FrontendAddress::NodeAddresses(_) => {
                    self.node_ports.insert(frontend.port, index);
                }
            }
        }
    }

    /// Whether a UDP flow is stale.
    #[must_use]
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let to = flow.original.destination;
        let by_vip = self.vips.get(&to);
        let index = by_vip.or_else(|| self.node_ports.get(&to.port()));
        index.is_some_and(|index| !self.serving[*index].contains(&flow.reply.source))
    }
}

/// Serving endpoints of a record; `None` if no node has any: no flow is stale then.
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
