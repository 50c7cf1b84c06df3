//! What the kernel should hold for a table.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portolan_model::ipset::{Set, SetEntry, SetHeader};
use portolan_model::ipvs::{
    ForwardingMethod, RealServerConfig, VirtualServer, VirtualServerConfig, VirtualServerKey,
};
use portolan_model::{
    Family, Frontend, FrontendAddress, FrontendKind, NodeTable, Protocol, Record, RecordKey,
};

use crate::{Config, KernelState, NodeFacts, SetName, rules};

/// What the kernel should hold, and what of the table could not be wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// The state.
    pub state: KernelState,
    /// Which record each virtual server comes from.
    pub records: BTreeMap<VirtualServerKey, RecordKey>,
    /// What was left out.
    pub refused: Vec<Refused>,
}

/// A way in that was left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Somebody else's virtual server is in the way.
    #[error("{record}: virtual server {key} exists and is not ours: left alone")]
    Foreign {
        /// The record.
        record: RecordKey,
        /// The virtual server.
        key: VirtualServerKey,
    },
    /// Two records want the same virtual server; the other one has it.
    #[error("{record}: virtual server {key} already belongs to {holder}")]
    Taken {
        /// The record.
        record: RecordKey,
        /// The virtual server.
        key: VirtualServerKey,
        /// Who has it.
        holder: RecordKey,
    },
}

impl Refused {
    /// The record that is affected.
    #[must_use]
    pub fn record(&self) -> &RecordKey {
        match self {
            Self::Foreign { record, .. } | Self::Taken { record, .. } => record,
        }
    }
}

/// Says what the kernel should hold. `foreign` are the virtual servers that it holds and that are
/// not ours; one that is just as we want it is adopted, any other is left alone.
#[must_use]
pub fn desire(
    table: &NodeTable,
    facts: &NodeFacts,
    config: &Config,
    foreign: &BTreeMap<VirtualServerKey, VirtualServer>,
) -> Desired {
    let mut builder = Builder {
        table,
        facts,
        config,
        foreign,
        desired: Desired::default(),
    };
    builder.create_sets();
    for record in table.records.values() {
        for frontend in &record.frontends {
            if config.families.contains(&frontend.family()) {
                builder.frontend(record, frontend);
            }
        }
        builder.hairpin(record);
    }
    builder.size_sets();
    for family in &config.families {
        builder
            .desired
            .state
            .rules
            .insert(*family, rules(*family, config));
    }
    builder.desired
}

struct Builder<'a> {
    table: &'a NodeTable,
    facts: &'a NodeFacts,
    config: &'a Config,
    foreign: &'a BTreeMap<VirtualServerKey, VirtualServer>,
    desired: Desired,
}

impl Builder<'_> {
    fn create_sets(&mut self) {
        for family in &self.config.families {
            for set in SetName::ALL {
                let header = SetHeader {
                    kind: set.kind(),
                    family: *family,
                    max_entries: 0,
                };
                let name = self.config.names.set(set, *family);
                let set = Set {
                    header,
                    entries: BTreeSet::new(),
                };
                self.desired.state.sets.insert(name, set);
            }
        }
    }

    /// Room for what is there and for half as much again, at least what kube-proxy gives.
    fn size_sets(&mut self) {
        for set in self.desired.state.sets.values_mut() {
            let needed = u32::try_from(set.entries.len()).unwrap_or(u32::MAX);
            let roomy = needed
                .saturating_add(needed / 2)
                .checked_next_power_of_two();
            set.header.max_entries = if needed <= 65_536 {
                65_536
            } else {
                roomy.unwrap_or(u32::MAX)
            };
        }
    }

    fn entry(&mut self, set: SetName, family: Family, entry: SetEntry) {
        let name = self.config.names.set(set, family);
        if let Some(set) = self.desired.state.sets.get_mut(&name) {
            set.entries.insert(entry);
        }
    }

    fn frontend(&mut self, record: &Record, frontend: &Frontend) {
        let server = self.virtual_server(record, frontend);
        let addresses: Vec<IpAddr> = match frontend.address {
            FrontendAddress::Vip(ip) => vec![ip],
            FrontendAddress::NodeAddresses(family) => {
                let of_family = |ip: &&IpAddr| Family::of(**ip) == family;
                self.facts
                    .node_port_addresses
                    .iter()
                    .filter(of_family)
                    .copied()
                    .collect()
            }
        };
        for address in addresses {
            let protocol = record.key.protocol;
            let key = VirtualServerKey {
                protocol,
                address,
                port: frontend.port,
            };
            if self.claim(record, key, &server) {
                self.frontend_entries(frontend, key);
            }
        }
    }

    fn virtual_server(&self, record: &Record, frontend: &Frontend) -> VirtualServer {
        let destinations = self.table.destinations(record, frontend);
        let real_servers = destinations.into_iter().map(|destination| {
            let weight = destination.weight;
            let forwarding = ForwardingMethod::Masquerade;
            (destination.address, RealServerConfig { weight, forwarding })
        });
        VirtualServer {
            config: VirtualServerConfig {
                persistence: record.affinity.map(|affinity| affinity.timeout_seconds),
                ..self.config.scheduler.clone()
            },
            real_servers: real_servers.collect(),
        }
    }

    /// Wants a virtual server, unless somebody else has it.
    fn claim(&mut self, record: &Record, key: VirtualServerKey, server: &VirtualServer) -> bool {
        if let Some(holder) = self.desired.records.get(&key) {
            let (record, holder) = (record.key.clone(), holder.clone());
            self.desired.refused.push(Refused::Taken {
                record,
                key,
                holder,
            });
            return false;
        }
        if self
            .foreign
            .get(&key)
            .is_some_and(|theirs| theirs != server)
        {
            self.desired.refused.push(Refused::Foreign {
                record: record.key.clone(),
                key,
            });
            return false;
        }
        self.desired.records.insert(key, record.key.clone());
        self.desired
            .state
            .virtual_servers
            .insert(key, server.clone());
        true
    }

    fn frontend_entries(&mut self, frontend: &Frontend, key: VirtualServerKey) {
        let family = key.family();
        let entry = SetEntry::IpPort(key.address, key.protocol, key.port);
        self.entry(SetName::VirtualServers, family, entry.clone());
        match frontend.kind {
            FrontendKind::NodePort => self.node_port_entries(frontend, key),
            FrontendKind::ClusterIp => self.entry(SetName::ClusterIp, family, entry),
            FrontendKind::ExternalIp if frontend.masquerade => {
                self.entry(SetName::ExternalIp, family, entry);
            }
            FrontendKind::ExternalIp => self.entry(SetName::ExternalIpLocal, family, entry),
            FrontendKind::LoadBalancer => {
                self.entry(SetName::LoadBalancer, family, entry.clone());
                if !frontend.masquerade {
                    self.entry(SetName::LoadBalancerLocal, family, entry.clone());
                }
                self.source_range_entries(frontend, key, entry);
            }
        }
        if frontend.kind != FrontendKind::NodePort {
            self.bind(key.address);
        }
    }

    fn node_port_entries(&mut self, frontend: &Frontend, key: VirtualServerKey) {
        let (all, local, entry) = match key.protocol {
            Protocol::Tcp => (
                SetName::NodePortTcp,
                SetName::NodePortLocalTcp,
                SetEntry::Port(key.port),
            ),
            Protocol::Udp => (
                SetName::NodePortUdp,
                SetName::NodePortLocalUdp,
                SetEntry::Port(key.port),
            ),
            Protocol::Sctp => (
                SetName::NodePortSctp,
                SetName::NodePortLocalSctp,
                SetEntry::IpPort(key.address, key.protocol, key.port),
            ),
        };
        self.entry(all, key.family(), entry.clone());
        if !frontend.masquerade {
            self.entry(local, key.family(), entry);
        }
    }

    fn source_range_entries(
        &mut self,
        frontend: &Frontend,
        key: VirtualServerKey,
        entry: SetEntry,
    ) {
        if frontend.source_ranges.is_empty() {
            return;
        }
        self.entry(SetName::LoadBalancerFw, key.family(), entry);
        for range in &frontend.source_ranges {
            let entry = SetEntry::IpPortNet(key.address, key.protocol, key.port, *range);
            self.entry(SetName::LoadBalancerSourceCidr, key.family(), entry);
        }
    }

    /// Makes packets to a VIP arrive on the node. An address that the node has anyway is never
    /// bound: its other ports must stay reachable.
    fn bind(&mut self, vip: IpAddr) {
        if self.facts.addresses.contains(&vip) {
            return;
        }
        let family = Family::of(vip);
        self.desired
            .state
            .routes
            .insert(vip, self.facts.source.get(&family).copied());
        self.entry(SetName::IpvsIps, family, SetEntry::Ip(vip));
    }

    fn hairpin(&mut self, record: &Record) {
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
}

#[cfg(test)]
mod tests;
