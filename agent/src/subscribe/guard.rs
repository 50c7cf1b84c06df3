// SPDX-License-Identifier: Apache-2.0

//! The deletion guard of one node's table: additions and changes apply, deletions may be withheld.
//!
//! The Director of the host counts as one record. The loss of it alone is doubted in the first table of a stream: a
//! controller of an earlier version sends none, and two directors on standby that lose theirs would both be active.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use portolan_model::{Loss, NodeTable, RecordKey, replaced};
use portolan_subscription::{DeletionGuard, GuardConfig};

/// Derives the table in force from the source's table and the withheld records.
#[derive(Debug)]
pub(super) struct TableGuard {
    pub(super) guard: DeletionGuard,
    /// The newest table of the source.
    latest: Arc<NodeTable>,
    /// The same, with the withheld records; `None` before the first table.
    in_force: Option<Arc<NodeTable>>,
    withheld: BTreeSet<RecordKey>,
    /// True if the deletion of the Director is withheld.
    withholds_director: bool,
}

impl TableGuard {
    pub(super) fn new(config: GuardConfig) -> Self {
        Self {
            guard: DeletionGuard::new(config),
            latest: Arc::default(),
            in_force: None,
            withheld: BTreeSet::new(),
            withholds_director: false,
        }
    }

    /// Continues with the table in force of an earlier run, and the source's table at that time.
    pub(super) fn restore(
        &mut self,
        position: (u64, u64),
        latest: Arc<NodeTable>,
        in_force: Arc<NodeTable>,
    ) {
        self.withheld = in_force.changed_since(&latest);
        self.withholds_director = loses_director(&in_force, &latest);
        if !self.withheld.is_empty() || self.withholds_director {
            let mut loss = loss_of(&in_force, self.withheld.iter());
            add_director(&mut loss, self.withholds_director);
            self.guard.restore(position.0, position.1, loss);
        }
        self.latest = latest;
        self.in_force = Some(in_force);
    }

    /// Takes a table of the source, with its epoch and revision. Returns the table in force.
    pub(super) fn judge(
        &mut self,
        position: (u64, u64),
        table: &Arc<NodeTable>,
        now: Instant,
    ) -> Arc<NodeTable> {
        self.latest = Arc::clone(table);
        let before = self.in_force.take().unwrap_or_default();
        let mut lost: BTreeSet<RecordKey> = if self.guard.is_first() {
            let keys = before.records.keys();
            keys.filter(|key| is_lost(key, &before, table))
                .cloned()
                .collect()
        } else {
            let withheld = std::mem::take(&mut self.withheld);
            let keys = withheld.into_iter();
            keys.filter(|key| is_lost(key, &before, table)).collect()
        };
        let mut loss = Loss::default();
        if !lost.is_empty() {
            let claimed = claimed(&before, &lost, table);
            lost.retain(|key| !claimed.contains(key));
            loss = loss_of(&before, lost.iter());
        }
        let is_compared = self.guard.is_first() || self.withholds_director;
        let loses_director = is_compared && loses_director(&before, table);
        if loses_director && lost.is_empty() {
            loss = loss_of(&before, std::iter::empty());
        }
        add_director(&mut loss, loses_director);
        let is_withheld =
            self.guard
                .judge_doubting(position.0, position.1, loss, loses_director, now);
        self.withheld = if is_withheld { lost } else { BTreeSet::new() };
        self.withholds_director = is_withheld && loses_director;
        let in_force = self.compose(&before);
        self.in_force = Some(Arc::clone(&in_force));
        in_force
    }

    /// Releases all withheld records. Returns the table in force.
    pub(super) fn release(&mut self) -> Arc<NodeTable> {
        self.withheld.clear();
        self.withholds_director = false;
        self.in_force = Some(Arc::clone(&self.latest));
        Arc::clone(&self.latest)
    }

    /// The table in force, if records are withheld.
    pub(super) fn with_withheld(&self) -> Option<Arc<NodeTable>> {
        let withholds = !self.withheld.is_empty() || self.withholds_director;
        self.in_force.clone().filter(|_| withholds)
    }

    /// Adds the withheld records to the newest table, with their values in another one.
    fn compose(&self, before: &NodeTable) -> Arc<NodeTable> {
        if self.withheld.is_empty() && !self.withholds_director {
            return Arc::clone(&self.latest);
        }
        let mut table = NodeTable::clone(&self.latest);
        for key in &self.withheld {
            if let Some(record) = before.records.get(key) {
                table.records.insert(key.clone(), Arc::clone(record));
            }
            match before.lists.get(key) {
                Some(overlay) => table.lists.insert(key.clone(), Arc::clone(overlay)),
                None => table.lists.remove(key),
            };
        }
        if self.withholds_director {
            table.node.director.clone_from(&before.node.director);
        }
        Arc::new(table)
    }
}

fn loses_director(before: &NodeTable, after: &NodeTable) -> bool {
    before.node.director.is_some() && after.node.director.is_none()
}

fn add_director(loss: &mut Loss, is_lost: bool) {
    if is_lost {
        loss.lost.records += 1;
        loss.of.records += 1;
    }
}

fn loss_of<'a>(of: &NodeTable, lost: impl Iterator<Item = &'a RecordKey>) -> Loss {
    let mut loss = Loss::default();
    for record in of.records.values() {
        loss.of.add(record);
    }
    for record in lost.filter_map(|key| of.records.get(key)) {
        loss.lost.add(record);
    }
    loss
}

/// Returns `true` if a record is lost from one table to the next.
fn is_lost(key: &RecordKey, before: &NodeTable, after: &NodeTable) -> bool {
    let after = after.records.get(key);
    let before = before.records.get(key);
    before.is_some_and(|record| record.is_lost(after.map(Arc::as_ref)))
}

/// The lost records whose address another record has by now. They are not withheld.
fn claimed(
    before: &NodeTable,
    lost: &BTreeSet<RecordKey>,
    after: &NodeTable,
) -> BTreeSet<RecordKey> {
    let changed = after.changed_since(before);
    let others = changed.iter().filter(|key| !lost.contains(*key));
    let others = others.filter_map(|key| after.records.get(key));
    let lost = lost.iter().filter_map(|key| before.records.get(key));
    replaced(lost.map(Arc::as_ref), others.map(Arc::as_ref))
}

#[cfg(test)]
mod tests;
