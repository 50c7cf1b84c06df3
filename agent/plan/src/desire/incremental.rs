// SPDX-License-Identifier: Apache-2.0

//! Desired state that follows its table, at a cost proportional to the change.
//!
//! Only changes that concern the changed records alone are followed. Where records interact (two of one
//! virtual server, allocation of marks, ways of checks, growth of a set), [`IncrementalDesired::update`] returns `None`,
//! and the state is computed from scratch. It always equals the result of [`desire`](super::desire).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portolan_model::ipset::{Set, SetEntry};
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Family, NodeTable, RecordKey};

use super::{Builder, Desired, Note, Refused, Want, build, room_for};
use crate::marks::Marked;
use crate::{Config, KernelState, NodeFacts, SetName, has_ways, ownership_entry};

/// With more changed records the state is computed from scratch, which is cheaper for each record.
const MOST: usize = 2_048;

/// Desired state, with the counters of shared objects that updates need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IncrementalDesired {
    desired: Desired,
    shared: BTreeMap<Want, u32>,
}

/// Changed objects of a desired state, with their entries in the ownership record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// The virtual servers.
    pub servers: BTreeSet<VirtualServerKey>,
    /// The entries, by the name of their set.
    pub entries: BTreeMap<String, BTreeSet<SetEntry>>,
    /// The routes, by VIP.
    pub routes: BTreeSet<IpAddr>,
    /// New notes.
    pub notes: BTreeSet<Note>,
}

impl Touched {
    /// Adds the ownership entries of the virtual servers.
    fn own(&mut self, config: &Config) {
        for key in &self.servers {
            let name = config.names.set(SetName::VirtualServers, key.family());
            let of_set = self.entries.entry(name).or_default();
            of_set.insert(ownership_entry(key));
        }
    }

    /// The touched part of a state, its sets with the headers of another state.
    pub(crate) fn part_of(&self, state: &KernelState, headers: &KernelState) -> KernelState {
        let set = |(name, touched): (&String, &BTreeSet<SetEntry>)| {
            let (have, header) = (state.sets.get(name)?, &headers.sets.get(name)?.header);
            let entries = touched.iter().filter(|entry| have.entries.contains(entry));
            let set = Set {
                header: header.clone(),
                entries: entries.cloned().collect(),
            };
            Some((name.clone(), set))
        };
        let server = |key: &VirtualServerKey| Some((*key, state.virtual_servers.get(key)?.clone()));
        let route = |vip: &IpAddr| Some((*vip, *state.routes.get(vip)?));
        KernelState {
            sets: self.entries.iter().filter_map(set).collect(),
            rules: BTreeMap::new(),
            routes: self.routes.iter().filter_map(route).collect(),
            foreign_routes: BTreeSet::new(),
            virtual_servers: self.servers.iter().filter_map(server).collect(),
            recovered: state
                .recovered
                .intersection(&self.servers)
                .copied()
                .collect(),
        }
    }
}

/// Desired objects of one record, before and after a change.
struct RecordChange {
    old: Desired,
    new: Desired,
}

impl IncrementalDesired {
    /// Computes the desired state of a table from scratch; see [`desire`](super::desire).
    #[must_use]
    pub fn new(
        table: &NodeTable,
        facts: &NodeFacts,
        config: &Config,
        observed: &KernelState,
    ) -> Self {
        let Builder {
            desired, shared, ..
        } = build(table, facts, config, observed);
        Self { desired, shared }
    }

    /// The state.
    #[must_use]
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// Updates the state from one version of its table to another. `None` if that needs all records: the
    /// state must be computed from scratch then.
    pub fn update(
        &mut self,
        from: &NodeTable,
        to: &NodeTable,
        facts: &NodeFacts,
        config: &Config,
        observed: &KernelState,
    ) -> Option<Touched> {
        if from.node != to.node {
            return None;
        }
        let keys = to.changed_since(from);
        if keys.len() > MOST || !self.stay_refused(&keys) {
            return None;
        }
        if keys.iter().any(|key| changes_ways(from, to, key)) {
            return None;
        }
        let mut changes = Vec::new();
        for key in keys {
            let old = self.desired_of(from, &key, facts, config, observed)?;
            let new = self.desired_of(to, &key, facts, config, observed)?;
            changes.push(RecordChange { old, new });
        }
        let mut new = changes.iter().map(|change| &change.new);
        if !self.are_free(&changes, observed) || new.any(|new| self.desired.lacks_sets_of(new)) {
            return None;
        }
        self.desired.health = to.health.clone();
        let mut touched = Touched::default();
        for change in &changes {
            self.remove(change, &mut touched);
        }
        for change in changes {
            self.add(change, &mut touched);
        }
        let fits = |name: &String| {
            let set = self.desired.state.sets.get(name);
            set.is_some_and(|set| set.header.max_entries == room_for(set.entries.len()))
        };
        if !touched.entries.keys().all(fits) {
            return None;
        }
        touched.own(config);
        Some(touched)
    }

    /// Adds all objects of a record to `touched`: the kernel may lack any of them. `None` if that needs all
    /// records.
    pub fn touch(
        &self,
        key: &RecordKey,
        table: &NodeTable,
        facts: &NodeFacts,
        config: &Config,
        observed: &KernelState,
        touched: &mut Touched,
    ) -> Option<()> {
        let part = self.desired_of(table, key, facts, config, observed)?;
        touched.servers.extend(part.records.keys().copied());
        for (name, set) in part.state.sets {
            let of_set = touched.entries.entry(name).or_default();
            of_set.extend(set.entries);
        }
        touched.routes.extend(part.state.routes.keys().copied());
        touched.own(config);
        Some(())
    }

    /// Returns `true` if these records have no influence on refusals: none of them is refused an
    /// object or has an object that another record is refused. Any of them may release a mark.
    fn stay_refused(&self, changed: &BTreeSet<RecordKey>) -> bool {
        self.desired.refused.iter().all(|refused| match refused {
            Refused::Foreign { record, .. }
            | Refused::ForeignRoute { record, .. }
            | Refused::LocalPort { record, .. }
            | Refused::UnknownScheduler { record, .. } => !changed.contains(record),
            Refused::Taken { record, holder, .. } => {
                !changed.contains(record) && !changed.contains(holder)
            }
            Refused::NoMark { .. } | Refused::NoWay { .. } => false,
        })
    }

    /// Desired objects of one record alone; `None` if they depend on other records.
    fn desired_of(
        &self,
        table: &NodeTable,
        key: &RecordKey,
        facts: &NodeFacts,
        config: &Config,
        observed: &KernelState,
    ) -> Option<Desired> {
        let mut builder = Builder::new(table, facts, config, observed);
        let Some(record) = table.records.get(key) else {
            return Some(builder.desired);
        };
        builder.record(record);
        for (family, mut wanted) in std::mem::take(&mut builder.marked) {
            let Some(marked) = wanted.remove(key) else {
                continue;
            };
            let mark = self.mark(family, &marked, config)?;
            builder.add_mark(record, family, mark, marked);
        }
        let alone = !builder.desired.notes.contains(&Note::NoMaglev);
        (alone && builder.desired.refused.is_empty()).then_some(builder.desired)
    }

    /// The mark that all frontends of a record already have.
    fn mark(&self, family: Family, marked: &Marked, config: &Config) -> Option<u32> {
        let Marked { set, entries } = marked;
        let name = config.names.set(*set, family);
        let mapped = self.desired.state.sets.get(&name)?;
        let mark_of = |entry: &SetEntry| match mapped.of_identity(entry)? {
            SetEntry::IpPortMark(.., mark) => Some(*mark),
            _ => None,
        };
        let first = mark_of(entries.first()?)?;
        let same = entries.iter().all(|entry| mark_of(entry) == Some(first));
        same.then_some(first)
    }

    /// Returns `true` if no other record and no other program has one of the new virtual servers.
    fn are_free(&self, changes: &[RecordChange], observed: &KernelState) -> bool {
        let mut claimed = BTreeSet::new();
        changes.iter().all(|RecordChange { old, new }| {
            let keys = new.records.keys();
            let mut added = keys.filter(|key| !old.records.contains_key(key));
            added.all(|key| {
                let held = self.desired.records.contains_key(key)
                    || observed.virtual_servers.contains_key(key);
                !held && claimed.insert(*key)
            })
        })
    }

    fn remove(&mut self, RecordChange { old, new }: &RecordChange, touched: &mut Touched) {
        let state = &mut self.desired.state;
        for key in old.records.keys() {
            if !new.records.contains_key(key) {
                state.virtual_servers.remove(key);
                self.desired.records.remove(key);
                touched.servers.insert(*key);
            }
        }
        for (name, entry) in entries_without(old, new) {
            if is_last(
                &mut self.shared,
                Want::Entry(name.as_str().into(), entry.clone()),
            ) {
                state
                    .sets
                    .get_mut(name)
                    .map(|set| set.entries.remove(entry));
                let of_set = touched.entries.entry(name.clone()).or_default();
                of_set.insert(entry.clone());
            }
        }
        for vip in old.state.routes.keys() {
            let gone = !new.state.routes.contains_key(vip);
            if gone && is_last(&mut self.shared, Want::Route(*vip)) {
                state.routes.remove(vip);
                touched.routes.insert(*vip);
            }
        }
        old.notes.iter().for_each(|note| {
            self.desired.notes.remove(note);
        });
    }

    fn add(&mut self, RecordChange { old, new }: RecordChange, touched: &mut Touched) {
        let state = &mut self.desired.state;
        for (name, entry) in entries_without(&new, &old) {
            let Some(set) = state.sets.get_mut(name) else {
                continue;
            };
            if set.entries.insert(entry.clone()) {
                let of_set = touched.entries.entry(name.clone()).or_default();
                of_set.insert(entry.clone());
            } else {
                let want = Want::Entry(name.as_str().into(), entry.clone());
                *self.shared.entry(want).or_default() += 1;
            }
        }
        for (vip, source) in &new.state.routes {
            if old.state.routes.contains_key(vip) {
                continue;
            }
            if state.routes.insert(*vip, *source).is_none() {
                touched.routes.insert(*vip);
            } else {
                *self.shared.entry(Want::Route(*vip)).or_default() += 1;
            }
        }
        let noted = new.notes.difference(&old.notes);
        touched.notes.extend(noted.cloned());
        self.desired.notes.extend(new.notes);
        self.desired.records.extend(new.records);
        for (key, server) in new.state.virtual_servers {
            if state.virtual_servers.get(&key) != Some(&server) {
                touched.servers.insert(key);
                state.virtual_servers.insert(key, server);
            }
        }
    }
}

/// Change of a record that may change the ways of checks, which records share. A change of health alone does not.
fn changes_ways(from: &NodeTable, to: &NodeTable, key: &RecordKey) -> bool {
    let (old, new) = (from.records.get(key), to.records.get(key));
    old != new && old.into_iter().chain(new).any(|record| has_ways(record))
}

/// Entries of `one` that `other` lacks, with the names of their sets.
fn entries_without<'a>(
    one: &'a Desired,
    other: &'a Desired,
) -> impl Iterator<Item = (&'a String, &'a SetEntry)> {
    one.state.sets.iter().flat_map(|(name, set)| {
        let theirs = other.state.sets.get(name).map(|set| &set.entries);
        let mine = set.entries.iter();
        mine.filter(move |entry| theirs.is_none_or(|theirs| !theirs.contains(entry)))
            .map(move |entry| (name, entry))
    })
}

/// Releases a shared object; returns whether no other record has it.
fn is_last(shared: &mut BTreeMap<Want, u32>, want: Want) -> bool {
    let Some(others) = shared.get_mut(&want) else {
        return true;
    };
    *others -= 1;
    if *others == 0 {
        shared.remove(&want);
    }
    false
}

#[cfg(test)]
mod tests;
