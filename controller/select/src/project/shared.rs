// SPDX-License-Identifier: Apache-2.0

//! The cluster-wide list, and the zones that use only a part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{FieldProblem, Reason};
use portolan_model::{Destination, Family, ZoneMask};

use super::candidates::Candidate;

/// The cluster-wide list as it grows, family by family.
#[derive(Debug, Default)]
pub(super) struct Shared<'a> {
    destinations: Vec<Destination>,
    /// For each destination the zones that use it, or `None` if its family has no zone hints.
    hints: Vec<Option<&'a [Arc<str>]>>,
    /// The zones that some family narrows down.
    zones: BTreeSet<Arc<str>>,
    /// For each family that has zone hints, the zones that it narrows down.
    narrowed: BTreeMap<Family, BTreeSet<Arc<str>>>,
}

impl<'a> Shared<'a> {
    /// Adds the endpoints of one family; call with each family once, IPv4 first.
    pub(super) fn add(&mut self, candidates: &[Candidate<'a>]) {
        let ready = || candidates.iter().filter(|c| c.endpoint.ready);
        let count = ready().count();
        if count == 0 {
            for candidate in candidates.iter().filter(|c| c.still_serves()) {
                self.push(candidate.destination, None);
            }
            return;
        }
        // Records stay: no room is left over.
        self.destinations.reserve_exact(count);
        self.hints.reserve_exact(count);
        // Without a hint on each ready endpoint, hints do not count (KEP-2433's safety rule).
        let hinted = ready().all(|c| c.endpoint.zone_hints.is_some());
        for candidate in ready() {
            let zones = candidate.endpoint.zone_hints;
            self.push(candidate.destination, zones.filter(|_| hinted));
        }
    }

    /// Adds the endpoints of one family, all of them ready and none with a hint.
    pub(super) fn add_ready(&mut self, destinations: impl ExactSizeIterator<Item = Destination>) {
        self.destinations.reserve_exact(destinations.len());
        self.hints.reserve_exact(destinations.len());
        destinations.for_each(|destination| self.push(destination, None));
    }

    fn push(&mut self, destination: Destination, zones: Option<&'a [Arc<str>]>) {
        // The empty zone is no zone: a node without a zone uses the whole list.
        for zone in zones.into_iter().flatten().filter(|zone| !zone.is_empty()) {
            self.zones.insert(Arc::clone(zone));
            let family = Family::of(destination.address.ip());
            self.narrowed
                .entry(family)
                .or_default()
                .insert(Arc::clone(zone));
        }
        self.destinations.push(destination);
        self.hints.push(zones);
    }

    /// The sorted list, and the zones that use only a part of it.
    pub(super) fn finish(
        self,
        problems: &mut Vec<FieldProblem>,
    ) -> (Vec<Destination>, Option<ZoneMask>) {
        if self.zones.is_empty() {
            return (self.destinations, None);
        }
        if self.zones.len() > ZoneMask::MAX_ZONES {
            problems.push(FieldProblem::new(
                "endpoints[].hints.forZones",
                Reason::TooMany,
                format!(
                    "{} zones, at most {} can be told apart: hints are ignored",
                    self.zones.len(),
                    ZoneMask::MAX_ZONES
                ),
            ));
            return (self.destinations, None);
        }
        let zones: Vec<_> = self.zones.into_iter().collect();
        let uses = |zone: &Arc<str>, destination: &Destination, hints: Option<&[Arc<str>]>| {
            let narrowed = self.narrowed.get(&Family::of(destination.address.ip()));
            // A zone that this family does not narrow down uses all of the family's destinations.
            !narrowed.is_some_and(|zones| zones.contains(zone))
                || hints.is_some_and(|hints| hints.contains(zone))
        };
        let mask = |(destination, hints): (&Destination, &Option<&[Arc<str>]>)| {
            zones.iter().enumerate().fold(0, |mask, (bit, zone)| {
                mask | u64::from(uses(zone, destination, *hints)) << bit
            })
        };
        let masks = self
            .destinations
            .iter()
            .zip(&self.hints)
            .map(mask)
            .collect();
        (self.destinations, Some(ZoneMask { zones, masks }))
    }
}
