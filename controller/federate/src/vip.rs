// SPDX-License-Identifier: Apache-2.0

//! Virtual addresses of imports in one importing cluster.
//!
//! The ServiceImports' `spec.ips` are the record of what is allocated: an allocator that starts knows
//! nothing, and reads them back. What it has is kept, but for an address outside the range, and for an
//! address of several imports, of which the oldest keeps it. A new one is the first free address from
//! a place on that the import's name determines, so that an import usually has the same address in
//! ranges of the same size. An address of an import that is gone is given to no other one for
//! [`HELD`], since clients and names may still know it.

mod range;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_model::Family;

pub use range::Range;

use crate::{Moment, stable};

/// The time for which the address of an import that is gone is given to no other one.
pub const HELD: Duration = Duration::from_mins(10);

/// The namespace and name of an import.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImportName {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl fmt::Display for ImportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An import that needs addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The import.
    pub name: ImportName,
    /// `metadata.creationTimestamp` of the ServiceImport, in seconds since 1970. An unknown one, as of
    /// an import that is not written yet, is later than all others.
    pub created: Option<i64>,
    /// The families that it needs an address of, in the order of its `ipFamilies`.
    pub families: Vec<Family>,
    /// Its present `spec.ips`.
    pub ips: Vec<IpAddr>,
}

impl Claim {
    fn present(&self, family: Family) -> Option<IpAddr> {
        let mut ips = self.ips.iter().copied();
        ips.find(|ip| Family::of(*ip) == family)
    }
}

/// Result of an allocation for an import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Its addresses, one of each family in the order of the claim; fewer if there is a problem
    /// [`VipProblem::NoRange`] or [`VipProblem::Full`].
    pub ips: Vec<IpAddr>,
    /// Reason why they are not what the import had, or not what it needs.
    pub problems: Vec<VipProblem>,
}

/// Reason why the addresses of an import are not what it had, or not what it needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum VipProblem {
    /// The present address is none of the cluster's range.
    #[error("{0} is outside the cluster's clusterSetIPs")]
    Foreign(IpAddr),
    /// An older import has the present address.
    #[error("{address} is the address of {holder}")]
    Taken {
        /// The address.
        address: IpAddr,
        /// The import that keeps it.
        holder: ImportName,
    },
    /// The cluster has no range of this family.
    #[error("no clusterSetIPs of family {0}")]
    NoRange(Family),
    /// No address of this family is left.
    #[error("no address of family {0} is left in clusterSetIPs")]
    Full(Family),
}

/// Allocates the addresses of one importing cluster.
#[derive(Debug, Clone, Default)]
pub struct Vips {
    ranges: BTreeMap<Family, Range>,
    /// The holders of all addresses after the last allocation.
    holders: BTreeMap<IpAddr, ImportName>,
    /// Addresses of imports that are gone: who had them, and since when they are free.
    freed: BTreeMap<IpAddr, (ImportName, Moment)>,
}

impl Vips {
    /// An allocator that has allocated nothing yet, with at most one range of each family.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = Range>) -> Self {
        let ranges = ranges.into_iter().map(|range| (range.family(), range));
        Self {
            ranges: ranges.collect(),
            ..Self::default()
        }
    }

    /// Other ranges. Addresses outside them are replaced by the next allocation.
    pub fn set_ranges(&mut self, ranges: impl IntoIterator<Item = Range>) {
        let ranges = ranges.into_iter().map(|range| (range.family(), range));
        self.ranges = ranges.collect();
    }

    /// The addresses of all imports. `claims` are all of them, not a part: what no claim has any more
    /// is free after [`HELD`].
    pub fn allocate(&mut self, claims: &[Claim], now: Moment) -> BTreeMap<ImportName, Allocation> {
        let mut by_age: Vec<&Claim> = claims.iter().collect();
        by_age.sort_by_key(|claim| (claim.created.is_none(), claim.created, &claim.name));
        let kept = self.kept(&by_age);
        self.free(&kept, now);
        self.holders = kept;
        let own: BTreeMap<(&ImportName, Family), IpAddr> = self.own(&by_age);
        let mut allocations = BTreeMap::new();
        for claim in by_age {
            let mut allocation = Allocation::default();
            for family in &claim.families {
                let kept = own.get(&(&claim.name, *family)).copied();
                self.one(claim, *family, kept, &mut allocation);
            }
            allocations.insert(claim.name.clone(), allocation);
        }
        allocations
    }

    /// The present addresses that are in a range and wanted, with the oldest import of each.
    fn kept(&self, by_age: &[&Claim]) -> BTreeMap<IpAddr, ImportName> {
        let mut kept = BTreeMap::new();
        for claim in by_age {
            for family in &claim.families {
                let present = claim.present(*family);
                let in_range = present.filter(|ip| self.is_in_range(*ip));
                if let Some(ip) = in_range {
                    kept.entry(ip).or_insert_with(|| claim.name.clone());
                }
            }
        }
        kept
    }

    fn is_in_range(&self, ip: IpAddr) -> bool {
        let range = self.ranges.get(&Family::of(ip));
        range.is_some_and(|range| range.contains(ip))
    }

    /// The kept addresses by import and family.
    fn own<'c>(&self, by_age: &[&'c Claim]) -> BTreeMap<(&'c ImportName, Family), IpAddr> {
        let mut own = BTreeMap::new();
        for claim in by_age {
            for family in &claim.families {
                if let Some(ip) = claim.present(*family)
                    && self.holders.get(&ip) == Some(&claim.name)
                {
                    own.insert((&claim.name, *family), ip);
                }
            }
        }
        own
    }

    /// Notes the addresses that nobody has any more, and forgets those that were free long enough.
    fn free(&mut self, kept: &BTreeMap<IpAddr, ImportName>, now: Moment) {
        for (ip, holder) in &self.holders {
            if !kept.contains_key(ip) {
                self.freed.entry(*ip).or_insert((holder.clone(), now));
            }
        }
        // A clock that was ahead noted times after `now`.
        for (_, since) in self.freed.values_mut() {
            *since = now.min(*since);
        }
        let ranges = &self.ranges;
        self.freed.retain(|ip, (_, since)| {
            let range = ranges.get(&Family::of(*ip));
            let is_in_range = range.is_some_and(|range| range.contains(*ip));
            is_in_range && !kept.contains_key(ip) && now.since(*since) < HELD
        });
    }

    fn one(
        &mut self,
        claim: &Claim,
        family: Family,
        kept: Option<IpAddr>,
        allocation: &mut Allocation,
    ) {
        if let Some(ip) = kept {
            allocation.ips.push(ip);
            return;
        }
        if let Some(present) = claim.present(family) {
            let problem = match self.holders.get(&present) {
                Some(holder) if self.is_in_range(present) => VipProblem::Taken {
                    address: present,
                    holder: holder.clone(),
                },
                _ => VipProblem::Foreign(present),
            };
            allocation.problems.push(problem);
        }
        let Some(range) = self.ranges.get(&family).copied() else {
            allocation.problems.push(VipProblem::NoRange(family));
            return;
        };
        match self.free_address(range, &claim.name) {
            Some(ip) => {
                self.freed.remove(&ip);
                self.holders.insert(ip, claim.name.clone());
                allocation.ips.push(ip);
            }
            None => allocation.problems.push(VipProblem::Full(family)),
        }
    }

    /// The first free address from the place of the import's name on. One that the import itself had
    /// is free for it at once.
    fn free_address(&self, range: Range, name: &ImportName) -> Option<IpAddr> {
        let is_free = |ip: &IpAddr| {
            let freed = self.freed.get(ip);
            !self.holders.contains_key(ip) && freed.is_none_or(|(holder, _)| holder == name)
        };
        let own = self.freed.iter().find(|(ip, (holder, _))| {
            holder == name && Family::of(**ip) == range.family() && is_free(ip)
        });
        if let Some((ip, _)) = own {
            return Some(*ip);
        }
        let first = stable::hash([
            b"virtual address",
            name.namespace.as_bytes(),
            name.name.as_bytes(),
        ]);
        // Of so many one is free, or all are taken.
        let most = u64::try_from(self.holders.len() + self.freed.len()).ok()?;
        let most = most.saturating_add(1).min(range.size());
        (0..most)
            .map(|step| range.nth(first.wrapping_rem(range.size()), step))
            .find(is_free)
    }

    /// The addresses that are held back now, for dumps.
    #[must_use]
    pub fn held(&self) -> BTreeSet<IpAddr> {
        self.freed.keys().copied().collect()
    }
}
