// SPDX-License-Identifier: Apache-2.0

//! Steps about sets and their entries.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_model::Family;
use portolan_model::ipset::{Set, SetEntry, SetKind};
use portolan_model::ipvs::VirtualServerKey;

use super::{Of, Planner};
use crate::{KernelState, SetName, Step};

/// Sets whose entries send packets to virtual servers, or drop them. They are filled last, in this
/// order, when the virtual servers are complete.
const LATE: [SetName; 3] = [
    SetName::BalancedMark,
    SetName::ShortCircuit,
    SetName::NoLocal,
];

impl Planner<'_> {
    /// Creates and replaces sets, then fills all but the late ones.
    pub(super) fn sets(&mut self, desired: &KernelState, observed: &KernelState) {
        for (name, want) in &desired.sets {
            match observed.sets.get(name) {
                None => {
                    let (name, header) = (name.clone(), want.header.clone());
                    self.additions.push(Step::CreateSet { name, header });
                }
                Some(have) if !holds(have, want) => {
                    let set = Box::new(replacement(want, have));
                    let name = name.clone();
                    self.additions.push(Step::ReplaceSet { name, set });
                }
                Some(_) => {}
            }
        }
        let late = self.late_names();
        for (name, want) in desired.sets.iter().filter(|(name, _)| !late.contains(name)) {
            self.entries(name, want, observed);
        }
    }

    /// Fills the late sets.
    pub(super) fn late_entries(&mut self, desired: &KernelState, observed: &KernelState) {
        for name in self.late_names() {
            if let Some(want) = desired.sets.get(&name) {
                self.entries(&name, want, observed);
            }
        }
    }

    fn late_names(&self) -> Vec<String> {
        let of_both = |set| Family::ALL.map(|family| self.config.names.set(set, family));
        LATE.into_iter().flat_map(of_both).collect()
    }

    fn entries(&mut self, name: &str, want: &Set, observed: &KernelState) {
        let none = BTreeSet::new();
        let have = observed.sets.get(name).filter(|have| is_alike(have, want));
        let have = have.map_or(&none, |have| &have.entries);
        // Sized for the common cases: nearly all entries missing, or few.
        let mut missing = Vec::with_capacity(want.entries.len().saturating_sub(have.len()));
        missing.extend(want.entries.difference(have).cloned());
        if !missing.is_empty() {
            self.additions.push(Step::AddEntries {
                name: name.to_owned(),
                entries: Arc::new(missing),
            });
        }
        let mut surplus = surplus(want, have);
        if !self.config.exclude_cidrs.is_empty() && self.is_ownership_record(name) {
            surplus.retain(|entry| !self.is_of_excluded(entry, observed));
        }
        if !surplus.is_empty() {
            let entries = Arc::new(surplus);
            let name = name.to_owned();
            self.remove(Of::Kernel, Step::DelEntries { name, entries });
        }
    }

    fn is_ownership_record(&self, name: &str) -> bool {
        let record = |family| self.config.names.set(SetName::VirtualServers, family);
        Family::ALL
            .into_iter()
            .map(record)
            .any(|record| record == name)
    }

    /// Returns `true` if an entry of the ownership record is of a virtual server that stays because
    /// its network is excluded. The entry stays with it: without one the virtual server would be
    /// foreign, and a Service that returns, or the end of the exclusion, would never change it
    /// again.
    fn is_of_excluded(&self, entry: &SetEntry, observed: &KernelState) -> bool {
        let SetEntry::IpPort(address, protocol, port) = *entry else {
            return false;
        };
        let key = VirtualServerKey::new(protocol, address, port);
        self.is_excluded(&key) && observed.virtual_servers.contains_key(&key)
    }
}

/// Entries to delete. An entry whose mark changed is replaced in place by its new version; deleting the
/// old version would delete the new one.
fn surplus(want: &Set, have: &BTreeSet<SetEntry>) -> Vec<SetEntry> {
    let surplus = have.difference(&want.entries);
    if want.header.kind != SetKind::HashIpPortMark {
        return surplus.cloned().collect();
    }
    let wanted: BTreeSet<_> = want.entries.iter().map(SetEntry::identity).collect();
    surplus
        .filter(|entry| !wanted.contains(&entry.identity()))
        .cloned()
        .collect()
}

/// A larger set with the entries of the one that it replaces.
fn replacement(want: &Set, have: &Set) -> Set {
    let mut set = Set {
        header: want.header.clone(),
        entries: BTreeSet::new(),
    };
    if is_alike(have, want) {
        set.entries.clone_from(&have.entries);
        let needed = have.entries.union(&want.entries).count();
        let needed = u32::try_from(needed).unwrap_or(u32::MAX);
        set.header.max_entries = set.header.max_entries.max(needed);
    }
    set
}

fn is_alike(have: &Set, want: &Set) -> bool {
    // A bitmap of ports has no family.
    let bitmap = want.header.kind == SetKind::BitmapPort;
    have.header.kind == want.header.kind && (bitmap || have.header.family == want.header.family)
}

/// Returns `true` if an existing set has the type and the size for the desired entries.
fn holds(have: &Set, want: &Set) -> bool {
    let bitmap = want.header.kind == SetKind::BitmapPort;
    is_alike(have, want) && (bitmap || have.header.max_entries >= want.header.max_entries)
}
