// SPDX-License-Identifier: Apache-2.0

//! The end of other proxies: leftovers of a kube-proxy, and of another dataplane of ours, are removed piece by piece.

use std::time::Duration;

use portolan_reconcile::Retirement;
use tokio::time::Instant;

use super::SyncLoop;
use crate::subscribe::Subscribed;
use crate::sync::{Engine, Outcome};

/// Pause between two looks at connections through another dataplane that is retired.
const RETIRE_PAUSE: Duration = Duration::from_secs(2);

/// Pause before a failed retirement is tried again.
const RETIRE_AGAIN: Duration = Duration::from_secs(10);

impl<E: Engine> SyncLoop<E> {
    /// Removes a piece of a kube-proxy's leftovers; new tables are handled between two pieces.
    pub(super) async fn continue_takeover(&mut self) {
        self.takeover_at = None;
        if self.takeover.is_begun() {
            let takeover = &mut self.takeover;
            let more = self.reconciler.continue_takeover(takeover).await;
            self.takeover_at = more.then(Instant::now);
            let pending = self.takeover.is_pending();
            self.outputs.metrics.observe_takeover(pending);
        }
        if self.is_succession_due() {
            self.succeed().await;
        }
    }

    /// Plans the next piece after a reconciliation. A succession that has failed keeps its time. A table from disk may
    /// lack Services that the kube-proxy's rules still serve: nothing is removed before a controller has sent one.
    pub(super) fn plan_takeover(&mut self, target: &Subscribed) {
        if target.is_from_disk {
            self.takeover_at = None;
        } else if self.takeover.is_begun() {
            self.takeover_at = Some(Instant::now());
        } else if self.is_succession_due() {
            self.takeover_at.get_or_insert_with(Instant::now);
        }
    }

    /// Returns `true` if the takeover is over, and another engine is to program the node from now
    /// on.
    fn is_succession_due(&self) -> bool {
        self.takeover.is_over() && self.reconciler.has_successor()
    }

    /// Has another engine program the node, and retire what this one has made.
    async fn succeed(&mut self) {
        if let Err(error) = self.reconciler.succeed().await {
            tracing::warn!("changing over after the takeover is not possible yet: {error:#}");
            self.takeover_at = Some(Instant::now() + RETIRE_AGAIN);
            return;
        }
        tracing::info!("changing over, since the takeover is complete");
        self.retirement = None;
        self.outputs.metrics.observe_changeover(true);
        self.reconcile().await;
    }

    /// Retires a piece of what another dataplane of ours has left; new tables are handled between two pieces.
    pub(super) async fn retire(&mut self) {
        self.retire_at = None;
        let before = self.retirement;
        let progress = match self.reconciler.retire().await {
            Ok(progress) => progress,
            Err(error) => {
                tracing::warn!(%error, "leftovers of another dataplane cannot be retired yet");
                self.retire_at = Some(Instant::now() + RETIRE_AGAIN);
                return;
            }
        };
        self.retirement = Some(progress);
        let is_pending = progress != Retirement::Done;
        self.outputs.metrics.observe_changeover(is_pending);
        match progress {
            Retirement::More => self.retire_at = Some(Instant::now()),
            Retirement::Waiting { left } => {
                if before != self.retirement {
                    tracing::info!(
                        left,
                        "changing over: another dataplane is retired by and by"
                    );
                }
                self.retire_at = Some(Instant::now() + RETIRE_PAUSE);
            }
            Retirement::Done if before.is_some() => {
                tracing::info!("changed over: nothing of another dataplane is left");
                self.reconcile().await;
            }
            Retirement::Done => {}
        }
    }

    /// Plans the first piece of a retirement when a table of a controller is in the kernel.
    pub(super) fn plan_retirement(&mut self, target: &Subscribed, outcome: &Outcome) {
        let is_due = self.retirement.is_none() && outcome.broken.is_empty();
        if is_due && !target.is_from_disk {
            self.retire_at = Some(Instant::now());
        }
    }
}
