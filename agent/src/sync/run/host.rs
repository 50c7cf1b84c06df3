// SPDX-License-Identifier: Apache-2.0

//! Settings of a director's host in the loop: taken with a table, and mended between tables.

use std::sync::Arc;

use portolan_model::{NodeTable, RecordKey};
use portolan_reconcile::HostOutcome;

use super::SyncLoop;
use crate::director::{Asked, Done, load_owned};
use crate::subscribe::Subscribed;
use crate::sync::{Engine, Outcome};

impl<E: Engine> SyncLoop<E> {
    /// Takes the newest settings of the host.
    pub(super) fn take_host(&mut self) {
        let asked = self.inputs.host.asked.borrow_and_update().clone();
        let number = |asked: &Option<Asked>| asked.as_ref().map(|asked| asked.number);
        if number(&asked) == number(&self.host) {
            return;
        }
        let owned = match self.host {
            None => load_owned(&self.inputs.host.state_dir),
            Some(_) => self.reconciler.owned(&NodeTable::default()).0,
        };
        let host = asked.as_ref().map(|asked| Arc::clone(&asked.host));
        self.reconciler.set_host(host, owned);
        self.host = asked;
    }

    /// Makes the settings of the host what is asked for, also by the Director of a table from disk.
    async fn finish_host(&mut self, target: &Subscribed) -> HostOutcome {
        let Some(asked) = self.host.clone() else {
            return HostOutcome::default();
        };
        let (before, then) = self.reconciler.owned(&target.table);
        self.inputs.host.save_owned(&before, &then).await;
        let mut outcome = self.reconciler.finish_host(&target.table).await;
        let (now, _) = self.reconciler.owned(&target.table);
        self.inputs.host.save_owned(&then, &now).await;
        self.tell_warnings(&outcome);
        let new = std::mem::take(&mut outcome.new);
        self.inputs.host.announce(&asked.host, new);
        self.inputs.host.done.send_replace(Done {
            number: asked.number,
            errors: outcome.errors.clone(),
            state: outcome.state.clone(),
        });
        outcome
    }

    /// Logs the warnings that the last look at the host did not have.
    fn tell_warnings(&mut self, outcome: &HostOutcome) {
        // Settings that were not looked at say nothing: the next look would repeat all warnings.
        if outcome.state.is_none() {
            return;
        }
        let before = std::mem::take(&mut self.host_warnings);
        let new = outcome.warnings.iter();
        for warning in new.filter(|warning| !before.contains(warning)) {
            tracing::warn!("{warning}");
        }
        self.host_warnings.clone_from(&outcome.warnings);
    }

    /// An outcome with that of the host's settings.
    pub(super) async fn with_host(&mut self, target: &Subscribed, mut outcome: Outcome) -> Outcome {
        let host = self.finish_host(target).await;
        outcome.objects += host.changed;
        outcome.again |= !host.errors.is_empty();
        let errors = host.errors.into_iter().map(|error| (None, error));
        outcome.errors.extend(errors);
        let asked = self.host.as_ref();
        if asked.is_some_and(|asked| asked.host.is_stateless) {
            // Another attempt would not change them.
            outcome.errors.extend(without_maglev(&target.table));
        }
        outcome
    }

    /// Mends settings of the host that another program has changed, and tries again what could not be made.
    pub(super) async fn check_host(&mut self) {
        let Some(target) = self.inputs.tables.borrow().clone() else {
            return;
        };
        // Before the first reconciliation no address is known.
        if self.last.is_none() {
            return;
        }
        let outcome = self.finish_host(&target).await;
        if outcome.changed > 0 {
            tracing::info!(
                changed = outcome.changed,
                "settings of the host were programmed again"
            );
        }
    }
}

/// An error for each load balancer of this host without the scheduler that a Director with `statelessFailover` needs.
/// Files with one are refused. The objects of a fleet come one by one.
fn without_maglev(table: &NodeTable) -> impl Iterator<Item = (Option<RecordKey>, String)> {
    table.records.values().filter_map(move |record| {
        let is_ours = record.balancing.is_some() && record.is_for(&table.node);
        let scheduler = record.scheduling.scheduler.as_deref();
        let name = scheduler.filter(|name| is_ours && *name != "mh")?;
        let error = format!(
            "scheduler {name:?}: expected \"mh\", by spec.statelessFailover of the host's Director"
        );
        Some((Some(record.key.clone()), error))
    })
}
