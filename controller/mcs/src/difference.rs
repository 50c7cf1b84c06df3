// SPDX-License-Identifier: Apache-2.0

//! The writes between what a cluster has and what it should have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{ObjectKey, ServiceExport, ServiceImport};
use portolan_federate::imports::ImportName;

use crate::condition::{are_there, of_import, with_conflict_of};
use crate::labels;
use crate::manifest::{self, Write, WriteKind};
use crate::wanted::{Wanted, WantedImport};

/// The most writes of one kind that are planned at once: others follow when these are done. A kind that cannot be
/// written holds up none of the others, and all three are as many as an edge is sent.
const MOST: usize = 333;

/// The members that have not sent their objects yet, and may still change what is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Awaited {
    /// Their ids.
    pub ids: BTreeSet<Arc<str>>,
    /// The names of the Services that they are known to export, as other clusters do.
    pub exports: BTreeSet<ImportName>,
}

impl Awaited {
    /// Returns `true` if an import that these clusters export may be other than it seems.
    #[must_use]
    pub fn concerns(&self, exporting: &BTreeSet<Arc<str>>) -> bool {
        !self.ids.is_disjoint(exporting)
    }

    /// The same by the status of a ServiceImport. Without a word on its clusters it may be of any.
    #[must_use]
    pub fn may_concern(&self, exporting: &BTreeSet<Arc<str>>) -> bool {
        self.concerns(exporting) || (exporting.is_empty() && !self.ids.is_empty())
    }
}

/// Observed objects of a cluster.
#[derive(Debug, Default)]
pub struct Observed<'o> {
    imports: BTreeMap<ImportName, &'o ServiceImport>,
    exports: BTreeMap<ImportName, &'o ServiceExport>,
}

impl<'o> Observed<'o> {
    /// The objects of one cluster.
    #[must_use]
    pub fn new(
        imports: impl Iterator<Item = &'o ServiceImport>,
        exports: impl Iterator<Item = &'o ServiceExport>,
    ) -> Self {
        let exports = exports.filter(|export| export.requested);
        Self {
            imports: imports.map(|import| (name(&import.key), import)).collect(),
            exports: exports.map(|export| (name(&export.key), export)).collect(),
        }
    }
}

fn name(key: &ObjectKey) -> ImportName {
    ImportName {
        namespace: Arc::clone(&key.namespace),
        name: Arc::clone(&key.name),
    }
}

/// The writes that make a cluster's objects as they should be, in their order.
#[must_use]
pub fn writes(wanted: &Wanted, observed: &Observed<'_>, awaited: &Awaited) -> Vec<Write> {
    let kinds = [
        statuses(wanted, observed, awaited),
        deletions(wanted, observed, awaited),
        imports(wanted, observed, awaited),
    ];
    let bounded = kinds.into_iter().flat_map(|writes| {
        // A name of another cluster becomes part of a path.
        let good = writes.into_iter();
        let good = good.filter(|write| labels::is_object(&write.target.name));
        good.take(MOST)
    });
    bounded.collect()
}

/// The imports that are not there, or not as they should be.
fn imports(wanted: &Wanted, observed: &Observed<'_>, awaited: &Awaited) -> Vec<Write> {
    let imports = wanted.imports.iter();
    let writes = imports.flat_map(|(name, import)| match observed.imports.get(name) {
        None => vec![manifest::create(name, import)],
        Some(found) => differences(name, import, found, awaited),
    });
    writes.collect()
}

/// Returns the writes of the status of exports. As long as members are awaited that export the Service too, a conflict
/// may be missing: what was said about conflicts stays.
fn statuses(wanted: &Wanted, observed: &Observed<'_>, awaited: &Awaited) -> Vec<Write> {
    let both = wanted.exports.iter().filter_map(|(name, conditions)| {
        let status = &observed.exports.get(name)?.status;
        let kept;
        let conditions = if awaited.exports.contains(name) {
            kept = with_conflict_of(conditions, &status.conditions);
            &kept
        } else {
            conditions
        };
        let differs = !are_there(conditions, &status.conditions, status.generation);
        differs.then(|| {
            manifest::export_status(name, conditions, status.generation, &status.conditions)
        })
    });
    both.collect()
}

/// The imports of ours that nobody exports any more.
fn deletions(wanted: &Wanted, observed: &Observed<'_>, awaited: &Awaited) -> Vec<Write> {
    let gone = observed.imports.iter().filter_map(|(name, found)| {
        let own = found.own.as_deref()?;
        let is_wanted = wanted.imports.contains_key(name);
        let may_be_awaited = awaited.may_concern(&own.clusters);
        let is_known = !found.uid.is_empty();
        (is_known && !is_wanted && !may_be_awaited)
            .then(|| manifest::delete(WriteKind::ServiceImport, name, &found.uid))
    });
    gone.collect()
}

/// Returns the writes for the differences of an import. One of somebody else stays as it is.
fn differences(
    name: &ImportName,
    wanted: &WantedImport,
    found: &ServiceImport,
    awaited: &Awaited,
) -> Vec<Write> {
    let Some(own) = found.own.as_deref() else {
        return Vec::new();
    };
    if awaited.concerns(&own.clusters) {
        return Vec::new();
    }
    let is_same = own.winner == wanted.winner
        && own.labels == wanted.labels
        && own.annotations == wanted.annotations
        && own.spec.as_ref() == Some(&wanted.spec);
    let conditions = of_import(&wanted.conditions, &own.conditions);
    let has_status = own.clusters == wanted.clusters
        && are_there(&conditions, &own.conditions, found.generation);
    let content = (!is_same).then(|| manifest::apply(name, wanted, &found.uid));
    // A change of the content is another generation, which the next look sees.
    let status = (is_same && !has_status).then(|| {
        let of = (&*found.uid, found.generation);
        manifest::apply_status(name, wanted, &conditions, of, &own.conditions)
    });
    content.into_iter().chain(status).collect()
}

#[cfg(test)]
mod tests;
