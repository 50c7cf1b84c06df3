// SPDX-License-Identifier: Apache-2.0

//! Times at which draining real servers are looked at, and their ends.

use std::time::Duration;

use tokio::time::Instant;

use super::SyncLoop;
use crate::subscribe::Subscribed;
use crate::sync::Engine;

/// Shortest time between two deletions of drained real servers.
const DRAIN_PAUSE: Duration = Duration::from_secs(1);

impl<E: Engine> SyncLoop<E> {
    /// Updates the deadlines of drains, which may advance the next check but not postpone it.
    pub(super) fn note_drains(&mut self, target: &Subscribed) {
        let Some(draining) = self.reconciler.draining(&target.table) else {
            return;
        };
        self.drainer.note(&draining);
        let next = self.next_look();
        self.drain_at = match (self.drain_at, next) {
            (Some(planned), Some(next)) => Some(planned.min(next)),
            (_, next) => next,
        };
    }

    /// Time of the next check: the nearest deadline, at most a few seconds away while anything drains or waits.
    fn next_look(&self) -> Option<Instant> {
        let put_off = || self.reconciler.has_put_off().then_some(self.timing.drain);
        let nearest = self.drainer.until_nearest().or_else(put_off)?;
        Some(Instant::now() + nearest.min(self.timing.drain))
    }

    pub(super) async fn drain(&mut self) {
        self.drain_at = None;
        let target = self.inputs.tables.borrow().clone();
        if target.is_some_and(|target| target.is_from_disk) {
            // A table from disk may lack what drains: nothing is deleted before a controller has sent one.
            self.drain_at = Some(Instant::now() + self.timing.drain);
            return;
        }
        let drainer = &self.drainer;
        let finished = self
            .reconciler
            .finish_drains(|draining| drainer.has_passed(draining))
            .await;
        if let Err(error) = finished {
            tracing::warn!(%error, "connections of draining real servers cannot be read");
            self.drain_at = Some(Instant::now() + self.timing.drain);
            return;
        }
        if !self.reconciler.is_certain() {
            self.retry();
            return;
        }
        let Some(target) = self.inputs.tables.borrow().clone() else {
            return;
        };
        self.note_drains(&target);
        // The rest waits for room even after its deadline.
        let soonest = Instant::now() + DRAIN_PAUSE.min(self.timing.drain);
        self.drain_at = self.drain_at.map(|at| at.max(soonest));
    }
}
