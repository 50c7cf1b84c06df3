// SPDX-License-Identifier: Apache-2.0

//! Stale UDP flows in conntrack.
//!
//! The kernel keeps the destination of a UDP client for as long as the client sends. A DNS client would
//! stay with a deleted server. The rule is kube-proxy's: if a Service port has a serving endpoint, flows
//! whose replies come from no serving endpoint are stale. Flows that only pass this node are none of ours, as
//! those to another host's port with the number of a node port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use portolan_dataplane::{Dataplane, DataplaneError, Flow};
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Families, Family, FrontendAddress, NodeTable, Protocol, Record};
use portolan_plan::{Desired, KernelState, NodeFacts, Step};

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
        let facts = match self.facts.take() {
            Some(facts) => facts,
            None => self.dataplane.facts().await?,
        };
        let facts = self.facts.insert(facts);
        let mut deleted = 0;
        for family in self.flows_due.iter() {
            let stale = StaleFlows::new(table, facts, family);
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
#[derive(Debug)]
pub struct StaleFlows<'a> {
    facts: &'a NodeFacts,
    /// Serving endpoints by record.
    serving: Vec<BTreeSet<SocketAddr>>,
    vips: BTreeMap<SocketAddr, usize>,
    /// VIPs of other nodes: packets to them pass this one.
    passing: BTreeSet<SocketAddr>,
    node_ports: BTreeMap<u16, usize>,
}

impl<'a> StaleFlows<'a> {
    /// Collects the frontends of one family of a table.
    #[must_use]
    pub fn new(table: &NodeTable, facts: &'a NodeFacts, family: Family) -> Self {
        let mut this = Self {
            facts,
            serving: Vec::new(),
            vips: BTreeMap::new(),
            passing: BTreeSet::new(),
            node_ports: BTreeMap::new(),
        };
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
                    let places = || frontend.ports().map(move |port| SocketAddr::new(ip, port));
                    self.vips.extend(places().map(|place| (place, index)));
                    if !frontend.bind && !self.facts.addresses.contains(&ip) {
                        self.passing.extend(places());
                    }
                }
                // Which flows have the mark is not known.
                FrontendAddress::Mark { .. } => {}
                FrontendAddress::NodeAddresses(_) => {
                    self.node_ports.insert(frontend.port, index);
                }
            }
        }
    }

    /// Returns `true` if a UDP flow is stale.
    #[must_use]
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let (to, from) = (flow.original.destination, flow.reply.source);
        let only_passes = from == to && self.passing.contains(&to);
        let index = self.vips.get(&to).or_else(|| self.node_port(to));
        index.is_some_and(|index| !only_passes && !self.serving[*index].contains(&from))
    }

    /// The record of a node port. A port of the same number at another address is no node port of this node.
    fn node_port(&self, at: SocketAddr) -> Option<&usize> {
        let is_ours = self.facts.node_port_addresses.contains(&at.ip());
        self.node_ports.get(&at.port()).filter(|_| is_ours)
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
