// SPDX-License-Identifier: Apache-2.0

//! Count of the objects that other programs changed.
//!
//! The whole observed state is forgotten before the kernel is read again, because both together would double the
//! memory. Kept is the table that it belonged to: the steps that lead to that table from the state that is read are the
//! changes of others, but for those that were refused or wait.

use std::sync::Arc;

use portolan_dataplane::Dataplane;
use portolan_model::NodeTable;
use portolan_plan::{KernelState, NodeFacts, Step};

use crate::{Reconciler, Surplus};

/// A state of the kernel that was forgotten.
#[derive(Debug)]
pub(crate) struct Forgotten {
    table: Arc<NodeTable>,
    facts: NodeFacts,
    /// Number of objects of the steps from the state to that of the table: refused ones and ones that wait.
    lacked: usize,
}

/// Number of the objects of a reconciliation that others had changed.
pub(crate) enum ForeignChanges {
    Count(usize),
    /// All of the reconciliation but a number.
    AllBut(usize),
}

impl ForeignChanges {
    /// The number, for a reconciliation of so many objects.
    pub(crate) fn of(&self, objects: usize) -> usize {
        match self {
            Self::Count(count) => *count,
            Self::AllBut(lacked) => objects.saturating_sub(*lacked),
        }
    }
}

pub(crate) fn count_objects(steps: &[Step]) -> usize {
    steps.iter().map(Step::objects).sum()
}

impl<D: Dataplane> Reconciler<D> {
    /// Summary of a state that is about to be forgotten; none before the first reconciliation.
    pub(crate) fn summary(&self, observed: &KernelState) -> Option<Forgotten> {
        // Facts that were read since belong to no state yet.
        let settled = self.settled.as_ref().map(|(_, facts)| facts);
        Some(Forgotten {
            table: Arc::clone(self.last.as_ref()?),
            facts: settled.or(self.facts.as_ref())?.clone(),
            lacked: self.lacked(observed),
        })
    }

    fn lacked(&self, observed: &KernelState) -> usize {
        if self.settled.is_some() && self.failed.is_empty() && !self.has_put_off() {
            return 0;
        }
        count_objects(&self.plan_all(observed, Surplus::Delete))
    }

    /// The objects that others changed since the state was forgotten.
    pub(crate) fn foreign_changes(
        &mut self,
        table: &Arc<NodeTable>,
        facts: &NodeFacts,
        observed: &KernelState,
    ) -> ForeignChanges {
        let Some(forgotten) = self.forgotten.take() else {
            return ForeignChanges::Count(0);
        };
        if forgotten.table == *table && forgotten.facts == *facts {
            return ForeignChanges::AllBut(forgotten.lacked);
        }
        // The steps to the new table are its own changes too.
        let (table, facts) = (&forgotten.table, &forgotten.facts);
        let before = self.steps(table, facts, observed, Surplus::Delete);
        let objects = count_objects(&before.steps);
        ForeignChanges::Count(objects.saturating_sub(forgotten.lacked))
    }
}
