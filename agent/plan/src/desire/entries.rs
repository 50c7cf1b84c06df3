// SPDX-License-Identifier: Apache-2.0

//! Set entries of a record.

use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::ipset::SetEntry;
use portolan_model::{Family, Frontend, FrontendKind, Protocol, Record};

use super::{Builder, Want};
use crate::{SetName, VipBinding};

impl Builder<'_> {
    pub(super) fn entry(&mut self, set: SetName, family: Family, entry: SetEntry) {
        if let Some((want, is_first)) = self.insert(set, family, entry) {
            self.count(want, is_first);
        }
    }

    /// Adds an entry that the current record has not added before.
    fn entry_once(&mut self, set: SetName, family: Family, entry: SetEntry) {
        if let Some((want, false)) = self.insert(set, family, entry) {
            *self.shared.entry(want).or_default() += 1;
        }
    }

    /// Puts an entry into its set; whether it is the first of its kind. `None` if the family is not served.
    fn insert(&mut self, set: SetName, family: Family, entry: SetEntry) -> Option<(Want, bool)> {
        let name = match self.names.get(&(set, family)) {
            Some(name) => Arc::clone(name),
            None if !self.config.families.contains(&family) => return None,
            None => self.add_set(set, family),
        };
        let set = self.desired.state.sets.get_mut(&*name)?;
        let is_first = set.entries.insert(entry.clone());
        Some((Want::Entry(name, entry), is_first))
    }

    /// Adds the entries that make the rules match a frontend, at one address.
    pub(super) fn frontend_entries(
        &mut self,
        record: &Record,
        frontend: &Frontend,
        address: IpAddr,
    ) {
        let family = frontend.family();
        let entry = SetEntry::IpPort(address, record.key.protocol, frontend.port);
        self.source_range_entries(record, frontend, address);
        match frontend.kind {
            // A load balancer's needs rules only if the backends must see this host as the client.
            FrontendKind::Balanced if frontend.masquerade => {
                self.entry(SetName::ExternalIp, family, entry);
            }
            FrontendKind::Balanced | FrontendKind::BalancedRanges => {}
            FrontendKind::NodePort => self.node_port_entries(frontend, record.key.protocol, entry),
            FrontendKind::ClusterIp => self.entry(SetName::ClusterIp, family, entry),
            FrontendKind::ExternalIp if frontend.masquerade => {
                self.entry(SetName::ExternalIp, family, entry);
            }
            FrontendKind::ExternalIp => self.entry(SetName::ExternalIpLocal, family, entry),
            FrontendKind::LoadBalancer => {
                self.entry(SetName::LoadBalancer, family, entry.clone());
                if !frontend.masquerade {
                    self.entry(SetName::LoadBalancerLocal, family, entry);
                }
            }
        }
    }

    fn node_port_entries(&mut self, frontend: &Frontend, protocol: Protocol, entry: SetEntry) {
        let by_port = SetEntry::Port(frontend.port);
        let (all, local, entry) = match protocol {
            Protocol::Tcp => (SetName::NodePortTcp, SetName::NodePortLocalTcp, by_port),
            Protocol::Udp => (SetName::NodePortUdp, SetName::NodePortLocalUdp, by_port),
            Protocol::Sctp => (SetName::NodePortSctp, SetName::NodePortLocalSctp, entry),
        };
        self.entry(all, frontend.family(), entry.clone());
        if !frontend.masquerade {
            self.entry(local, frontend.family(), entry);
        }
    }

    fn source_range_entries(&mut self, record: &Record, frontend: &Frontend, address: IpAddr) {
        if frontend.source_ranges.is_empty() {
            return;
        }
        let (family, protocol, port) = (frontend.family(), record.key.protocol, frontend.port);
        let entry = SetEntry::IpPort(address, protocol, port);
        self.entry(SetName::LoadBalancerFw, family, entry);
        for range in &frontend.source_ranges {
            let entry = SetEntry::IpPortNet(address, protocol, port, *range);
            self.entry(SetName::LoadBalancerSourceCidr, family, entry);
        }
        if self.is_own_source(frontend) {
            let itself = SetEntry::IpPortNet(address, protocol, port, address.into());
            self.entry(SetName::LoadBalancerSourceCidr, family, itself);
        }
    }

    /// Returns `true` if the node's own connections have the virtual address as their source and
    /// must be allowed. An address of a device is its own source; it is allowed if the node's
    /// address is, as in kube-proxy (`pkg/proxy/ipvs/proxier.go`, `allowFromNode`).
    fn is_own_source(&self, frontend: &Frontend) -> bool {
        let is_bound = frontend.bind && frontend.kind != FrontendKind::NodePort;
        let own = self.facts.source.get(&frontend.family());
        let ranges = &frontend.source_ranges;
        self.config.vip_binding == VipBinding::Address
            && is_bound
            && own.is_some_and(|own| ranges.iter().any(|range| range.contains(own)))
    }

    /// Adds the health check node port in a family of the Service.
    pub(super) fn health_check_entry(&mut self, record: &Record, family: Family) {
        if let Some(port) = record.health_check_port {
            let entry = SetEntry::Port(port);
            self.entry(SetName::HealthCheckNodePort, family, entry);
        }
    }

    /// Adds the entries for pods that connect to themselves (hairpin).
    pub(super) fn hairpin_entries(&mut self, record: &Record) {
        let table = self.table;
        let Some(lists) = table.lists.get(&record.key) else {
            return;
        };
        for address in &lists.own {
            let (ip, port) = (address.ip(), address.port());
            let entry = SetEntry::IpPortIp(ip, record.key.protocol, port, ip);
            self.entry(SetName::LoopBack, Family::of(ip), entry);
        }
    }

    /// Adds the endpoints of an import, to which TCP segments are kept small. Clamping to the path of an endpoint of the
    /// own cluster changes nothing, or helps there too.
    pub(super) fn remote_entries(&mut self, record: &Record) {
        if !self.config.clamp_remote_mss {
            return;
        }
        for endpoint in self.table.remote_endpoints(record) {
            let (ip, port) = (endpoint.ip(), endpoint.port());
            let entry = SetEntry::IpPort(ip, record.key.protocol, port);
            self.entry_once(SetName::Remote, Family::of(ip), entry);
        }
    }
}
