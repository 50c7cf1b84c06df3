//! When to reconcile.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portolan_dataplane::Dataplane;
use portolan_runtime::BlockReady;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;

use super::tally::Tally;
use super::{Drainer, Outcome, Reconciler};
use crate::health::Health;
use crate::health_check::HealthChecks;
use crate::metrics::ReconcileMetrics;
use crate::status::Status;
use crate::subscribe::{Report, Subscribed};

/// Between two rounds of deletions of what has drained, at least.
const DRAIN_PAUSE: Duration = Duration::from_secs(1);

/// How long to wait for what.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Between two full comparisons with the kernel.
    pub sync_period: Duration,
    /// Between two cheap looks at it.
    pub check_period: Duration,
    /// Before the first retry after an error; doubles up to the sync period.
    pub retry: Duration,
    /// Between two looks at the connections of draining real servers, at most.
    pub drain: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            sync_period: Duration::from_secs(30),
            check_period: Duration::from_secs(5),
            retry: Duration::from_secs(1),
            drain: Duration::from_secs(5),
        }
    }
}

/// What the loop is told.
#[derive(Debug)]
pub struct Inlets {
    /// The newest table.
    pub tables: watch::Receiver<Option<Arc<Subscribed>>>,
    /// The node's addresses may have changed.
    pub addresses: Arc<Notify>,
}

/// What the loop tells the others.
#[derive(Debug)]
pub struct Outlets {
    /// What is programmed, for the controller.
    pub reports: watch::Sender<Option<Report>>,
    /// For `/metrics`.
    pub metrics: ReconcileMetrics,
    /// For `/debug`.
    pub status: Status,
    /// Whether the agent keeps up.
    pub health: Health,
    /// Answers load balancers.
    pub health_checks: HealthChecks,
    /// Not ready until the first table is programmed.
    pub unready: Option<BlockReady>,
}

/// Keeps the kernel equal to the newest table until the token is cancelled. Touches nothing before
/// the first table is in; leaves everything in place at the end.
pub async fn run<D: Dataplane>(
    reconciler: Reconciler<D>,
    drainer: Drainer,
    inlets: Inlets,
    timing: Timing,
    outlets: Outlets,
    token: CancellationToken,
) {
    let mut sync = interval_at(Instant::now() + timing.sync_period, timing.sync_period);
    sync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut check = interval_at(Instant::now() + timing.check_period, timing.check_period);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut this = Loop {
        reconciler,
        drainer,
        inlets,
        timing,
        outlets,
        backoff: timing.retry,
        retry_at: None,
        drain_at: None,
        flows_failed: false,
        tally: Tally::default(),
    };
    loop {
        let wake = tokio::select! {
            () = token.cancelled() => return,
            wake = this.wait(&mut sync, &mut check) => wake,
        };
        match wake {
            None => return,
            Some(Wake::Drain) => this.drain().await,
            Some(Wake::Addresses) => this.look_at_addresses().await,
            Some(Wake::Check) => this.check().await,
            Some(Wake::Reconcile) => this.reconcile().await,
            Some(Wake::Sync) => {
                this.reconciler.forget();
                this.reconcile().await;
            }
        }
    }
}

/// Why the loop does something.
#[derive(Debug, Clone, Copy)]
enum Wake {
    /// There is a new table, or it is time for another attempt.
    Reconcile,
    /// Somebody else may have changed the kernel.
    Sync,
    /// The same, and it may be told cheaply.
    Check,
    /// The node's addresses may have changed.
    Addresses,
    /// What drains may have drained.
    Drain,
}

struct Loop<D> {
    reconciler: Reconciler<D>,
    drainer: Drainer,
    inlets: Inlets,
    timing: Timing,
    outlets: Outlets,
    backoff: Duration,
    retry_at: Option<Instant>,
    drain_at: Option<Instant>,
    /// Whether it was said that stale flows cannot be forgotten.
    flows_failed: bool,
    tally: Tally,
}

impl<D: Dataplane> Loop<D> {
    /// What comes next; `None` when no table will come any more.
    async fn wait(&mut self, sync: &mut Interval, check: &mut Interval) -> Option<Wake> {
        tokio::select! {
            changed = self.inlets.tables.changed() => changed.ok().map(|()| Wake::Reconcile),
            _ = sync.tick() => Some(Wake::Sync),
            _ = check.tick() => Some(Wake::Check),
            () = at(self.retry_at) => Some(Wake::Reconcile),
            () = self.inlets.addresses.notified() => Some(Wake::Addresses),
            () = at(self.drain_at) => Some(Wake::Drain),
        }
    }

    /// Reconciles if a cheap look finds the kernel changed.
    async fn check(&mut self) {
        match self.reconciler.glance().await {
            Ok(None) => {}
            Ok(Some(found)) => {
                tracing::warn!(found, "somebody else has changed the kernel");
                self.outlets.metrics.observe_difference();
                self.reconcile().await;
            }
            // What reads all of it says so in its report, and tries again.
            Err(error) => tracing::debug!(%error, "the kernel cannot be looked at"),
        }
    }

    /// Reconciles only if the addresses have changed in fact.
    async fn look_at_addresses(&mut self) {
        match self.reconciler.refresh_facts().await {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("the node's addresses have changed");
                self.reconcile().await;
            }
            Err(error) => {
                tracing::warn!(%error, "the node's addresses cannot be read");
                self.retry();
            }
        }
    }

    /// Reconciles once and tells.
    async fn reconcile(&mut self) {
        // Before the look at the table: what arrives between the two rather counts as waiting.
        let start = Instant::now();
        let Some(target) = self.inlets.tables.borrow_and_update().clone() else {
            return;
        };
        let outcome = match self.reconciler.reconcile(&target.table).await {
            Ok(outcome) => outcome,
            Err(error) => Outcome::unreadable(&error),
        };
        let good = outcome.errors.is_empty();
        let outlets = &mut self.outlets;
        let wall = SystemTime::now();
        outlets.health.served(start, outcome.broken, wall);
        outlets.status.update(&target, &self.reconciler, &outcome);
        tell(&target, &outcome, &outlets.reports);
        // No connection waits for what follows.
        outlets.metrics.observe(&outcome, self.reconciler.counts());
        self.tally.follow(&target.table);
        let no_local = self.tally.no_local_endpoints();
        outlets.metrics.observe_no_local_endpoints(no_local);
        if good {
            outlets.unready = None;
        }
        if let Some(facts) = self.reconciler.facts() {
            let (wanted, addresses) = (self.tally.health_checks(), &facts.node_port_addresses);
            outlets.health_checks.apply(wanted, addresses).await;
        }
        if let Err(error) = self.reconciler.settle().await {
            tracing::warn!(%error, "the rules cannot be looked at: they are written anew");
        }
        if good {
            (self.backoff, self.retry_at) = (self.timing.retry, None);
        } else {
            self.retry();
        }
        self.forget_stale_flows(&target).await;
        self.note_drains(&target).await;
    }

    /// Tries again in a while, which gets longer each time.
    fn retry(&mut self) {
        self.retry_at = Some(Instant::now() + self.backoff);
        self.backoff = (self.backoff * 2).min(self.timing.sync_period);
    }

    async fn forget_stale_flows(&mut self, target: &Subscribed) {
        let start = Instant::now();
        match self.reconciler.forget_stale_flows(&target.table).await {
            Ok(None) => {}
            Ok(Some(deleted)) => {
                self.flows_failed = false;
                let metrics = &self.outlets.metrics;
                metrics.observe_flows(start.elapsed(), deleted);
                tracing::debug!(deleted, "stale UDP flows forgotten");
            }
            Err(error) => {
                // Still due: the next reconciliation tries again.
                if !std::mem::replace(&mut self.flows_failed, true) {
                    tracing::warn!(%error, "stale UDP flows cannot be forgotten");
                }
            }
        }
    }

    /// Keeps the deadlines of what drains now; they may bring the next look nearer, not put it off.
    async fn note_drains(&mut self, target: &Subscribed) {
        let Some(draining) = self.reconciler.draining(&target.table) else {
            return;
        };
        self.drainer.note(&draining).await;
        let next = self.next_look();
        self.drain_at = match (self.drain_at, next) {
            (Some(planned), Some(next)) => Some(planned.min(next)),
            (_, next) => next,
        };
    }

    /// At the nearest deadline, and every few seconds while anything drains.
    fn next_look(&self) -> Option<Instant> {
        let nearest = self.drainer.until_nearest()?;
        Some(Instant::now() + nearest.min(self.timing.drain))
    }

    async fn drain(&mut self) {
        self.drain_at = None;
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
        if self.reconciler.known().is_none() {
            self.retry();
            return;
        }
        let Some(target) = self.inlets.tables.borrow().clone() else {
            return;
        };
        self.note_drains(&target).await;
        // What could be deleted is: the rest waits, also where its deadline has passed.
        let soonest = Instant::now() + DRAIN_PAUSE.min(self.timing.drain);
        self.drain_at = self.drain_at.map(|at| at.max(soonest));
    }
}

/// At a time, or never.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Says what was done with a table.
fn tell(target: &Subscribed, outcome: &Outcome, reports: &watch::Sender<Option<Report>>) {
    if outcome.objects > 0 {
        tracing::info!(
            revision = target.revision,
            objects = outcome.objects,
            duration_ms = outcome.duration.as_secs_f64() * 1e3,
            errors = outcome.errors.len(),
            "programmed"
        );
    }
    let report = Report {
        epoch: target.epoch,
        revision: target.revision,
        duration: target.received_at.elapsed(),
        errors: outcome.errors.clone(),
    };
    tell_new_errors(reports, &report);
    reports.send_replace(Some(report));
}

/// Logs errors that the last report did not have: one that stays is said once.
fn tell_new_errors(reports: &watch::Sender<Option<Report>>, report: &Report) {
    let last = reports.borrow();
    let known = |error| {
        last.as_ref()
            .is_some_and(|last| last.errors.contains(error))
    };
    for error in report.errors.iter().filter(|error| !known(error)) {
        let record = error
            .0
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        tracing::warn!(record, "{}", error.1);
    }
}

#[cfg(test)]
mod tests;
