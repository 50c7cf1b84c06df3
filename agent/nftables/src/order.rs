// SPDX-License-Identifier: Apache-2.0

//! Order of the transactions of a change.
//!
//! Invariant: while a way is in `ranged`, its permitted sources are in `allowed`. One transaction cannot keep it. The
//! kernel shows the elements of a set with intervals, such as `allowed`, at the end of a transaction; all else is
//! in force before (`nf_tables_commit` calls `nft_set_commit_update` last: `net/netfilter/nf_tables_api.c`). The rule
//! would drop the connections of permitted sources in between.
//!
//! The new size of a set counts from the end of a transaction on. So sets are resized before they get more elements.

use std::sync::Arc;

use portolan_netlink::nftables::{Elements, Request};

use crate::layout::{ALLOWED, RANGED};
use crate::plan::{Pairs, is_of_way};

/// Splits the requests of a change into transactions, to be made in this order: permitted sources come before their
/// ways get ranges, and go after. Most changes are one transaction. So is a table that is made anew: it would be missing in
/// between. It keeps the invariant only at its end.
#[must_use]
pub fn transactions(requests: Vec<Request>) -> Vec<Vec<Request>> {
    let is_of_ranged = |request: &Request| match request {
        Request::AddElements(set, _) | Request::DelElements(set, _) => **set == *RANGED,
        _ => false,
    };
    let is_resize = |request: &Request| matches!(request, Request::ResizeSet(_));
    let is_early = |request: &Request| is_of_ranged(request) || is_resize(request);
    if requests.contains(&Request::DelTable) || !requests.iter().any(is_early) {
        return vec![requests];
    }
    let opened = opened(&requests);
    let (mut before, mut change, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for request in requests {
        match request {
            Request::AddTable | Request::ResizeSet(_) => before.push(request),
            Request::AddSet(ref set) if *set.name == *ALLOWED => before.push(request),
            Request::AddElements(ref set, _) if **set == *ALLOWED => before.push(request),
            Request::DelElements(set, sources) if *set == *ALLOWED => {
                let pairs = sources.into_iter();
                let (late, early) = pairs.partition(|(key, _)| is_of_way(key, &opened));
                delete(&mut before, &set, early);
                delete(&mut after, &set, late);
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

fn delete(requests: &mut Vec<Request>, set: &Arc<str>, elements: Pairs) {
    if !elements.is_empty() {
        requests.push(Request::DelElements(Arc::clone(set), elements));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use portolan_netlink::nftables::{Key, TableContent};

    use super::*;
    use crate::advance;

    /// The permitted sources of each way in `ranged`.
    fn sources(content: Option<&TableContent>) -> BTreeMap<Key, BTreeSet<Key>> {
        let elements = |set: &str| content.and_then(|content| content.sets.get(set));
        let ways = elements(RANGED).into_iter().flat_map(|set| set.1.keys());
        let allowed = |way: &Key| {
            let keys = elements(ALLOWED).into_iter().flat_map(|set| set.1.keys());
            keys.filter(|key| key.starts_with(way)).cloned().collect()
        };
        ways.map(|way| (way.clone(), allowed(way))).collect()
    }

    /// Makes the transactions of a change, and asserts that each way has the ranges of one of both tables all the
    /// time: before, between and at the end of the transactions.
    pub(crate) fn advance_in_order(kernel: &mut Option<TableContent>, requests: Vec<Request>) {
        let before = sources(kernel.as_ref());
        let mut last = kernel.clone();
        advance(&mut last, &requests);
        let wanted = sources(last.as_ref());
        let is_ranged = |kernel: &Option<TableContent>| {
            for (way, there) in sources(kernel.as_ref()) {
                let of_one = [before.get(&way), wanted.get(&way)];
                assert!(of_one.contains(&Some(&there)), "{way:?}: {there:?}");
            }
        };
        for transaction in transactions(requests) {
            // Elements of `allowed` come and go last.
            let is_allowed = |request: &&Request| match request {
                Request::AddElements(set, _) | Request::DelElements(set, _) => **set == *ALLOWED,
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
