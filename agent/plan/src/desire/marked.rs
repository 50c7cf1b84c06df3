// SPDX-License-Identifier: Apache-2.0

//! Virtual servers that the kernel finds by a packet's mark: for short circuits, for load balancers with ranges of
//! ports, and for marks of an operator.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::{VirtualServer, VirtualServerKey};
use portolan_model::{Balancing, Family, Frontend, FrontendAddress, FrontendKind, Lists, Record};

use super::{Builder, Refused, server};
use crate::marks::Marked;
use crate::{KernelState, SetName, WayTo, marks, ownership_entry, ways};

impl Builder<'_> {
    /// Adds what a load balancer's frontend without a port of its own needs; whether it is one.
    pub(super) fn is_marked(&mut self, record: &Arc<Record>, frontend: &Frontend) -> bool {
        match (frontend.address, &record.balancing) {
            (FrontendAddress::Mark { family, mark }, Some(balancing)) => {
                let key = VirtualServerKey::Mark { family, mark };
                let server = self.balanced(record, balancing, frontend, &key);
                self.claim(record, key, server);
                true
            }
            (FrontendAddress::Vip(address), Some(_))
                if frontend.kind == FrontendKind::BalancedRanges =>
            {
                let protocol = record.key.protocol;
                let ports = frontend.ports();
                let entries = ports.map(|port| SetEntry::IpPortMark(address, protocol, port, 0));
                self.mark(SetName::BalancedMark, record, frontend.family(), entries);
                if frontend.bind {
                    self.bind(record, address);
                }
                true
            }
            _ => false,
        }
    }

    /// Gives packets to these frontends of a record a mark, which is chosen later.
    pub(super) fn mark(
        &mut self,
        set: SetName,
        record: &Record,
        family: Family,
        entries: impl IntoIterator<Item = SetEntry>,
    ) {
        let of_family = self.marked.entry(family).or_default();
        let marked = of_family
            .entry(record.key.clone())
            .or_insert_with(|| Marked {
                set,
                entries: Vec::new(),
            });
        marked.entries.extend(entries);
    }

    fn balanced(
        &mut self,
        record: &Record,
        balancing: &Balancing,
        frontend: &Frontend,
        key: &VirtualServerKey,
    ) -> VirtualServer {
        let config = server::of_address(record, self.config, frontend.family());
        VirtualServer {
            config: self.configs.share(config),
            real_servers: self.backends(record, balancing, frontend, key),
        }
    }

    /// Adds a virtual server by mark, and the entries that set the mark, for each record with a short
    /// circuit or with ranges of ports.
    pub(super) fn add_marks(
        &mut self,
        family: Family,
        observed: &KernelState,
        kept: &BTreeMap<WayTo, u32>,
    ) {
        let wanted = self.marked.remove(&family).unwrap_or_default();
        let names = SetName::MARKS.map(|set| self.config.names.set(set, family));
        let sets = SetName::MARKS.into_iter().zip(&names);
        let sets = sets.filter_map(|(set, name)| Some((set, &observed.sets.get(name)?.entries)));
        let mapped: Vec<_> = sets.collect();
        // Marks of operators are in the table, those of other programs are in the kernel.
        let servers = self.desired.state.virtual_servers.keys();
        let of_family = servers.chain(self.foreign.keys());
        let of_family = of_family.filter(|key| key.family() == family);
        let of_ways = kept.iter().filter(|(to, _)| to.family == family);
        let of_ways = of_ways.map(|(_, mark)| *mark);
        let taken = of_family
            .filter_map(VirtualServerKey::mark)
            .chain(of_ways)
            .collect();
        let marks = marks::allocate(&wanted, &mapped, &taken, self.config.short_circuit_mask);
        for (key, marked) in wanted {
            let table = self.table;
            let Some(record) = table.records.get(&key) else {
                continue;
            };
            match marks.get(&key) {
                Some(mark) => self.add_mark(record, family, *mark, marked),
                None => self.desired.refused.push(Refused::NoMark {
                    record: key,
                    family,
                }),
            }
        }
    }

    /// Adds a virtual server by mark for each way of a health check. It belongs to no record: records share it.
    pub(super) fn add_ways(&mut self, kept: &BTreeMap<WayTo, u32>) {
        let wanted = ways::wanted(&self.table.records);
        let config = self.config;
        for family in &config.families {
            let of_family = wanted.keys().filter(|to| to.family == *family);
            let servers = self.desired.state.virtual_servers.keys();
            let taken = servers.chain(self.foreign.keys());
            let taken = taken.filter(|key| key.family() == *family);
            let taken = taken.filter_map(VirtualServerKey::mark).collect();
            let mask = config.short_circuit_mask;
            let marks = ways::allocate(of_family.clone(), kept, &taken, mask);
            for to in of_family {
                let Some(mark) = marks.get(to) else {
                    let record = wanted[to].clone();
                    let refused = Refused::NoWay { record, to: *to };
                    self.desired.refused.push(refused);
                    continue;
                };
                let (family, mark) = (*family, *mark);
                let key = VirtualServerKey::Mark { family, mark };
                let server = ways::server(to);
                self.desired.state.virtual_servers.insert(key, server);
                self.mine.clear();
                self.entry(SetName::VirtualServers, family, ownership_entry(&key));
                self.desired.ways.insert(*to, mark);
            }
        }
    }

    /// Adds a virtual server by mark, and the entries that set the mark.
    pub(super) fn add_mark(
        &mut self,
        record: &Arc<Record>,
        family: Family,
        mark: u32,
        marked: Marked,
    ) {
        let key = VirtualServerKey::Mark { family, mark };
        let ranged = record.frontends.iter().find(|frontend| {
            frontend.kind == FrontendKind::BalancedRanges && frontend.family() == family
        });
        let server = match (&record.balancing, ranged) {
            (Some(balancing), Some(frontend)) => self.balanced(record, balancing, frontend, &key),
            _ => {
                let destinations = self.table.list(record, family, Lists::Cluster);
                let config = server::of_mark(record, self.config, self.facts, family);
                VirtualServer {
                    config: self.configs.share(config),
                    real_servers: server::real_servers(&destinations),
                }
            }
        };
        self.want(record, key, server);
        let Marked { set, entries } = marked;
        for entry in entries {
            if let SetEntry::IpPortMark(ip, protocol, port, _) = entry {
                let entry = SetEntry::IpPortMark(ip, protocol, port, mark);
                self.entry(set, family, entry);
            }
        }
    }
}
