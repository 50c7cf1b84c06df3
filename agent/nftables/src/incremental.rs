// SPDX-License-Identifier: Apache-2.0

//! Changes of some records, at a cost proportional to the change.
//!
//! Only changes that concern the changed records alone are followed. Where records interact (two of one address and
//! port, the first list of a class, the first Service with affinity or with its own destinations for connections from
//! outside, the first import), the result is `None`, and everything is computed. The requests are always those that
//! lead to what [`desire`](crate::desire) computes.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use portolan_model::{Family, FrontendKind, NodeTable, RecordKey};
use portolan_netlink::nftables::{Elements, Request, TableContent, Value, Verdict};
use portolan_plan::{Config, NodeFacts};

use crate::desire::Builder;
use crate::layout::{
    ALLOWED, ALLOWED_MANY, CLUSTER_IPS, ENDPOINTS, HAIRPIN, LOCAL_ENDPOINTS, MASQUERADED,
    MASQUERADED_OWN, OUTSIDE, RANGED, REMOTE, SERVICES, STICKY, address_key, hairpin_key, way_key,
    way_of_source,
};
use crate::needs::has_many_timeouts;
use crate::plan::change_elements;
use crate::room;
use crate::sources::{loses_many, name_in};
use crate::{Hairpin, Refused, WayKey, Ways};

/// With more changed records everything is computed, which is cheaper for each record.
const MOST: usize = 2_048;

/// Sets and maps whose keys begin with a way.
pub(crate) const OF_WAYS: [&str; 9] = [
    SERVICES,
    OUTSIDE,
    ENDPOINTS,
    LOCAL_ENDPOINTS,
    MASQUERADED,
    MASQUERADED_OWN,
    RANGED,
    ALLOWED,
    STICKY,
];

/// Changed records, and the ways and endpoints of this node that they have or had.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    records: BTreeSet<RecordKey>,
    ways: BTreeSet<WayKey>,
    hairpins: BTreeSet<Hairpin>,
    remote: BTreeSet<WayKey>,
}

impl Touched {
    /// The changed records, those without a way included.
    #[must_use]
    pub fn records(&self) -> &BTreeSet<RecordKey> {
        &self.records
    }
}

impl Ways {
    /// Follows a change of the table. `None` if that needs all records: the ways must be computed anew then.
    #[must_use]
    pub fn update(
        &mut self,
        from: &NodeTable,
        to: &NodeTable,
        facts: &NodeFacts,
    ) -> Option<Touched> {
        if from.node != to.node {
            return None;
        }
        let changed = to.changed_since(from);
        if changed.len() > MOST || self.refuses_any(&changed) {
            return None;
        }
        let mut touched = Touched::default();
        for key in &changed {
            self.remove(from, key, facts, &mut touched);
        }
        for key in &changed {
            self.insert(to, key, facts, &mut touched);
        }
        // A way that another record has, a load balancer, or a table that is too large.
        if self.refuses_any(&changed) || self.size.is_too_large() {
            return None;
        }
        touched.records = changed;
        Some(touched)
    }

    /// Returns `true` if one of these records is refused, or is the reason for a refusal.
    fn refuses_any(&self, keys: &BTreeSet<RecordKey>) -> bool {
        self.refused.iter().any(|refused| match refused {
            Refused::Taken { record, holder, .. } => keys.contains(record) || keys.contains(holder),
            Refused::Balanced { record } => keys.contains(record),
            // It has a place when others are smaller.
            Refused::TooLarge { .. } => true,
        })
    }

    fn remove(
        &mut self,
        table: &NodeTable,
        key: &RecordKey,
        facts: &NodeFacts,
        touched: &mut Touched,
    ) {
        let Some(record) = table.records.get(key) else {
            return;
        };
        for way in Self::keys(record, facts) {
            self.remove_way(&way);
            touched.ways.insert(way);
        }
        self.release_endpoints(table, record);
        touched.hairpins.extend(Self::hairpins_of(table, record));
        touched.remote.extend(Self::remote_of(table, record));
    }

    fn insert(
        &mut self,
        table: &NodeTable,
        key: &RecordKey,
        facts: &NodeFacts,
        touched: &mut Touched,
    ) {
        let Some(record) = table.records.get(key) else {
            return;
        };
        touched.ways.extend(Self::keys(record, facts));
        touched.hairpins.extend(Self::hairpins_of(table, record));
        touched.remote.extend(Self::remote_of(table, record));
        self.add(table, facts, record);
    }
}

/// The requests that change what a family's table has of some ways, from what is there to what they are now. `None` if
/// that needs a chain or a map that is not there, a set with more room, a new set or fewer chains: the whole table must
/// be compared then.
#[must_use]
pub fn plan_touched(
    family: Family,
    config: &Config,
    ways: &Ways,
    touched: &Touched,
    observed: &TableContent,
) -> Option<Vec<Request>> {
    if has_many_timeouts(observed) {
        return None;
    }
    let mut wanted = Builder::new(family, Some(observed));
    let mut there: BTreeMap<&'static str, Elements> = BTreeMap::new();
    let of_family = |way: &&WayKey| Family::of(way.address) == family;
    for key in touched.ways.iter().filter(of_family) {
        copy_way(key, observed, &mut there);
        let was_cluster_ip = copy(CLUSTER_IPS, &address_key(key.address), observed, &mut there);
        if let Some(way) = ways.ways.get(key) {
            wanted.way(key, way);
        }
        // Another port of the address may be a cluster IP's. A node's own address has very many ports, and is none.
        if was_cluster_ip && is_cluster_ip(ways, key) {
            wanted.add(CLUSTER_IPS, address_key(key.address), Value::Present);
        }
    }
    for hairpin in touched.hairpins.iter().filter(|h| of_family(&&h.0)) {
        let key = hairpin_key(&hairpin.0);
        copy(HAIRPIN, &key, observed, &mut there);
        if ways.hairpins.contains_key(hairpin) {
            wanted.add(HAIRPIN, key, Value::Present);
        }
    }
    let of_imports = touched.remote.iter().filter(of_family);
    for endpoint in of_imports.filter(|_| config.clamp_remote_mss) {
        let key = way_key(endpoint);
        copy(REMOTE, &key, observed, &mut there);
        if ways.remote.contains_key(endpoint) {
            wanted.add(REMOTE, key, Value::Present);
        }
    }
    let wanted = wanted.sets;
    if !wanted
        .values()
        .flatten()
        .all(|(_, value)| has_chain(value, observed))
    {
        return None;
    }
    let names: BTreeSet<&'static str> = wanted.keys().chain(there.keys()).copied().collect();
    let none = Elements::new();
    let mut requests = Vec::new();
    for name in names {
        let [there, wanted] = [&there, &wanted].map(|of| of.get(name).unwrap_or(&none));
        let (name, (set, all)) = observed.sets.get_key_value(name_in(name, observed))?;
        let is_full = !room::fits(set.size, all.len() - there.len() + wanted.len());
        if is_full || loses_many(name, there, wanted, all.len()) {
            return None;
        }
        change_elements(name, there, wanted, &mut requests);
    }
    Some(requests)
}

/// Returns `true` if the address of a way is a cluster IP at any port.
fn is_cluster_ip(ways: &Ways, of: &WayKey) -> bool {
    let of_address = ways.ways_of_address(of.address);
    let mut kinds = of_address.map(|(_, way)| way.kind);
    kinds.any(|kind| kind == FrontendKind::ClusterIp)
}

/// Returns `true` unless an element leads to a chain that is not there.
fn has_chain(value: &Value, observed: &TableContent) -> bool {
    match value {
        Value::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => {
            observed.chains.contains_key(chain)
        }
        _ => true,
    }
}

/// Copies an element; returns `true` if it is there.
fn copy(
    set: &'static str,
    key: &[u8],
    observed: &TableContent,
    to: &mut BTreeMap<&'static str, Elements>,
) -> bool {
    let found = observed.sets.get(set);
    let Some((key, value)) = found.and_then(|(_, elements)| elements.get_key_value(key)) else {
        return false;
    };
    to.entry(set)
        .or_default()
        .insert(key.clone(), value.clone());
    true
}

/// Copies all elements of a way.
fn copy_way(way: &WayKey, observed: &TableContent, to: &mut BTreeMap<&'static str, Elements>) {
    let way = way_key(way);
    let [mut is_ranged, mut has_few] = [false; 2];
    for set in OF_WAYS {
        let is_found = copy_of_way(set, &way, observed, to);
        match set {
            RANGED => is_ranged = is_found,
            ALLOWED => has_few = is_found,
            _ => {}
        }
    }
    // All sources of all ways have to be looked at: not for ways that have none there.
    if is_ranged && !has_few {
        let set = observed.sets.get(name_in(ALLOWED_MANY, observed));
        let elements = set.into_iter().flat_map(|(_, elements)| elements);
        let of_way = elements.filter(|(key, _)| way_of_source(ALLOWED_MANY, key) == Some(&*way));
        let pairs = of_way.map(|(key, value)| (key.clone(), value.clone()));
        to.entry(ALLOWED_MANY).or_default().extend(pairs);
    }
}

/// Copies all elements whose keys begin with a way; returns `true` if there are any.
fn copy_of_way(
    set: &'static str,
    way: &[u8],
    observed: &TableContent,
    to: &mut BTreeMap<&'static str, Elements>,
) -> bool {
    let Some((_, elements)) = observed.sets.get(name_in(set, observed)) else {
        return false;
    };
    let from = (Bound::Included(way), Bound::Unbounded);
    let of_way = elements.range::<[u8], _>(from);
    let mut is_found = false;
    for (key, value) in of_way.take_while(|(key, _)| key.starts_with(way)) {
        is_found = true;
        to.entry(set)
            .or_default()
            .insert(key.clone(), value.clone());
    }
    is_found
}
