//! Catalog and projector as one: changes in, table deltas out.

use std::collections::{BTreeMap, BTreeSet};

use portolan_catalog::{Catalog, Change, DirtySet, ObjectKey, ObjectRef, Problem};
use portolan_model::NodeKey;

use crate::explain::explain;
use crate::{Explanation, Inquiry, NoAnswer, Projector, SelectConfig, TableDelta};

/// The pure middle between a source and whoever publishes tables. One task owns it.
#[derive(Debug, Default)]
pub struct Pipeline {
    catalog: Catalog,
    projector: Projector,
    dirty: DirtySet,
    problems_changed: bool,
}

/// A look at everything, part by part: tables that are kept up to date change by change must be what
/// a computation from scratch makes of the catalog. A part at a time, so that no change waits long.
#[derive(Debug)]
pub struct Audit {
    services: BTreeSet<ObjectKey>,
    nodes: BTreeSet<NodeKey>,
}

impl Audit {
    /// Whether everything has been looked at.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.services.is_empty() && self.nodes.is_empty()
    }
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

    /// Whether what a flush would look at cannot wait long: see [`DirtySet::urgent`].
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.dirty.urgent
    }

    /// What the changes since the last flush changed in the tables: one atomic transition.
    pub fn flush(&mut self) -> TableDelta {
        let dirty = std::mem::take(&mut self.dirty);
        self.problems_changed |= dirty.problems;
        self.project(&dirty)
    }

    /// What triggered the changes since the last flush, in milliseconds of Unix time; to be taken
    /// before that.
    pub fn take_triggers(&mut self) -> Vec<u64> {
        let triggers = std::mem::take(&mut self.dirty.triggers);
        triggers.into_values().flatten().collect()
    }

    fn project(&mut self, dirty: &DirtySet) -> TableDelta {
        let delta = self.projector.update(&self.catalog, dirty);
        self.problems_changed |= self.projector.take_problems_changed();
        delta
    }

    /// A look at everything: see [`Audit`].
    #[must_use]
    pub fn audit(&self) -> Audit {
        let mut services: BTreeSet<_> = self.catalog.services().collect();
        services.extend(self.projector.services().cloned());
        let mut nodes: BTreeSet<_> = self.catalog.nodes().collect();
        nodes.extend(self.projector.nodes().cloned());
        Audit { services, nodes }
    }

    /// Computes the next part of an audit from scratch, of at most `limit` Services and nodes. The
    /// result is where the tables diverge from that, and repairs them; it should be empty.
    pub fn continue_audit(&mut self, audit: &mut Audit, limit: usize) -> TableDelta {
        if !self.dirty.node_weights.is_empty() || !self.dirty.pod_weights.is_empty() {
            // Which Services these weigh on is only found out by a flush.
            return TableDelta::default();
        }
        let mut again = DirtySet::default();
        for _ in 0..limit {
            // What is dirty is different for a good reason.
            if let Some(service) = audit.services.pop_first() {
                if !self.dirty.services.contains(&service) {
                    again.services.insert(service);
                }
            } else if let Some(node) = audit.nodes.pop_first()
                && !self.dirty.nodes.contains(&node)
            {
                again.nodes.insert(node);
            }
        }
        self.project(&again)
    }

    /// What is wrong with which object, found while reading it or while projecting it, if that has
    /// changed since it was last asked.
    pub fn changed_problems(&mut self) -> Option<BTreeMap<ObjectRef, Vec<Problem>>> {
        std::mem::take(&mut self.problems_changed).then(|| self.problems())
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

    /// Where connections to an address go that come in on a node, and why nowhere else; by the
    /// objects as they are now, published or not.
    ///
    /// # Errors
    /// If there is no such node, or no Service has the address.
    pub fn explain(&self, inquiry: &Inquiry) -> Result<Explanation, NoAnswer> {
        explain(&self.catalog, self.projector.config(), inquiry)
    }

    /// The objects.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }
}

#[cfg(test)]
mod tests;
