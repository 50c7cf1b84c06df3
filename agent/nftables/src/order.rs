// SPDX-License-Identifier: Apache-2.0

//! Order of the transactions of a change.
//!
//! Invariant: while a way is in `ranged`, its permitted sources are in `allowed` or in `allowed-many`. One transaction
//! cannot keep it. The kernel shows the elements of a set with intervals, such as these, at the end of a transaction,
//! one set after the other; all else is in force before (`nf_tables_commit` calls `nft_set_commit_update` last:
//! `net/netfilter/nf_tables_api.c`). The rule would drop the connections of permitted sources in between.
//!
//! The new size of a set counts from the end of a transaction on. So sets are resized before they get more elements.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_netlink::nftables::{Elements, Request, Value};

use crate::layout::{ALLOWED_MANY, RANGED, first_name, is_of_sources, way_of_source};
use crate::plan::{Pairs, is_of_way};
use crate::sources::renews_sources;

/// Splits the requests of a change into transactions, to be made in this order: permitted sources come before their
/// ways get ranges, and go after. A way whose sources move from one set to the other has the old and the new ones in
/// between. A set that is made anew has its elements before rules look it up. Most changes are one transaction. So is a
/// table that is made anew, which would be missing in between. It keeps the invariant only at its end.
#[must_use]
pub fn transactions(requests: Vec<Request>) -> Vec<Vec<Request>> {
    let is_of_ranged = |request: &Request| match request {
        Request::AddElements(set, _) | Request::DelElements(set, _) => **set == *RANGED,
        _ => false,
    };
    let is_resize = |request: &Request| matches!(request, Request::ResizeSet(_));
    let mut late = moved(&requests);
    let is_early = |request: &Request| is_of_ranged(request) || is_resize(request);
    let is_split = !late.is_empty() || requests.iter().any(is_early) || renews_sources(&requests);
    if requests.contains(&Request::DelTable) || !is_split {
        return vec![requests];
    }
    late.extend(opened(&requests));
    let (mut before, mut change, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for request in requests {
        match request {
            Request::AddTable | Request::ResizeSet(_) => before.push(request),
            Request::AddSet(ref set) if is_of_sources(&set.name) => before.push(request),
            Request::AddElements(ref set, _) if is_of_sources(set) => before.push(request),
            Request::DelElements(set, sources) if is_of_sources(&set) => {
                let pairs = sources.into_iter();
                let (last, early) = pairs.partition(|(key, _)| is_of_way(&set, key, &late));
                delete(&mut before, &set, early);
                delete(&mut after, &set, last);
            }
            _ => change.push(request),
        }
    }
    let all = [before, change, after].into_iter();
    all.filter(|requests| !requests.is_empty()).collect()
}

/// The ways that have ranges no more.
fn opened(requests: &[Request]) -> Elements {
    let ways = requests.iter().filter_map(|request| match request {
        Request::DelElements(set, ways) if **set == *RANGED => Some(ways),
        _ => None,
    });
    ways.flatten().cloned().collect()
}

/// The ways whose sources leave one set for the other.
fn moved(requests: &[Request]) -> Elements {
    let (mut added, mut deleted) = (BTreeSet::new(), BTreeSet::new());
    for request in requests {
        let (ways, set, pairs) = match request {
            Request::AddElements(set, pairs) => (&mut added, set, pairs),
            Request::DelElements(set, pairs) => (&mut deleted, set, pairs),
            _ => continue,
        };
        if is_of_sources(set) {
            let has_many = first_name(set) == ALLOWED_MANY;
            let of_set = pairs.iter().filter_map(|(key, _)| way_of_source(set, key));
            ways.extend(of_set.map(|way| (has_many, way)));
        }
    }
    let ways = deleted.into_iter();
    let ways = ways.filter(|(had_many, way)| added.contains(&(!had_many, *way)));
    ways.map(|(_, way)| (way.into(), Value::Present)).collect()
}

fn delete(requests: &mut Vec<Request>, set: &Arc<str>, elements: Pairs) {
    if !elements.is_empty() {
        requests.push(Request::DelElements(Arc::clone(set), elements));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use portolan_netlink::nftables::{Expression, Key, Lookup, TableContent};

    use super::*;
    use crate::advance;
    use crate::layout::{ALLOWED, other_name};

    /// The permitted sources of each way in `ranged`: those in sets that rules look up.
    fn sources(content: Option<&TableContent>) -> BTreeMap<Key, BTreeSet<Key>> {
        let elements = |set: &str| content.and_then(|content| content.sets.get(set));
        let ways = elements(RANGED).into_iter().flat_map(|set| set.1.keys());
        let rules = content
            .into_iter()
            .flat_map(|content| content.chains.values());
        let rules: Vec<_> = rules.flat_map(|(_, rules)| rules).flatten().collect();
        let is_looked_up = |set: &str| {
            let lookup = Expression::lookup(set, Lookup::Lacks);
            rules.iter().any(|expression| **expression == lookup)
        };
        let names = [ALLOWED, ALLOWED_MANY].map(|set| [Some(set), other_name(set)]);
        let names = names.into_iter().flatten().flatten();
        let names: Vec<&str> = names.filter(|set| is_looked_up(set)).collect();
        let allowed = |way: &Key| {
            let of = |set: &&'static str| {
                let set = *set;
                let keys = elements(set).into_iter().flat_map(|set| set.1.keys());
                keys.filter(move |key| way_of_source(set, key) == Some(&**way))
            };
            names.iter().flat_map(of).cloned().collect()
        };
        ways.map(|way| (way.clone(), allowed(way))).collect()
    }

    /// Makes the transactions of a change, and asserts that each way has the ranges of one of both tables, or of both,
    /// all the time: before, between and at the end of the transactions.
    pub(crate) fn advance_in_order(kernel: &mut Option<TableContent>, requests: Vec<Request>) {
        let before = sources(kernel.as_ref());
        let mut last = kernel.clone();
        advance(&mut last, &requests);
        let wanted = sources(last.as_ref());
        let is_ranged = |kernel: &Option<TableContent>| {
            for (way, there) in sources(kernel.as_ref()) {
                let of_each = [before.get(&way), wanted.get(&way)];
                let of_both: BTreeSet<Key> =
                    of_each.into_iter().flatten().flatten().cloned().collect();
                let is_known = of_each.contains(&Some(&there)) || there == of_both;
                assert!(is_known, "{way:?}: {there:?}");
            }
        };
        for transaction in transactions(requests) {
            // Elements of sets with intervals come and go last.
            let is_allowed = |request: &&Request| match request {
                Request::AddElements(set, _) | Request::DelElements(set, _) => is_of_sources(set),
                _ => false,
            };
            let (late, early): (Vec<_>, Vec<_>) = transaction
                .iter()
                .cloned()
                .partition(|request| is_allowed(&request));
            advance(kernel, &early);
            is_ranged(kernel);
            advance(kernel, &late);
            is_ranged(kernel);
        }
        assert_eq!(*kernel, last);
    }
}
