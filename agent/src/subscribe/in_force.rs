// SPDX-License-Identifier: Apache-2.0

//! The table in force: the source's table without the held deletions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::NodeTable;
use portolan_subscription::{GuardConfig, HeldDeletions};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use super::guard::TableGuard;
use super::held::Confirmations;
use super::{HeldView, Stats, Subscribed};

/// Publishes tables for the kernel, from any source.
#[derive(Debug)]
pub(crate) struct TableInForce {
    pub(super) guard: TableGuard,
    view: HeldView,
    confirmations: Confirmations,
    tables: watch::Sender<Option<Arc<Subscribed>>>,
    stats: Arc<Stats>,
    /// The newest table of the source, as it was published.
    last: Option<Subscribed>,
    /// The table of the last run, until it or another one is in force.
    loaded: Option<Loaded>,
}

impl TableInForce {
    pub(crate) fn new(
        config: GuardConfig,
        view: HeldView,
        tables: watch::Sender<Option<Arc<Subscribed>>>,
        stats: Arc<Stats>,
    ) -> Self {
        Self {
            guard: TableGuard::new(config),
            confirmations: view.confirmations(),
            view,
            tables,
            stats,
            last: None,
            loaded: None,
        }
    }

    /// Compares the source's first table with the one that was in force in the last run.
    pub(crate) fn restore(
        &mut self,
        position: (u64, u64),
        latest: Arc<NodeTable>,
        in_force: Arc<NodeTable>,
    ) {
        self.last = Some(Subscribed {
            is_from_disk: true,
            ..Subscribed::new(position, Arc::clone(&latest))
        });
        self.guard.restore(position, latest, in_force);
        self.report();
    }

    /// Puts a table of the last run in force after this time, unless another one is by then. The
    /// delay is for an agent that was killed, which may have programmed a newer one.
    pub(super) fn put_in_force_after(
        &mut self,
        patience: Duration,
        position: (u64, u64),
        table: Arc<NodeTable>,
    ) {
        let table = Arc::new(Subscribed {
            is_from_disk: true,
            ..Subscribed::new(position, table)
        });
        self.loaded = Some(Loaded::new(table, self.tables.clone(), patience));
    }

    /// Puts the table of the last run in force, unless another one is already.
    pub(super) fn put_loaded_in_force(&mut self) {
        if let Some(loaded) = self.loaded.take() {
            loaded.put_in_force();
        }
    }

    /// Takes a table of the source. Returns the held deletions.
    pub(crate) fn take_table(&mut self, table: Subscribed) -> Option<HeldDeletions> {
        let position = (table.epoch, table.revision);
        let now = Instant::now();
        let in_force = self.guard.judge(position, &table.table, now);
        self.last = Some(table.clone());
        self.publish(Subscribed {
            table: in_force,
            ..table
        });
        self.report()
    }

    /// Begins a new listing of the source: the next table is compared with all that is in force.
    pub(crate) fn begin_listing(&mut self) {
        self.guard.guard.begin_stream();
        self.view.show(self.guard.guard.held());
    }

    /// Releases the held deletions.
    pub(crate) fn release(&mut self) {
        let table = self.guard.release();
        self.report();
        if let Some(last) = self.last.clone() {
            // What is released now was not programmed late, and is no endpoint's change.
            self.publish(Subscribed {
                table,
                received_at: Instant::now(),
                trigger_times_ms: Vec::new(),
                ..last
            });
        }
    }

    /// Time at which [`Self::expire`] has deletions to release.
    pub(crate) fn held_until(&self) -> Option<Instant> {
        self.guard.guard.until()
    }

    /// Releases the held deletions whose time has come.
    pub(crate) fn expire(&mut self) {
        if self.guard.guard.expire(Instant::now()) {
            warn!("deletions that were held back count as confirmed by time");
            self.release();
        }
    }

    /// Waits until an operator on the node confirms the held deletions. The caller releases them.
    pub(crate) async fn confirmed(&mut self) {
        loop {
            let (epoch, revision) = self.confirmations.next().await;
            if self.guard.guard.confirm(epoch, revision) {
                warn!(
                    revision,
                    "an operator confirmed deletions that were held back"
                );
                return;
            }
            warn!(
                revision,
                "confirmed, but no deletions of that revision are held back"
            );
        }
    }

    /// The table in force, if it has records that the source's does not have.
    pub(crate) fn with_withheld(&self) -> Option<Arc<NodeTable>> {
        self.guard.with_withheld()
    }

    fn report(&self) -> Option<HeldDeletions> {
        let held = self.guard.guard.held();
        self.stats
            .stream
            .guard
            .report(held.as_ref(), Instant::now());
        self.view.show(held.clone());
        held
    }

    fn publish(&mut self, table: Subscribed) {
        debug!(revision = table.revision, "table in force");
        self.tables.send_replace(Some(Arc::new(table)));
        self.loaded = None;
    }
}

/// A table that is put in force after a delay, unless another one is before or this value is
/// dropped.
#[derive(Debug)]
struct Loaded {
    table: Arc<Subscribed>,
    tables: watch::Sender<Option<Arc<Subscribed>>>,
    _in_time: AbortOnDropHandle<()>,
}

impl Loaded {
    fn new(
        table: Arc<Subscribed>,
        tables: watch::Sender<Option<Arc<Subscribed>>>,
        patience: Duration,
    ) -> Self {
        let (in_time, to) = (Arc::clone(&table), tables.clone());
        let in_time = tokio::spawn(async move {
            sleep(patience).await;
            put_first(&to, in_time);
        });
        Self {
            table,
            tables,
            _in_time: AbortOnDropHandle::new(in_time),
        }
    }

    fn put_in_force(self) {
        put_first(&self.tables, self.table);
    }
}

/// Puts a table in force if there is none.
fn put_first(tables: &watch::Sender<Option<Arc<Subscribed>>>, table: Arc<Subscribed>) {
    tables.send_if_modified(|in_force| {
        let is_first = in_force.is_none();
        if is_first {
            *in_force = Some(table);
        }
        is_first
    });
}

#[cfg(test)]
mod tests;
