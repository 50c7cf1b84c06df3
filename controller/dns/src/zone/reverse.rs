// SPDX-License-Identifier: Apache-2.0

//! The names of each address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::records::Owner;

/// The names of one address. Names are unique in the zone, so sets are enough.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pointers {
    service: BTreeSet<String>,
    endpoint: BTreeSet<String>,
}

impl Pointers {
    /// The names to answer with: an address that is a Service's own has no endpoint names.
    pub(super) fn visible(&self) -> &BTreeSet<String> {
        if self.service.is_empty() {
            &self.endpoint
        } else {
            &self.service
        }
    }

    fn of(&mut self, owner: Owner) -> &mut BTreeSet<String> {
        match owner {
            Owner::Service => &mut self.service,
            Owner::Endpoint => &mut self.endpoint,
        }
    }
}

/// One PTR record of a Service: the address, whose it is, and the name.
type Pointer = (IpAddr, Owner, String);

#[derive(Debug, Clone, Default)]
pub(super) struct Reverse {
    /// In order of addresses, for zone files.
    addresses: BTreeMap<IpAddr, Pointers>,
}

impl Reverse {
    pub(super) fn get(&self, address: IpAddr) -> Option<&Pointers> {
        self.addresses.get(&address)
    }

    /// The addresses in a range, in order.
    pub(super) fn range(&self, range: RangeInclusive<IpAddr>) -> impl Iterator<Item = IpAddr> {
        self.addresses.range(range).map(|(address, _)| *address)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &Pointers)> {
        self.addresses
            .iter()
            .map(|(address, names)| (*address, names))
    }

    /// Replaces the PTR records of one Service. Returns the addresses whose answer changed.
    pub(super) fn replace(&mut self, old: &[Pointer], new: &[Pointer]) -> BTreeSet<IpAddr> {
        let old: BTreeSet<_> = old.iter().collect();
        let new: BTreeSet<_> = new.iter().collect();
        let touched = old.symmetric_difference(&new).map(|(address, ..)| *address);
        let before: BTreeMap<_, _> = touched.map(|at| (at, self.visible(at))).collect();
        for (address, owner, name) in old.difference(&new) {
            let Some(names) = self.addresses.get_mut(address) else {
                continue;
            };
            names.of(*owner).remove(name);
            if *names == Pointers::default() {
                self.addresses.remove(address);
            }
        }
        for (address, owner, name) in new.difference(&old) {
            let names = self.addresses.entry(*address).or_default();
            names.of(*owner).insert(name.clone());
        }
        let changed = before
            .into_iter()
            .filter(|(at, names)| self.visible(*at) != *names);
        changed.map(|(at, _)| at).collect()
    }

    fn visible(&self, address: IpAddr) -> BTreeSet<String> {
        self.get(address)
            .map(|names| names.visible().clone())
            .unwrap_or_default()
    }
}
