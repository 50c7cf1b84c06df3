// SPDX-License-Identifier: Apache-2.0

//! Walks over whole zones, piece by piece: a change waits for one piece at most, and so do the answers behind it.
//!
//! A walk sees each subject as it is at a time of its own. One that changes meanwhile is told to subscribers, who come
//! back to it.

use std::ops::Deref;
use std::sync::RwLockReadGuard;

use hickory_proto::rr::Name;

use crate::input::Subject;
use crate::shared::SharedZone;
use crate::zone::Zone;

/// The subjects of a piece: microseconds each.
const PIECE: usize = 64;

/// A zone that is read piece by piece.
pub trait ReadZone {
    /// Access for one piece.
    type Guard<'a>: Deref<Target = Zone>
    where
        Self: 'a;

    /// The zone as it is now, for one piece.
    fn guard(&self) -> Self::Guard<'_>;
}

impl ReadZone for Zone {
    type Guard<'a> = &'a Self;

    fn guard(&self) -> &Self {
        self
    }
}

impl ReadZone for SharedZone {
    type Guard<'a> = RwLockReadGuard<'a, Zone>;

    fn guard(&self) -> RwLockReadGuard<'_, Zone> {
        self.read()
    }
}

/// All Namespaces, Services and Pods: Namespace by Namespace, sorted.
pub(crate) fn objects(zone: &impl ReadZone) -> impl Iterator<Item = Subject> {
    let mut namespaces = zone.guard().known_namespaces();
    namespaces.sort_unstable();
    namespaces.into_iter().flat_map(|namespace| {
        let mut subjects = zone.guard().objects_in(&namespace);
        subjects.sort_unstable();
        subjects
    })
}

/// The addresses with names in a zone of the reverse tree, sorted.
pub(crate) fn addresses(zone: &impl ReadZone, origin: &Name) -> impl Iterator<Item = Subject> {
    let addresses = zone.guard().addresses_in(origin);
    addresses.into_iter().map(Subject::Address)
}

/// The results of `of` for each subject.
pub(crate) fn in_pieces<T, I>(
    zone: &impl ReadZone,
    mut subjects: impl Iterator<Item = Subject>,
    of: impl Fn(&Zone, &Subject) -> I,
) -> impl Iterator<Item = T>
where
    I: IntoIterator<Item = T>,
{
    let pieces = std::iter::from_fn(move || {
        // Before the guard is taken: the subjects may need one of their own.
        let piece: Vec<_> = subjects.by_ref().take(PIECE).collect();
        let zone = (!piece.is_empty()).then(|| zone.guard())?;
        let made = piece.iter().flat_map(|subject| of(&zone, subject));
        Some(made.collect::<Vec<_>>())
    });
    pieces.flatten()
}
