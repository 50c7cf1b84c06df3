// SPDX-License-Identifier: Apache-2.0

//! Desired state of the kernel for a table.

mod backends;
mod demand;
mod entries;
mod incremental;
mod marked;
mod outcome;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::ipset::{Set, SetEntry, SetHeader};
use portolan_model::ipvs::{SharedConfigs, VirtualServer, VirtualServerKey};
use portolan_model::{
    Families, Family, Frontend, FrontendAddress, FrontendKind, Lists, NodeTable, Record, RecordKey,
    Scope,
};

pub use backends::is_behind;
pub use incremental::{IncrementalDesired, Touched};
pub use outcome::{Desired, Note, Refused};
pub(crate) use server::refuses_at_zero;

use crate::{
    Config, KernelState, NodeFacts, SetName, VipBinding, marks::Marked, ownership_entry, ways,
};

/// Computes the desired state. It depends on three parts of the observed state: foreign virtual servers
/// (one that differs from the desired one in weights only is adopted, any other is left untouched),
/// foreign routes (they are reported), and marks in use.
#[must_use]
pub fn desire(
    table: &NodeTable,
    facts: &NodeFacts,
    config: &Config,
    observed: &KernelState,
) -> Desired {
    build(table, facts, config, observed).desired
}

/// Like [`desire`], with the counters of shared entries and routes.
fn build<'a>(
    table: &'a NodeTable,
    facts: &'a NodeFacts,
    config: &'a Config,
    observed: &'a KernelState,
) -> Builder<'a> {
    let mut builder = Builder::new(table, facts, config, observed);
    builder.add_all_sets();
    builder.foreign = observed.foreign_virtual_servers(&config.names);
    for record in table.records.values() {
        builder.record(record);
    }
    let kept = ways::kept(observed, config);
    for family in &config.families {
        builder.add_marks(*family, observed, &kept);
        builder.make_rules(*family, observed);
    }
    builder.add_ways(&kept);
    for set in builder.desired.state.sets.values_mut() {
        set.header.max_entries = room_for(set.entries.len());
    }
    builder
}

/// Maximum size of a set: half as much again as its entries, at least kube-proxy's size.
pub(crate) fn room_for(entries: usize) -> u32 {
    let needed = u32::try_from(entries).unwrap_or(u32::MAX);
    if needed <= 65_536 {
        return 65_536;
    }
    let roomy = needed
        .saturating_add(needed / 2)
        .checked_next_power_of_two();
    roomy.unwrap_or(u32::MAX)
}

struct Builder<'a> {
    table: &'a NodeTable,
    facts: &'a NodeFacts,
    config: &'a Config,
    foreign: BTreeMap<VirtualServerKey, VirtualServer>,
    foreign_routes: &'a BTreeSet<IpAddr>,
    /// The virtual servers in the kernel.
    observed: &'a BTreeMap<VirtualServerKey, VirtualServer>,
    desired: Desired,
    /// Families in which a Service of Kubernetes is served.
    kubernetes: Families,
    /// Settings of the virtual servers.
    configs: SharedConfigs,
    /// Names of the sets that were added.
    names: BTreeMap<(SetName, Family), Arc<str>>,
    /// Frontends to whose packets the agent gives a mark, by family and record.
    marked: BTreeMap<Family, BTreeMap<RecordKey, Marked>>,
    /// Entries and routes of the current record.
    mine: Vec<Want>,
    /// Entries and routes of several records, with the number of records besides the first.
    shared: BTreeMap<Want, u32>,
}

/// An object that several records can share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Want {
    /// An entry of the set of this name.
    Entry(Arc<str>, SetEntry),
    /// The local route of a VIP.
    Route(IpAddr),
}

impl<'a> Builder<'a> {
    fn new(
        table: &'a NodeTable,
        facts: &'a NodeFacts,
        config: &'a Config,
        observed: &'a KernelState,
    ) -> Self {
        Self {
            table,
            facts,
            config,
            foreign: BTreeMap::new(),
            foreign_routes: &observed.foreign_routes,
            observed: &observed.virtual_servers,
            desired: Desired {
                health: table.health.clone(),
                ..Desired::default()
            },
            kubernetes: Families::NONE,
            configs: SharedConfigs::default(),
            names: BTreeMap::new(),
            marked: BTreeMap::new(),
            mine: Vec::new(),
            shared: BTreeMap::new(),
        }
    }

    /// Counts an object of the current record; `is_first` if no other record has it.
    fn count(&mut self, want: Want, is_first: bool) {
        // What is the first of its kind is none of the current record's yet: a range of ports has 65,535 such.
        if !is_first {
            if self.mine.contains(&want) {
                return;
            }
            *self.shared.entry(want.clone()).or_default() += 1;
        }
        self.mine.push(want);
    }

    /// Adds every set, for a whole table. One record alone gets the sets that it has entries in.
    fn add_all_sets(&mut self) {
        for family in &self.config.families {
            for set in SetName::ALL {
                self.add_set(set, *family);
            }
        }
    }

    /// Adds an empty set, and returns its name.
    fn add_set(&mut self, set: SetName, family: Family) -> Arc<str> {
        let header = SetHeader {
            kind: set.kind(),
            family,
            max_entries: 0,
        };
        let empty = Set {
            header,
            entries: BTreeSet::new(),
        };
        let name = self.config.names.set(set, family);
        let shared: Arc<str> = name.as_str().into();
        self.names.insert((set, family), Arc::clone(&shared));
        self.desired.state.sets.insert(name, empty);
        shared
    }

    fn record(&mut self, record: &Arc<Record>) {
        self.mine.clear();
        for frontend in &record.frontends {
            if self.config.families.contains(&frontend.family()) {
                self.frontend(record, frontend);
                self.health_check_entry(record, frontend.family());
                if record.balancing.is_none() {
                    self.kubernetes.insert(frontend.family());
                }
            }
        }
        self.hairpin_entries(record);
        self.remote_entries(record);
        if let Some(name) = server::unknown(record) {
            let (record, name) = (record.key.clone(), Arc::clone(name));
            let refused = Refused::UnknownScheduler { record, name };
            self.desired.refused.push(refused);
        }
        if server::lacks_maglev(record, self.config, self.facts) {
            self.desired.notes.insert(Note::NoMaglev);
        }
    }

    fn frontend(&mut self, record: &Arc<Record>, frontend: &Frontend) {
        if self.is_marked(record, frontend) {
            return;
        }
        let family = frontend.family();
        let config = server::of_address(record, self.config, family);
        let config = self.configs.share(config);
        let real_servers = server::real_servers(&self.table.destinations(record, frontend));
        let drops = frontend.lists == Lists::Local
            && real_servers.is_empty()
            && record.available.contains(family);
        for address in self.addresses(frontend) {
            let (protocol, port) = (record.key.protocol, frontend.port);
            let key = VirtualServerKey::new(protocol, address, port);
            let server = VirtualServer {
                config: Arc::clone(&config),
                real_servers: match &record.balancing {
                    None => Arc::clone(&real_servers),
                    Some(balancing) => self.backends(record, balancing, frontend, &key),
                },
            };
            if !self.claim(record, key, server) {
                continue;
            }
            self.tell_of_local_port(record, address, port);
            let entry = SetEntry::IpPort(address, protocol, port);
            self.frontend_entries(record, frontend, address);
            // Packets that are only routed through are dropped, if at all, by the node with the address.
            let passes = !frontend.bind && !self.facts.addresses.contains(&address);
            if drops && !passes {
                self.entry(SetName::NoLocal, family, entry);
            }
            if frontend.has_short_circuit() {
                let entry = SetEntry::IpPortMark(address, protocol, port, 0);
                self.mark(SetName::ShortCircuit, record, family, [entry]);
            }
            if frontend.bind && frontend.kind != FrontendKind::NodePort {
                self.bind(record, address);
            }
        }
    }

    fn addresses(&self, frontend: &Frontend) -> Vec<IpAddr> {
        match frontend.address {
            FrontendAddress::Vip(ip) => vec![ip],
            FrontendAddress::Mark { .. } => Vec::new(),
            FrontendAddress::NodeAddresses(family) => {
                let addresses = self.facts.node_port_addresses.iter();
                let of_family = addresses.filter(|ip| Family::of(**ip) == family);
                of_family.copied().collect()
            }
        }
    }

    /// Adds a virtual server unless another record or another program has it.
    fn claim(
        &mut self,
        record: &Arc<Record>,
        key: VirtualServerKey,
        server: VirtualServer,
    ) -> bool {
        if let Some(holder) = self.desired.records.get(&key) {
            let (record, holder) = (record.key.clone(), holder.key.clone());
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
            .is_some_and(|theirs| !is_alike(theirs, &server))
        {
            self.desired.refused.push(Refused::Foreign {
                record: record.key.clone(),
                key,
            });
            return false;
        }
        self.want(record, key, server);
        true
    }

    fn want(&mut self, record: &Arc<Record>, key: VirtualServerKey, server: VirtualServer) {
        self.desired.records.insert(key, Arc::clone(record));
        self.desired.state.virtual_servers.insert(key, server);
        self.entry(SetName::VirtualServers, key.family(), ownership_entry(&key));
    }

    /// Adds the local route of a VIP. An address of the node itself is never bound: its other ports must
    /// stay reachable.
    fn bind(&mut self, record: &Record, address: IpAddr) {
        if record.balancing.is_some() && !self.config.binds_balancers {
            return;
        }
        if self.facts.addresses.contains(&address) {
            let record = record.key.clone();
            self.desired
                .notes
                .insert(Note::OwnAddress { record, address });
            return;
        }
        self.tell_of_foreign_route(record, address);
        let family = Family::of(address);
        let source = match self.config.vip_binding {
            VipBinding::Route => self.facts.source.get(&family).copied(),
            VipBinding::Address => None,
        };
        let before = self.desired.state.routes.insert(address, source);
        self.count(Want::Route(address), before.is_none());
        // The rules of this set refuse connections to other ports of the address. A load balancer shares it with
        // the host's own programs, as with keepalived.
        if record.balancing.is_none() {
            self.entry(SetName::IpvsIps, family, SetEntry::Ip(address));
        }
    }

    /// Reports a port of this gateway that the host's own connections may begin from: their replies would meet the
    /// virtual server.
    fn tell_of_local_port(&mut self, record: &Record, address: IpAddr, port: u16) {
        let facts = self.facts;
        let is_of_host = record.key.scope() == Scope::Gateway && facts.addresses.contains(&address);
        if !is_of_host || !facts.local_ports.contains(port) {
            return;
        }
        let record = record.key.clone();
        let range = facts.local_ports.to_string();
        let refused = Refused::LocalPort {
            record,
            port,
            range,
        };
        // Once for all addresses.
        if !self.desired.refused.contains(&refused) {
            self.desired.refused.push(refused);
        }
    }

    /// Reports a foreign route, which takes precedence over ours while it exists.
    fn tell_of_foreign_route(&mut self, record: &Record, address: IpAddr) {
        if !self.foreign_routes.contains(&address) {
            return;
        }
        let record = record.key.clone();
        let refused = Refused::ForeignRoute { record, address };
        // Once for all frontends of the record at this address.
        if !self.desired.refused.contains(&refused) {
            self.desired.refused.push(refused);
        }
    }
}

/// Returns `true` if two virtual servers are equal, weights and draining real servers aside.
fn is_alike(have: &VirtualServer, want: &VirtualServer) -> bool {
    let wanted = |address: &SocketAddr| want.real_servers.get(address);
    let mut real_servers = have.real_servers.iter();
    let alike = real_servers.all(|(address, config)| match wanted(&address) {
        Some(wanted) => config.forwarding == wanted.forwarding,
        None => config.weight == 0,
    });
    let mut addresses = want.real_servers.keys();
    let all = addresses.all(|address| have.real_servers.contains_key(&address));
    have.config == want.config && alike && all
}

#[cfg(test)]
mod tests;
