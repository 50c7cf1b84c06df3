// SPDX-License-Identifier: Apache-2.0

//! Size of a table: the kernel takes it in one transaction, of at most 128 MiB.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_model::{NodeTable, RecordKey};

use crate::slots::most;
use crate::{List, Refused, Way, WayKey, Ways};

/// Most slots and permitted sources of IPv4, and of IPv6. A slot that gets another destination takes 72 and 108 bytes
/// of a transaction: 28 and 40 of the old element, 44 and 68 of the new one. So a change of all of them fits too.
const MOST: [u64; 2] = [1_700_000, 1_100_000];

/// Numbers of slots and permitted sources that ways of IPv4, and of IPv6, have at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size([u64; 2]);

impl Size {
    pub(crate) fn add(&mut self, key: &WayKey, way: &Way) {
        *self.of(key) += elements(way);
    }

    pub(crate) fn remove(&mut self, key: &WayKey, way: &Way) {
        *self.of(key) -= elements(way);
    }

    /// Returns `true` if one family does not fit into a transaction.
    pub(crate) fn is_too_large(self) -> bool {
        self.0.iter().zip(MOST).any(|(count, most)| *count > most)
    }

    fn of(&mut self, key: &WayKey) -> &mut u64 {
        &mut self.0[usize::from(key.address.is_ipv6())]
    }

    fn sum(self) -> u64 {
        self.0.iter().sum()
    }
}

fn elements(way: &Way) -> u64 {
    let slots = |list: &List| match list {
        List::To(destinations) => most(destinations),
        List::Drop | List::Refuse => 0,
    };
    let ranges = u64::try_from(way.ranges.len()).unwrap_or(u64::MAX);
    // A range is its first address and its last one.
    slots(&way.inside) + way.outside.as_ref().map_or(0, slots) + 2 * ranges
}

impl Ways {
    /// Leaves the largest records out until the rest fits, so that Services of one tenant do not freeze the node.
    pub(crate) fn leave_out_largest(&mut self, table: &NodeTable) {
        let mut sizes: BTreeMap<RecordKey, (Size, Vec<WayKey>)> = BTreeMap::new();
        for (key, way) in &self.ways {
            let (size, keys) = sizes.entry(way.record.key.clone()).or_default();
            size.add(key, way);
            keys.push(*key);
        }
        let mut largest: Vec<_> = sizes.into_iter().collect();
        largest.sort_by_key(|(_, (size, _))| Reverse(size.sum()));
        for (record, (size, keys)) in largest {
            if !self.size.is_too_large() {
                break;
            }
            for key in &keys {
                self.remove_way(key);
            }
            if let Some(whole) = table.records.get(&record).map(Arc::clone) {
                self.release_endpoints(table, &whole);
            }
            let elements = size.sum();
            self.refused.push(Refused::TooLarge { record, elements });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ipnet::IpNet;
    use portolan_model::{Destination, Frontend, FrontendAddress, FrontendKind, Record};
    use portolan_plan::NodeFacts;

    use super::*;
    use crate::tests::{key, table};

    /// A record with endpoints behind so many addresses.
    fn record(service: &str, second: u8, addresses: u8, endpoints: u16) -> Record {
        let frontends = (0..addresses).map(|last| {
            let vip = FrontendAddress::Vip([10, 96, second, last].into());
            Frontend::new(FrontendKind::ClusterIp, vip, 80)
        });
        let destinations = (0..endpoints).map(|number| {
            let [high, low] = number.to_be_bytes();
            Destination::new(SocketAddr::from(([10, 244, high, low], 8080)))
        });
        Record {
            frontends: frontends.collect(),
            destinations: destinations.collect(),
            ..Record::new(key(service))
        }
    }

    fn refused(ways: &Ways) -> Vec<&str> {
        let records = ways.refused.iter().map(|refused| refused.record());
        records.map(|key| &*key.service).collect()
    }

    #[test]
    fn the_largest_record_is_left_out_and_no_other_one() {
        let small = || record("small", 1, 1, 10);
        let facts = NodeFacts::default();
        let all = table(vec![
            small(),
            record("huge", 2, 60, 30_000),
            record("large", 3, 1, 9_000),
        ]);
        let ways = Ways::new(&all, &facts);
        assert_eq!(refused(&ways), ["huge"]);
        assert!(
            ways.refused[0].to_string().contains("ns/huge"),
            "{}",
            ways.refused[0]
        );
        let services = ways.ways.values().map(|way| &*way.record.key.service);
        assert_eq!(services.collect::<Vec<_>>(), ["small", "large"]);

        // Once it is smaller it has a place: followed or from scratch.
        let smaller = table(vec![
            small(),
            record("huge", 2, 1, 10),
            record("large", 3, 1, 9_000),
        ]);
        let mut followed = ways.clone();
        assert_eq!(followed.update(&all, &smaller, &facts), None);
        assert_eq!(refused(&Ways::new(&smaller, &facts)), Vec::<&str>::new());
        // And one that grows is noticed.
        let mut followed = Ways::new(&smaller, &facts);
        assert_eq!(followed.update(&smaller, &all, &facts), None);
    }

    #[test]
    fn the_size_is_that_of_the_ways_there_are() {
        let facts = NodeFacts::default();
        let before = table(vec![record("one", 1, 2, 10), record("two", 2, 1, 7)]);
        let after = table(vec![record("one", 1, 1, 3), record("three", 3, 1, 4)]);
        let mut ways = Ways::new(&before, &facts);
        assert_eq!(ways.size, Size([27, 0]));
        assert!(ways.update(&before, &after, &facts).is_some());
        assert_eq!(ways.size, Size([7, 0]));
        assert_eq!(ways, Ways::new(&after, &facts));
    }

    #[test]
    fn ranges_and_weights_count() {
        let mut record = record("one", 1, 1, 3);
        record.destinations[0].weight = 5;
        let range: IpNet = "192.0.2.0/24".parse().unwrap();
        record.frontends[0].source_ranges = vec![range];
        let ways = Ways::new(&table([record]), &NodeFacts::default());
        // At most 4,096 by weight, and one more for each that would have none.
        assert_eq!(ways.size, Size([4096 + 3 + 2, 0]));
    }
}
