// SPDX-License-Identifier: Apache-2.0

//! The deletion guard of files and directories.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{Kind, ObjectRef};

use super::parse::FileEntry;
use crate::HeldDeletions;
use crate::deletions::{GuardConfig, Verdict};
use crate::estate::Seat;
use crate::held::{KindGuard, facts};
use crate::objects::{Converted, Names};

/// Pods in files have weights only.
const KINDS: [Kind; 5] = [
    Kind::Service,
    Kind::EndpointSlice,
    Kind::Node,
    Kind::Namespace,
    Kind::ServiceExport,
];

/// The guards of all kinds that files have. A reading of the files is a listing, and a sure one.
#[derive(Debug)]
pub(super) struct Guards {
    guards: BTreeMap<Kind, KindGuard<ObjectRef>>,
    /// The result of the last reading; at first that of the source before.
    in_force: BTreeMap<ObjectRef, FileEntry>,
    holds: Arc<HeldDeletions>,
    seat: Seat,
}

impl Drop for Guards {
    fn drop(&mut self) {
        let in_force = std::mem::take(&mut self.in_force);
        self.holds.estate().leave(&self.seat, in_force);
    }
}

impl Guards {
    pub(super) fn new(cluster: &Arc<str>, config: GuardConfig, holds: &Arc<HeldDeletions>) -> Self {
        let guard = |kind| KindGuard::new(kind, Arc::clone(cluster), config, Arc::clone(holds));
        let (seat, in_force) = holds.estate().take(cluster, None);
        Self {
            guards: KINDS.map(|kind| (kind, guard(kind))).into(),
            in_force: in_force.unwrap_or_default(),
            holds: Arc::clone(holds),
            seat,
        }
    }

    /// Returns `true` if a held loss was released.
    pub(super) fn look(&mut self) -> bool {
        let mut is_news = false;
        for guard in self.guards.values_mut() {
            is_news |= !guard.look().is_empty();
        }
        is_news
    }

    /// The withheld objects of a reading, as they were before.
    pub(super) fn judge<'e>(
        &mut self,
        entries: impl Iterator<Item = (&'e ObjectRef, &'e FileEntry)>,
    ) -> BTreeMap<ObjectRef, FileEntry> {
        let mut withheld = BTreeSet::new();
        let mut now = BTreeMap::new();
        self.guards.values_mut().for_each(KindGuard::begin);
        for (object, entry) in entries.filter(|(_, entry)| is_there(entry)) {
            now.insert(object.clone(), entry.clone());
            let Some(guard) = self.guards.get_mut(&object.kind) else {
                continue;
            };
            let facts = facts(&entry.converted, Some(&entry.names));
            let told = guard.listed(object.key.clone(), facts, object.clone());
            if told.is_none() {
                withheld.insert(object.clone());
            }
        }
        for (kind, guard) in &mut self.guards {
            let of_kind = |key| ObjectRef { kind: *kind, key };
            let verdict = guard.complete(true, |key| of_kind(key.clone()));
            if let Verdict::Settled { told, kept } = verdict {
                told.iter().for_each(|object| _ = withheld.remove(object));
                withheld.extend(kept.into_iter().map(of_kind));
            }
        }
        let before =
            |object: ObjectRef| Some((object.clone(), self.in_force.get(&object)?.clone()));
        let kept: BTreeMap<_, _> = withheld.into_iter().filter_map(before).collect();
        now.extend(kept.clone());
        self.in_force = now;
        kept
    }
}

fn is_there(entry: &FileEntry) -> bool {
    !matches!(*entry.converted, Converted::NotOurs(_)) || !matches!(*entry.names, Names::None)
}
