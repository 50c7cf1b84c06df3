// SPDX-License-Identifier: Apache-2.0

//! Catalog and projector as one: changes in, table deltas out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{Catalog, DirtySet, FieldProblem, ObjectChange, ObjectKey, ObjectRef};
use portolan_model::NodeKey;

use crate::explain::explain;
use crate::{Explanation, Inquiry, NoAnswer, Projector, SelectConfig, TableDelta};

/// The pure part between a source and the publisher of tables. Owned by one task.
#[derive(Debug, Default)]
pub struct Pipeline {
    catalog: Catalog,
    projector: Projector,
    dirty: DirtySet,
    problems_changed: bool,
}

/// An audit, part by part: incrementally updated tables must equal tables computed from scratch. A
/// part at a time, so that no change waits long.
#[derive(Debug)]
pub struct Audit {
    services: BTreeSet<ObjectKey>,
    nodes: BTreeSet<NodeKey>,
}

impl Audit {
    /// Whether the audit is complete.
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

    /// Applies a change. The tables follow with the next [`flush`](Self::flush).
    pub fn apply(&mut self, change: ObjectChange) {
        self.catalog.apply(change, &mut self.dirty);
    }

    /// Whether there is anything to flush.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether the flush is urgent: see [`DirtySet::urgent`].
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.dirty.urgent
    }

    /// The effect of all changes since the last flush on the tables: one atomic transition.
    pub fn flush(&mut self) -> TableDelta {
        let dirty = std::mem::take(&mut self.dirty);
        self.problems_changed |= dirty.problems;
        self.project(&dirty)
    }

    /// The trigger times of each cluster's changes since the last flush, in milliseconds of Unix time;
    /// called before the next flush.
    pub fn take_triggers(&mut self) -> BTreeMap<Arc<str>, Vec<u64>> {
        let mut times: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (service, of_service) in std::mem::take(&mut self.dirty.triggers) {
            times.entry(service.cluster).or_default().extend(of_service);
        }
        times
    }

    fn project(&mut self, dirty: &DirtySet) -> TableDelta {
        let delta = self.projector.update(&self.catalog, dirty);
        self.problems_changed |= self.projector.take_problems_changed();
        delta
    }

    /// Begins an audit: see [`Audit`].
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
            // A flush finds the Services that changed weights affect.
            return TableDelta::default();
        }
        let mut again = DirtySet::default();
        for _ in 0..limit {
            // Dirty Services differ for a good reason.
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

    /// The problems of each object, from conversion and projection, if they have changed since the
    /// last call.
    pub fn changed_problems(&mut self) -> Option<BTreeMap<ObjectRef, Vec<FieldProblem>>> {
        std::mem::take(&mut self.problems_changed).then(|| self.problems())
    }

    /// The problems of each object, from conversion and projection.
    #[must_use]
    pub fn problems(&self) -> BTreeMap<ObjectRef, Vec<FieldProblem>> {
        let mut problems = self.catalog.problems().clone();
        for (object, found) in self.projector.problems() {
            problems
                .entry(object.clone())
                .or_default()
                .extend(found.iter().cloned());
        }
        problems
    }

    /// Explains the destinations of connections to an address that arrive on a node, by the objects
    /// as they are now, published or not.
    ///
    /// # Errors If the node does not exist, or no Service has the address.
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
