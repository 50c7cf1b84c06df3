// SPDX-License-Identifier: Apache-2.0

//! Losses between two versions of a table, for guards against deletions that are not meant.

use std::collections::{BTreeSet, HashSet};

use crate::{FrontendAddress, Protocol, Record, RecordKey};

/// The size of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableSize {
    /// Records.
    pub records: usize,
    /// Their endpoints.
    pub endpoints: usize,
}

impl TableSize {
    /// Adds a record.
    pub fn add(&mut self, record: &Record) {
        self.records += 1;
        self.endpoints += record.destinations.len();
    }
}

/// The part of the table in force that a new table lacks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loss {
    /// The size of the records that are lost.
    pub lost: TableSize,
    /// The size of the table in force.
    pub of: TableSize,
}

impl Record {
    /// Returns `true` if the record is lost in a new table: deleted, or without endpoints where it
    /// had some. A record that keeps some of its endpoints is not, since those serve its
    /// connections.
    #[must_use]
    pub fn is_lost(&self, new: Option<&Self>) -> bool {
        new.is_none_or(|new| self.has_endpoints() && !new.has_endpoints())
    }

    fn has_endpoints(&self) -> bool {
        !self.destinations.is_empty() || !self.available.is_empty()
    }

    fn addresses(&self) -> impl Iterator<Item = (FrontendAddress, u16, Protocol)> {
        let protocol = self.key.protocol;
        let frontends = self.frontends.iter();
        frontends.map(move |frontend| (frontend.address, frontend.port, protocol))
    }
}

/// Those of the lost records with an address that one of the other records has: an address belongs to
/// one Service, so these records cannot stay in force.
#[must_use]
pub fn replaced<'a>(
    lost: impl Iterator<Item = &'a Record>,
    others: impl Iterator<Item = &'a Record>,
) -> BTreeSet<RecordKey> {
    let taken: HashSet<_> = others.flat_map(Record::addresses).collect();
    let is_replaced = |record: &&Record| record.addresses().any(|a| taken.contains(&a));
    lost.filter(is_replaced)
        .map(|record| record.key.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Destination, Families, Family, Frontend, FrontendKind};

    fn record(service: &str, address: u8, endpoints: u8) -> Record {
        let key = RecordKey {
            cluster: "".into(),
            namespace: "ns".into(),
            service: service.into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        let vip = FrontendAddress::Vip([10, 96, 0, address].into());
        let endpoints = (0..endpoints).map(|last| ([10, 244, 0, last], 80).into());
        Record {
            frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
            destinations: endpoints.map(Destination::new).collect(),
            ..Record::new(key)
        }
    }

    #[test]
    fn a_record_is_lost_if_it_goes_or_its_last_endpoint_does() {
        let old = record("a", 1, 3);
        assert!(old.is_lost(None));
        assert!(old.is_lost(Some(&record("a", 1, 0))));
        assert!(!old.is_lost(Some(&record("a", 1, 1))));
        assert!(!record("a", 1, 0).is_lost(Some(&record("a", 1, 0))));
        // Local endpoints are in the nodes' own lists.
        let mut available = Families::NONE;
        available.insert(Family::V4);
        let local = Record {
            available,
            ..record("a", 1, 0)
        };
        assert!(local.is_lost(Some(&record("a", 1, 0))));
        assert!(!old.is_lost(Some(&local)));
    }

    #[test]
    fn a_lost_record_is_replaced_by_the_new_owner_of_its_address() {
        let lost = [record("a", 1, 1), record("b", 2, 1)];
        let others = [record("c", 2, 1), record("d", 3, 1)];
        let replaced = replaced(lost.iter(), others.iter());
        assert_eq!(replaced, BTreeSet::from([lost[1].key.clone()]));
    }
}
