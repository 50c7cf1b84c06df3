// SPDX-License-Identifier: Apache-2.0

//! Sizes of sets.
//!
//! A set with a size has a hash table for as many elements from the start, and takes no more. It is made for twice the
//! elements that come first, and its size grows before they exceed it. The hash table stays as it is then, so that look-ups
//! take longer. A kernel that cannot change sizes gets sets without one. Sets of earlier agents have none either, and
//! stay so.

use portolan_netlink::nftables::{Elements, Set, TableContent};
use portolan_plan::Config;

use crate::layout::{
    CLUSTER_IPS, ENDPOINTS, HAIRPIN, LOCAL_ENDPOINTS, MASQUERADED, MASQUERADED_OWN, OUTSIDE,
    REMOTE, SERVICES,
};

/// The sets that have a size: those with many elements. Sets with intervals are trees.
const SIZED: [&str; 9] = [
    SERVICES,
    OUTSIDE,
    ENDPOINTS,
    LOCAL_ENDPOINTS,
    CLUSTER_IPS,
    MASQUERADED,
    MASQUERADED_OWN,
    HAIRPIN,
    REMOTE,
];

/// Smallest size: its hash table has 128 KiB.
const LEAST: usize = 8_192;

/// The size of a set that gets so many elements.
fn room(elements: usize) -> u32 {
    let room = elements.saturating_mul(2).max(LEAST).next_power_of_two();
    u32::try_from(room).unwrap_or(u32::MAX)
}

/// The size of a set for these elements: that of the observed one if they fit in.
pub(crate) fn size(
    set: &Set,
    wanted: &Elements,
    config: &Config,
    observed: Option<&TableContent>,
) -> Option<u32> {
    match observed.and_then(|content| content.sets.get(&set.name)) {
        _ if !SIZED.contains(&&*set.name) => set.size,
        Some((there, _)) if fits(there.size, wanted.len()) => there.size,
        None if !config.sizes_sets => None,
        _ => Some(room(wanted.len())),
    }
}

/// Returns `true` if a set of this size takes so many elements.
pub(crate) fn fits(size: Option<u32>, elements: usize) -> bool {
    size.is_none_or(|size| u32::try_from(elements).is_ok_and(|elements| elements <= size))
}

/// Returns the set with another size than the kernel's, if it needs that for so many elements.
pub(crate) fn resized(set: &Set, theirs: &Set, elements: usize) -> Option<Set> {
    let size = match fits(set.size, elements) {
        true => set.size,
        false => Some(room(elements)),
    };
    let set = set.clone();
    (size != theirs.size).then_some(Set { size, ..set })
}

/// Returns `true` if the kernel's set is this one, or this one with another size.
pub(crate) fn is_alike(set: &Set, theirs: &Set) -> bool {
    if !SIZED.contains(&&*set.name) {
        return set == theirs;
    }
    let (size, set) = (theirs.size, set.clone());
    Set { size, ..set } == *theirs
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use portolan_model::{Family, FrontendKind, Lists, NodeTable};
    use portolan_netlink::nftables::Request;
    use portolan_plan::NodeFacts;

    use super::*;
    use crate::tests::{record, table, vip};
    use crate::{Surplus, Ways, advance, desire, plan, transactions};

    /// A Service with so many endpoints.
    fn service(name: &str, address: &str, endpoints: u16) -> NodeTable {
        let frontend = vip(address, FrontendKind::ClusterIp, Lists::Cluster);
        table([record(name, vec![frontend], endpoints)])
    }

    fn of_table(
        table: &NodeTable,
        observed: Option<&TableContent>,
        sizes_sets: bool,
    ) -> TableContent {
        let ways = Ways::new(table, &NodeFacts::default());
        let config = Config {
            sizes_sets,
            ..Config::default()
        };
        desire(Family::V4, &ways, &config, &table.node, observed).content
    }

    fn desired(endpoints: u16, observed: Option<&TableContent>, sizes_sets: bool) -> TableContent {
        let table = service("a", "10.96.0.1", endpoints);
        of_table(&table, observed, sizes_sets)
    }

    fn resizes(requests: &[Request]) -> Vec<(&str, Option<u32>)> {
        let resizes = requests.iter().filter_map(|request| match request {
            Request::ResizeSet(set) => Some((&*set.name, set.size)),
            _ => None,
        });
        resizes.collect()
    }

    /// The size of each set that has one, and the number of its elements.
    fn sizes(content: Option<&TableContent>) -> BTreeMap<&str, (Option<u32>, usize)> {
        let sets = content.into_iter().flat_map(|content| &content.sets);
        let sets = sets.filter(|(_, (set, _))| !set.is_dynamic);
        sets.map(|(name, (set, all))| (&**name, (set.size, all.len())))
            .collect()
    }

    /// Makes transactions as the kernel does: elements must have room in the size from before.
    fn commit(kernel: &mut Option<TableContent>, requests: Vec<Request>) {
        for requests in transactions(requests) {
            let before = kernel.clone();
            advance(kernel, &requests);
            let before = sizes(before.as_ref());
            for (name, (size, count)) in sizes(kernel.as_ref()) {
                let size = before.get(name).map_or(size, |(size, _)| *size);
                assert!(fits(size, count), "{name}: {count} elements of {size:?}");
            }
        }
    }

    #[test]
    fn a_set_has_room_for_twice_its_elements_and_grows_before_it_is_full() {
        let first = desired(7_000, None, true);
        assert_eq!(first.sets[ENDPOINTS].0.size, Some(16_384));
        assert_eq!(first.sets[SERVICES].0.size, Some(8_192));
        // It stays as it is with fewer elements, and with as many as fit.
        for endpoints in [1, 16_384] {
            let wanted = desired(endpoints, Some(&first), true);
            let requests = plan(&wanted, Some(&first), Surplus::Delete);
            assert_eq!(resizes(&requests), []);
            let mut kernel = Some(first.clone());
            commit(&mut kernel, requests);
            assert_eq!(kernel, Some(wanted));
        }
        let larger = desired(16_385, Some(&first), true);
        let requests = plan(&larger, Some(&first), Surplus::Delete);
        assert_eq!(resizes(&requests), [(ENDPOINTS, Some(65_536))]);
        let mut kernel = Some(first);
        commit(&mut kernel, requests);
        assert_eq!(kernel.as_ref(), Some(&larger));
        assert_eq!(plan(&larger, kernel.as_ref(), Surplus::Delete), []);
    }

    #[test]
    fn what_a_table_keeps_has_room_too() {
        let there = desired(8_000, None, true);
        let other = service("b", "10.96.0.2", 9_000);
        let wanted = of_table(&other, Some(&there), true);
        let requests = plan(&wanted, Some(&there), Surplus::Keep);
        assert_eq!(resizes(&requests), [(ENDPOINTS, Some(65_536))]);
        let mut kernel = Some(there);
        commit(&mut kernel, requests);
        assert_eq!(kernel.unwrap().sets[ENDPOINTS].1.len(), 17_000);
    }

    #[test]
    fn a_kernel_that_cannot_change_sizes_has_sets_without() {
        let first = desired(3, None, false);
        assert_eq!(first.sets[ENDPOINTS].0.size, None);
        // They stay so under an agent that could.
        let wanted = desired(9_000, Some(&first), true);
        assert_eq!(wanted.sets[ENDPOINTS].0.size, None);
        let requests = plan(&wanted, Some(&first), Surplus::Delete);
        assert_eq!(resizes(&requests), []);
    }
}
