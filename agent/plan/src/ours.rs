// SPDX-License-Identifier: Apache-2.0

//! Ownership of the virtual servers in a kernel.
//!
//! The ownership record, a set in the kernel, lists our virtual servers. No rule refers to that set, so
//! anybody can empty or destroy it; ownership is then inferred from our other objects in the kernel.

use std::collections::{BTreeMap, BTreeSet};

use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::{VirtualServer, VirtualServerKey};
use portolan_model::{Family, Protocol};

use crate::{KernelState, Names, SetName, ownership_entry};

/// Sets with the frontends at virtual addresses.
const AT_VIPS: [SetName; 5] = [
    SetName::ClusterIp,
    SetName::ExternalIp,
    SetName::ExternalIpLocal,
    SetName::LoadBalancer,
    SetName::LoadBalancerLocal,
];

/// Entries of the ownership record of each family, by the family's number; `None` without a record.
type Records<'a> = [Option<&'a BTreeSet<SetEntry>>; 2];

fn is_in(records: &Records<'_>, key: &VirtualServerKey) -> bool {
    let record = records[key.family() as usize];
    record.is_some_and(|entries| entries.contains(&ownership_entry(key)))
}

impl KernelState {
    /// Returns `true` if a virtual server is ours: by the ownership record, or because it was
    /// recovered.
    #[must_use]
    pub fn owns(&self, names: &Names, key: &VirtualServerKey) -> bool {
        self.is_recorded(names, key) || self.recovered.contains(key)
    }

    fn is_recorded(&self, names: &Names, key: &VirtualServerKey) -> bool {
        is_in(&self.records(names), key)
    }

    /// The ownership records of both families.
    fn records(&self, names: &Names) -> Records<'_> {
        let record = |family| self.sets.get(&names.set(SetName::VirtualServers, family));
        Family::ALL.map(|family| record(family).map(|set| &set.entries))
    }

    fn has(&self, names: &Names, set: SetName, family: Family, entry: &SetEntry) -> bool {
        let set = self.sets.get(&names.set(set, family));
        set.is_some_and(|set| set.entries.contains(entry))
    }

    /// The virtual servers that are not ours.
    #[must_use]
    pub fn foreign_virtual_servers(
        &self,
        names: &Names,
    ) -> BTreeMap<VirtualServerKey, VirtualServer> {
        let records = self.records(names);
        let is_ours = |key| is_in(&records, key) || self.recovered.contains(key);
        let servers = self.virtual_servers.iter();
        let foreign = servers.filter(|(key, _)| !is_ours(key));
        foreign
            .map(|(key, server)| (*key, server.clone()))
            .collect()
    }

    /// Entries of the ownership record in both families, and of recovered virtual servers.
    #[must_use]
    pub fn ownership(&self, names: &Names) -> BTreeSet<SetEntry> {
        let sets = Family::ALL.map(|family| names.set(SetName::VirtualServers, family));
        let recorded = sets.iter().filter_map(|name| self.sets.get(name));
        let recorded = recorded.flat_map(|set| set.entries.iter().cloned());
        let recovered = self.recovered.iter().map(ownership_entry);
        recorded.chain(recovered).collect()
    }

    /// Finds our virtual servers that the ownership record lacks because it was emptied or destroyed.
    /// `remembered` is its content when it was last read.
    ///
    /// Besides the remembered ones, a virtual server is ours if
    ///
    /// * it is selected by mark, and an entry of ours gives packets this mark;
    /// * it has an address with a route of ours, and one of our sets lists its frontend;
    /// * the record is empty, our other sets exist, and one of them lists its frontend. A record with
    ///   entries rules this out: a kube-proxy uses sets of the same names.
    pub fn recover(&mut self, names: &Names, remembered: &BTreeSet<SetEntry>) {
        let is_lost = Family::ALL.map(|family| self.has_lost_record(names, family));
        let records = self.records(names);
        let unrecorded = self.virtual_servers.keys();
        let unrecorded = unrecorded.filter(|key| !is_in(&records, key));
        let ours = unrecorded.filter(|key| {
            remembered.contains(&ownership_entry(key))
                || self.is_evident(names, key, is_lost[key.family() as usize])
        });
        self.recovered = ours.copied().collect();
    }

    /// Returns `true` if the record of a family is missing or empty while the sets created with it
    /// exist.
    fn has_lost_record(&self, names: &Names, family: Family) -> bool {
        let record = self.sets.get(&names.set(SetName::VirtualServers, family));
        let only_ours = names.set(SetName::ShortCircuit, family);
        record.is_none_or(|set| set.entries.is_empty()) && self.sets.contains_key(&only_ours)
    }

    fn is_evident(&self, names: &Names, key: &VirtualServerKey, is_lost: bool) -> bool {
        let family = key.family();
        let (protocol, address, port) = match *key {
            VirtualServerKey::Mark { mark, .. } => {
                let leads_there =
                    |entry: &SetEntry| matches!(entry, SetEntry::IpPortMark(.., of) if *of == mark);
                let sets = SetName::MARKS.map(|set| self.sets.get(&names.set(set, family)));
                let mut entries = sets.into_iter().flatten().flat_map(|set| &set.entries);
                return entries.any(leads_there);
            }
            VirtualServerKey::Address {
                protocol,
                address,
                port,
            } => (protocol, address, port),
        };
        let way_in = SetEntry::IpPort(address, protocol, port);
        let is_listed = || {
            AT_VIPS
                .iter()
                .any(|set| self.has(names, *set, family, &way_in))
        };
        let is_node_port = || match protocol {
            Protocol::Tcp => self.has(names, SetName::NodePortTcp, family, &SetEntry::Port(port)),
            Protocol::Udp => self.has(names, SetName::NodePortUdp, family, &SetEntry::Port(port)),
            Protocol::Sctp => self.has(names, SetName::NodePortSctp, family, &way_in),
        };
        (is_lost || self.routes.contains_key(&address)) && is_listed() || is_lost && is_node_port()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use portolan_model::ipset::{Set, SetHeader};
    use portolan_model::ipvs::VirtualServerConfig;

    use super::*;

    const PORT: u16 = 80;

    fn key(address: &str) -> VirtualServerKey {
        VirtualServerKey::new(Protocol::Tcp, address.parse().unwrap(), PORT)
    }

    fn mark(mark: u32) -> VirtualServerKey {
        let family = Family::V4;
        VirtualServerKey::Mark { family, mark }
    }

    fn put(state: &mut KernelState, set: SetName, entries: &[SetEntry]) {
        let header = SetHeader {
            kind: set.kind(),
            family: Family::V4,
            max_entries: 65_536,
        };
        let entries = entries.iter().cloned().collect();
        let name = Names::default().set(set, Family::V4);
        state.sets.insert(name, Set { header, entries });
    }

    /// Two virtual addresses of which one has a route of ours, a node port and two marks.
    fn state() -> KernelState {
        let mut state = KernelState::default();
        let servers = [
            key("10.96.0.1"),
            key("10.96.0.2"),
            key("192.0.2.1"),
            mark(1),
            mark(2),
        ];
        let server = VirtualServer {
            config: VirtualServerConfig::round_robin().into(),
            real_servers: Arc::default(),
        };
        state.virtual_servers = servers.map(|key| (key, server.clone())).into();
        let vips = [key("10.96.0.1"), key("10.96.0.2")];
        put(
            &mut state,
            SetName::ClusterIp,
            &vips.map(|key| ownership_entry(&key)),
        );
        put(&mut state, SetName::NodePortTcp, &[SetEntry::Port(PORT)]);
        let vip: IpAddr = "10.96.0.1".parse().unwrap();
        state.routes.insert(vip, None);
        state
    }

    fn recovered(state: &KernelState, remembered: &[VirtualServerKey]) -> Vec<VirtualServerKey> {
        let mut state = state.clone();
        let remembered = remembered.iter().map(ownership_entry).collect();
        state.recover(&Names::default(), &remembered);
        state.recovered.into_iter().collect()
    }

    #[test]
    fn lost_record_is_recovered_from_our_other_objects() {
        let mut state = state();
        // Without our own sets only the route tells ours from a kube-proxy's.
        assert_eq!(recovered(&state, &[]), [key("10.96.0.1")]);
        let to_mark = SetEntry::IpPortMark("192.0.2.1".parse().unwrap(), Protocol::Tcp, PORT, 1);
        put(&mut state, SetName::ShortCircuit, &[to_mark]);
        let all = [
            key("10.96.0.1"),
            key("10.96.0.2"),
            key("192.0.2.1"),
            mark(1),
        ];
        assert_eq!(recovered(&state, &[]), all, "destroyed");
        put(&mut state, SetName::VirtualServers, &[]);
        assert_eq!(recovered(&state, &[]), all, "emptied");
        assert!(recovered(&state, &[mark(2)]).contains(&mark(2)));

        // A record with entries leaves only the unambiguous evidence.
        put(
            &mut state,
            SetName::VirtualServers,
            &[ownership_entry(&key("10.96.0.9"))],
        );
        assert_eq!(recovered(&state, &[]), [key("10.96.0.1"), mark(1)]);
        // Recorded virtual servers need no recovery.
        put(
            &mut state,
            SetName::VirtualServers,
            &all.map(|key| ownership_entry(&key)),
        );
        assert_eq!(recovered(&state, &all), []);
    }
}
