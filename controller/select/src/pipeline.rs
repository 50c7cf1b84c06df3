//! Catalog and projector as one: changes in, table deltas out.

use std::collections::BTreeMap;

use portolan_catalog::{Catalog, Change, DirtySet, ObjectRef, Problem};

use crate::{Projector, SelectConfig, TableDelta};

/// The pure middle between a source and whoever publishes tables. One task owns it.
#[derive(Debug, Default)]
pub struct Pipeline {
    catalog: Catalog,
    projector: Projector,
    dirty: DirtySet,
}

impl Pipeline {
    /// An empty one.
    #[must_use]
    pub fn new(config: SelectConfig) -> Self {
        Self {
            projector: Projector::new(config),
            ..Self::default()
        }
    }

    /// Takes a change in. Nothing comes of it before the next [`flush`](Self::flush).
    pub fn apply(&mut self, change: Change) {
        self.catalog.apply(change, &mut self.dirty);
    }

    /// Whether a flush would have to look at anything.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// What the changes since the last flush changed in the tables: one atomic transition.
    pub fn flush(&mut self) -> TableDelta {
        self.projector
            .update(&self.catalog, &std::mem::take(&mut self.dirty))
    }

    /// What is wrong with which object: found while reading it, or while projecting it.
    #[must_use]
    pub fn problems(&self) -> BTreeMap<ObjectRef, Vec<Problem>> {
        let mut problems = self.catalog.problems().clone();
        for (object, found) in self.projector.problems() {
            problems
                .entry(object.clone())
                .or_default()
                .extend(found.iter().cloned());
        }
        problems
    }

    /// The objects.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }
}
