// SPDX-License-Identifier: Apache-2.0

//! Difference of two tables, as requests.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_netlink::nftables::{Chain, Elements, Key, Request, Rule, Set, TableContent, Value};

use crate::layout::{
    ALLOWED_MANY, CLUSTER_IPS, HAIRPIN, REMOTE, SERVICES, first_name, way_of_source,
};
use crate::room;

/// Treatment of elements in the kernel that are not desired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surplus {
    /// They are deleted.
    Delete,
    /// They stay, and so does all of a way that is there: for a table that may be older than the kernel's.
    Keep,
}

/// The requests that make a table the desired one; `None` stands for no table. Everything in our table is
/// ours. Their order counts, since chains come before what leads to them: see [`transactions`](crate::transactions).
#[must_use]
pub fn plan(
    desired: &TableContent,
    observed: Option<&TableContent>,
    surplus: Surplus,
) -> Vec<Request> {
    let empty = TableContent::default();
    let mut plan = Plan::default();
    let observed = match observed {
        Some(observed) if observed.is_dormant || has_other_types(desired, observed) => {
            // A set cannot change its type, and a kernel may refuse new base chains while a table is woken: the table
            // is made anew, within the transaction.
            plan.requests.push(Request::DelTable);
            plan.requests.push(Request::AddTable);
            &empty
        }
        Some(observed) => observed,
        None => {
            plan.requests.push(Request::AddTable);
            &empty
        }
    };
    plan.create(desired, observed);
    plan.flush(desired, observed);
    plan.elements(desired, observed, surplus);
    plan.rules(desired);
    plan.delete(desired, observed);
    plan.requests
}

fn has_other_types(desired: &TableContent, observed: &TableContent) -> bool {
    let differs = |(name, (set, _)): (&Arc<str>, &(Set, Elements))| {
        let theirs = observed.sets.get(name);
        theirs.is_some_and(|(theirs, _)| !room::is_alike(set, theirs))
    };
    desired.sets.iter().any(differs)
}

/// Returns `true` if rules in the kernel are these.
fn is_dumped_as(wanted: &[Rule], dumped: &[Rule]) -> bool {
    let is_same = |(wanted, dumped): (&Rule, &Rule)| {
        wanted.len() == dumped.len() && wanted.iter().zip(dumped).all(|(w, d)| w.is_dumped_as(d))
    };
    wanted.len() == dumped.len() && wanted.iter().zip(dumped).all(is_same)
}

#[derive(Default)]
struct Plan {
    requests: Vec<Request>,
    /// Chains whose rules are written anew.
    rewritten: BTreeSet<Arc<str>>,
}

impl Plan {
    fn create(&mut self, desired: &TableContent, observed: &TableContent) {
        for (name, (set, _)) in &desired.sets {
            if !observed.sets.contains_key(name) {
                self.requests.push(Request::AddSet(set.clone()));
            }
        }
        for (name, (chain, rules)) in &desired.chains {
            match observed.chains.get(name) {
                None => {
                    self.requests.push(Request::AddChain(chain.clone()));
                    self.rewritten.insert(Arc::clone(name));
                }
                Some((theirs, there)) => {
                    if chain.base != theirs.base || !is_dumped_as(rules, there) {
                        self.rewritten.insert(Arc::clone(name));
                    }
                }
            }
        }
    }

    /// Empties chains that are rewritten or surplus; base chains with another hook are made anew.
    fn flush(&mut self, desired: &TableContent, observed: &TableContent) {
        for (name, (chain, rules)) in &observed.chains {
            let wanted = desired.chains.get(name);
            if wanted.is_some() && !self.rewritten.contains(name) {
                continue;
            }
            if !rules.is_empty() {
                self.requests.push(Request::FlushChain(Arc::clone(name)));
            }
            if let Some((wanted, _)) = wanted.filter(|(wanted, _)| wanted.base != chain.base) {
                self.requests.push(Request::DelChain(Arc::clone(name)));
                self.requests.push(Request::AddChain(Chain::clone(wanted)));
            }
        }
    }

    fn elements(&mut self, desired: &TableContent, observed: &TableContent, surplus: Surplus) {
        let none = Elements::new();
        let of = |content: &'_ TableContent, name: &str| -> Elements {
            let set = content.sets.get(name);
            set.map(|(_, elements)| elements.clone())
                .unwrap_or_default()
        };
        let held = match surplus {
            Surplus::Delete => Elements::new(),
            Surplus::Keep => of(observed, SERVICES),
        };
        for (name, (set, wanted)) in &desired.sets {
            if set.is_dynamic {
                continue;
            }
            let theirs = observed.sets.get(name);
            let there = theirs.map_or(&none, |(_, there)| there);
            let is_shared = [CLUSTER_IPS, HAIRPIN, REMOTE].contains(&&**name);
            let (mut deleted, mut added) = difference(there, wanted);
            if surplus == Surplus::Keep {
                deleted.clear();
                added.retain(|(key, _)| is_shared || !is_of_way(name, key, &held));
            }
            let after = there.len() + added.len() - deleted.len();
            let resized = theirs.and_then(|(theirs, _)| room::resized(set, theirs, after));
            self.requests.extend(resized.map(Request::ResizeSet));
            push_elements(name, deleted, added, &mut self.requests);
        }
    }

    fn rules(&mut self, desired: &TableContent) {
        for name in &self.rewritten {
            let rules = desired.chains.get(name).into_iter();
            let rules = rules.flat_map(|(_, rules)| rules);
            let add = |rule: &Rule| Request::AddRule(Arc::clone(name), rule.clone());
            self.requests.extend(rules.map(add));
        }
    }

    fn delete(&mut self, desired: &TableContent, observed: &TableContent) {
        let chains = observed.chains.keys();
        for name in chains.filter(|name| !desired.chains.contains_key(*name)) {
            self.requests.push(Request::DelChain(Arc::clone(name)));
        }
        let sets = observed.sets.keys();
        for name in sets.filter(|name| !desired.sets.contains_key(*name)) {
            self.requests.push(Request::DelSet(Arc::clone(name)));
        }
    }
}

/// Adds the requests that change elements of a set from what is there to what is wanted.
pub(crate) fn change_elements(
    set: &Arc<str>,
    there: &Elements,
    wanted: &Elements,
    requests: &mut Vec<Request>,
) {
    let (deleted, added) = difference(there, wanted);
    push_elements(set, deleted, added, requests);
}

fn push_elements(set: &Arc<str>, deleted: Pairs, added: Pairs, requests: &mut Vec<Request>) {
    if !deleted.is_empty() {
        requests.push(Request::DelElements(Arc::clone(set), deleted));
    }
    if !added.is_empty() {
        requests.push(Request::AddElements(Arc::clone(set), added));
    }
}

/// Returns `true` if a key of a set has one of the ways: it begins with it, but for sources of ways with many.
pub(crate) fn is_of_way(set: &str, key: &[u8], ways: &Elements) -> bool {
    let way = match first_name(set) {
        ALLOWED_MANY => way_of_source(set, key),
        _ => {
            let len = ways.keys().next().map_or(usize::MAX, |way| way.len());
            key.get(..len)
        }
    };
    way.is_some_and(|way| ways.contains_key(way))
}

pub(crate) type Pairs = Vec<(Key, Value)>;

/// Elements to delete, with those that get another value, and elements to add, in one walk over both.
fn difference(there: &Elements, wanted: &Elements) -> (Pairs, Pairs) {
    let (mut deleted, mut added) = (Vec::new(), Vec::new());
    let pair = |(key, value): (&Key, &Value)| (key.clone(), value.clone());
    let mut there = there.iter().peekable();
    for (key, value) in wanted {
        while let Some(surplus) = there.next_if(|(theirs, _)| *theirs < key) {
            deleted.push(pair(surplus));
        }
        match there.next_if(|(theirs, _)| *theirs == key) {
            Some((_, theirs)) if theirs == value => {}
            Some(changed) => {
                deleted.push(pair(changed));
                added.push(pair((key, value)));
            }
            None => added.push(pair((key, value))),
        }
    }
    deleted.extend(there.map(pair));
    (deleted, added)
}
