// SPDX-License-Identifier: Apache-2.0

//! Sets of permitted sources that are made anew.
//!
//! The kernel deletes an element of a set with intervals in a time that grows with the set, and other transactions
//! wait: 70,000 elements take 46 s (Linux 6.18). A set as a whole goes at once. So a set that would lose very many
//! elements is made under its other name, with those that stay. Rules look it up once it is there, and the old one is
//! deleted.

use std::sync::Arc;

use portolan_netlink::nftables::{Elements, Expression, Lookup, Request, TableContent};

use crate::layout::{ALLOWED, ALLOWED_MANY, is_of_sources, other_name};

/// Most elements that are deleted one by one in any case. Of 70,000 elements they take little more than a second.
const FEW: usize = 1_024;

/// Elements that the kernel adds in the time in which it deletes one: 70,000 take 2 s, and 46 s (Linux 6.18).
const ADDED: usize = 20;

/// The name that a set has in a table: with both, as an agent that was killed may have left it, the one that rules look
/// up.
pub(crate) fn name_in<'a>(set: &'a str, content: &TableContent) -> &'a str {
    let is_there = |name: &str| content.sets.contains_key(name);
    match other_name(set).filter(|other| is_there(other)) {
        Some(other) if !is_there(set) || is_looked_up(other, content) => other,
        _ => set,
    }
}

fn is_looked_up(set: &str, content: &TableContent) -> bool {
    let lookup = Expression::lookup(set, Lookup::Lacks);
    let rules = content.chains.values().flat_map(|(_, rules)| rules);
    rules.flatten().any(|dumped| lookup.is_dumped_as(dumped))
}

/// Has the sets of permitted sources made anew that would lose very many elements.
///
/// No record may be left out of transactions that do so ([`renews_sources`]): the new set has nothing of it, and what
/// it had would be gone.
pub fn renew_sources(desired: &mut TableContent, observed: &TableContent) {
    for set in [ALLOWED, ALLOWED_MANY] {
        let name = name_in(set, observed);
        let sets = desired.sets.get(name).zip(observed.sets.get(name));
        let loses = sets
            .is_some_and(|((_, wanted), (_, there))| loses_many(name, there, wanted, there.len()));
        if let Some(other) = other_name(name).filter(|_| loses) {
            rename(desired, name, other);
        }
    }
}

/// Returns `true` if requests replace a set of permitted sources.
#[must_use]
pub fn renews_sources(requests: &[Request]) -> bool {
    let is_deletion =
        |request: &Request| matches!(request, Request::DelSet(set) if is_of_sources(set));
    requests.iter().any(is_deletion)
}

/// Returns `true` if a set of permitted sources is rather made anew. It has `all` elements, some of which, `there`, are
/// to become those that are wanted.
pub(crate) fn loses_many(set: &str, there: &Elements, wanted: &Elements, all: usize) -> bool {
    if !is_of_sources(set) || there.len() <= FEW {
        return false;
    }
    let lost = there
        .iter()
        .filter(|(key, value)| wanted.get(*key) != Some(*value));
    let lost = lost.count();
    lost > FEW && lost.saturating_mul(ADDED) > all.saturating_sub(lost)
}

/// Gives sets of permitted sources the names that they have in a table.
pub(crate) fn keep_names(desired: &mut TableContent, observed: &TableContent) {
    for set in [ALLOWED, ALLOWED_MANY] {
        let name = name_in(set, observed);
        if name != set {
            rename(desired, set, name);
        }
    }
}

/// Renames a set, and has rules look it up by its new name.
fn rename(content: &mut TableContent, from: &str, to: &str) {
    if let Some((mut set, elements)) = content.sets.remove(from) {
        set.name = to.into();
        content.sets.insert(Arc::clone(&set.name), (set, elements));
    }
    let [old, new] = [from, to].map(|set| Expression::lookup(set, Lookup::Lacks));
    let rules = content.chains.values_mut().flat_map(|(_, rules)| rules);
    for expression in rules.flatten().filter(|expression| **expression == old) {
        expression.clone_from(&new);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ipnet::IpNet;
    use portolan_model::{Family, FrontendKind, Lists, NodeTable, Record};
    use portolan_plan::{Config, NodeFacts};

    use super::*;
    use crate::order::tests::advance_in_order;
    use crate::tests::{desired, record, table, vip};
    use crate::{Surplus, Ways, advance, plan, plan_touched, transactions};

    /// A Service with so many ranges at each of its addresses, which have this third byte.
    fn ranged(service: &str, third: u8, addresses: u8, ranges: u16) -> Record {
        let range = |number: u16| {
            let [high, low] = number.to_be_bytes();
            IpNet::new([20, high, low, 0].into(), 25).unwrap()
        };
        let frontend = |last: u8| {
            let address = format!("192.0.{third}.{last}");
            let mut frontend = vip(&address, FrontendKind::LoadBalancer, Lists::Cluster);
            frontend.source_ranges = (0..ranges).map(range).collect();
            frontend
        };
        record(service, (1..=addresses).map(frontend).collect(), 1)
    }

    /// The requests that lead to a table, as the agent plans them.
    fn requests(table: &NodeTable, kernel: Option<&TableContent>) -> Vec<Request> {
        let mut wanted = desired(table, kernel);
        if let Some(kernel) = kernel {
            renew_sources(&mut wanted, kernel);
        }
        plan(&wanted, kernel, Surplus::Delete)
    }

    /// Number of elements of each set of permitted sources.
    fn sizes(kernel: Option<&TableContent>) -> BTreeMap<String, usize> {
        let sets = kernel.into_iter().flat_map(|kernel| &kernel.sets);
        let of_sources = sets.filter(|(name, _)| is_of_sources(name));
        of_sources
            .map(|(name, (_, elements))| (name.to_string(), elements.len()))
            .collect()
    }

    fn len(kernel: Option<&TableContent>, set: &str) -> Option<usize> {
        sizes(kernel).get(set).copied()
    }

    #[test]
    fn a_set_that_loses_very_many_elements_is_made_anew() {
        for (set, other, addresses, ranges) in [
            (ALLOWED, "allowed-2", 5, 250),
            (ALLOWED_MANY, "allowed-many-2", 1, 1_500),
        ] {
            let large = || ranged("large", 2, addresses, ranges);
            let small = || ranged("small", 3, addresses, 20 + ranges / 5);
            let (both, one) = (table([large(), small()]), table([small()]));
            let mut kernel = None;
            advance_in_order(&mut kernel, requests(&both, None));
            let [all, left] = [&both, &one].map(|table| {
                let ranges = table.records.values().flat_map(|record| &record.frontends);
                ranges
                    .map(|frontend| frontend.source_ranges.len())
                    .sum::<usize>()
            });
            assert_eq!(len(kernel.as_ref(), set), Some(all));

            // And back to the first name at the next time.
            for (there, gone) in [(other, set), (set, other)] {
                let change = requests(&one, kernel.as_ref());
                assert!(renews_sources(&change));
                let deletes = |request: &Request| matches!(request, Request::DelElements(set, _) if is_of_sources(set));
                assert!(!change.iter().any(deletes));
                advance_in_order(&mut kernel, change);
                assert_eq!(len(kernel.as_ref(), there), Some(left));
                assert_eq!(len(kernel.as_ref(), gone), None);
                assert_eq!(requests(&one, kernel.as_ref()), []);

                let change = requests(&both, kernel.as_ref());
                assert!(!renews_sources(&change));
                advance_in_order(&mut kernel, change);
                assert_eq!(len(kernel.as_ref(), there), Some(all));
                assert_eq!(requests(&both, kernel.as_ref()), []);
            }
        }
    }

    #[test]
    fn few_elements_are_deleted_one_by_one() {
        // Either few, or few beside those that stay.
        for (large, stays) in [(900, 300), (1_100, 24_000)] {
            let small = || ranged("small", 3, 1, stays);
            let mut kernel = None;
            let both = table([ranged("large", 2, 1, large), small()]);
            advance(&mut kernel, &requests(&both, None));
            let change = requests(&table([small()]), kernel.as_ref());
            assert!(!renews_sources(&change));
            advance(&mut kernel, &change);
            let left = len(kernel.as_ref(), ALLOWED_MANY);
            assert_eq!(left, Some(usize::from(stays)));
        }
    }

    #[test]
    fn the_whole_table_is_compared_where_a_change_loses_many() {
        let (config, facts) = (Config::default(), NodeFacts::default());
        let small = || ranged("small", 3, 1, 300);
        let both = table([ranged("large", 2, 1, 1_500), small()]);
        let mut kernel = None;
        advance(&mut kernel, &requests(&both, None));
        let after = |ranges: u16| {
            let after = table([ranged("large", 2, 1, ranges), small()]);
            let mut ways = Ways::new(&both, &facts);
            let touched = ways.update(&both, &after, &facts).unwrap();
            let kernel = kernel.as_ref().unwrap();
            plan_touched(Family::V4, &config, &ways, &touched, kernel)
        };
        assert_eq!(after(300), None);
        assert!(after(1_400).is_some());
    }

    #[test]
    fn changes_are_followed_in_a_set_of_the_other_name() {
        let (config, facts) = (Config::default(), NodeFacts::default());
        let small = |ranges: u16| ranged("small", 3, 1, ranges);
        let both = table([ranged("large", 2, 1, 1_500), small(300)]);
        let (before, after) = (table([small(300)]), table([small(310)]));
        let mut kernel = None;
        for table in [&both, &before] {
            let change = requests(table, kernel.as_ref());
            advance(&mut kernel, &change);
        }
        let mut ways = Ways::new(&before, &facts);
        let touched = ways.update(&before, &after, &facts).unwrap();
        let there = kernel.as_ref().unwrap();
        let followed = plan_touched(Family::V4, &config, &ways, &touched, there).unwrap();
        let wanted = desired(&after, kernel.as_ref());
        assert_eq!(followed, plan(&wanted, kernel.as_ref(), Surplus::Delete));
        assert_eq!(followed.len(), 1);
    }

    #[test]
    fn an_agent_that_was_killed_in_between_goes_on() {
        let small = || ranged("small", 3, 1, 300);
        let both = table([ranged("large", 2, 1, 1_500), small()]);
        let one = table([small()]);
        let mut kernel = None;
        for name in ["allowed-many-2", "allowed-many"] {
            let change = requests(&both, kernel.as_ref());
            advance(&mut kernel, &change);
            let mut change = transactions(requests(&one, kernel.as_ref()));
            advance(&mut kernel, &change.remove(0));
            let sets = ["allowed", "allowed-many", "allowed-many-2"];
            assert!(sizes(kernel.as_ref()).keys().eq(sets));

            // A table from disk, which may be older, takes no permitted source away.
            let mut kept = kernel.clone();
            let wanted = desired(&one, kept.as_ref());
            let change = plan(&wanted, kept.as_ref(), Surplus::Keep);
            advance_in_order(&mut kept, change);
            assert_eq!(sizes(kept.as_ref()).values().sum::<usize>(), 1_800);

            let change = requests(&one, kernel.as_ref());
            advance_in_order(&mut kernel, change);
            assert!(sizes(kernel.as_ref()).keys().eq(["allowed", name]));
            assert_eq!(requests(&one, kernel.as_ref()), []);
        }
    }
}
