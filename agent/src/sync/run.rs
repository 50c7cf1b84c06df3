// SPDX-License-Identifier: Apache-2.0

//! Sync loop: reasons and times of reconciliations.

mod drain;
mod host;
mod leftovers;
mod report;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portolan_plan::Ways;
use portolan_reconcile::Retirement;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;

use super::tally::{TableChanges, Tally};
use super::{Drainer, Engine, Outcome, Ready};
use crate::director::{Asked, HostLink};
use crate::health::Health;
use crate::health_check::HealthChecks;
use crate::kube_proxy::{Takeover, TakeoverConfig};
use crate::metrics::ReconcileMetrics;
use crate::notify::Watchdog;
use crate::spans::LastProgrammed;
use crate::status::Status;
use crate::subscribe::{Report, Subscribed};

/// Pause between two looks for a kube-proxy that still runs.
const LOOK: Duration = Duration::from_secs(1);

/// Shortest time between two repairs of what another program changes all the time.
const QUIET: Duration = Duration::from_millis(200);

/// Interval of the loop's sign of life, far below the limit of the health check.
const BEAT: Duration = Duration::from_secs(10);

/// Periods of the sync loop.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Period of full comparisons with the kernel.
    pub sync_period: Duration,
    /// Period of cheap comparisons.
    pub check_period: Duration,
    /// Pause before the first retry after an error; doubles up to the sync period.
    pub retry: Duration,
    /// Longest time between two checks of draining real servers.
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

/// Inputs of the loop.
#[derive(Debug)]
pub struct SyncInputs {
    /// The newest table.
    pub tables: watch::Receiver<Option<Arc<Subscribed>>>,
    /// Notified when the node's addresses may have changed.
    pub addresses: Arc<Notify>,
    /// Takeover from a kube-proxy.
    pub takeover: TakeoverConfig,
    /// Settings of the host.
    pub host: HostLink,
}

/// Outputs of the loop.
#[derive(Debug)]
pub struct SyncOutputs {
    /// Reports for the controller.
    pub reports: watch::Sender<Option<Report>>,
    /// Metrics.
    pub metrics: ReconcileMetrics,
    /// Dumps for `/debug`.
    pub status: Status,
    /// Health of the agent.
    pub health: Health,
    /// Health checks of load balancers.
    pub health_checks: HealthChecks,
    /// Readiness of the agent.
    pub ready: Ready,
    /// Signs of life for the service manager.
    pub watchdog: Watchdog,
    /// The ways of health checks that the kernel has.
    pub ways: watch::Sender<Arc<Ways>>,
}

/// Keeps the kernel equal to the newest table until the token is cancelled. Changes nothing before the
/// first table arrives, and leaves everything in place at the end.
pub async fn run<E: Engine>(
    reconciler: E,
    drainer: Drainer,
    inputs: SyncInputs,
    timing: Timing,
    outputs: SyncOutputs,
    token: CancellationToken,
) {
    let mut sync = interval_at(Instant::now() + timing.sync_period, timing.sync_period);
    sync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut check = interval_at(Instant::now() + timing.check_period, timing.check_period);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut beat = interval(outputs.watchdog.interval(BEAT));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut this = SyncLoop {
        reconciler,
        drainer,
        takeover: Takeover::new(inputs.takeover),
        takeover_at: None,
        retire_at: None,
        retirement: None,
        settle_at: None,
        quiet_until: Instant::now(),
        host: None,
        host_warnings: Vec::new(),
        inputs,
        timing,
        outputs,
        backoff: timing.retry,
        retry_at: None,
        drain_at: None,
        flows_failed: false,
        last: None,
        traced: LastProgrammed::default(),
        tally: Tally::default(),
        pending: TableChanges::default(),
    };
    this.outputs
        .metrics
        .observe_takeover(this.takeover.is_pending());
    this.outputs.metrics.observe_changeover(true);
    loop {
        let wake = tokio::select! {
            () = token.cancelled() => break,
            _ = beat.tick() => Some(Wake::Beat),
            wake = this.wait(&mut sync, &mut check) => wake,
        };
        match wake {
            None => break,
            Some(Wake::Beat) => {}
            Some(Wake::Drain) => this.drain().await,
            Some(Wake::Addresses) => this.look_at_addresses().await,
            Some(Wake::Check) => this.check().await,
            Some(Wake::Reconcile) => this.reconcile().await,
            Some(Wake::Retry) => {
                this.reconciler.try_again(Instant::now().into_std());
                this.reconcile().await;
            }
            Some(Wake::Sync) => this.sync().await,
            Some(Wake::Settle) => this.settle_again().await,
            Some(Wake::Takeover) => this.continue_takeover().await,
            Some(Wake::Retire) => this.retire().await,
        }
        this.outputs.health.beat(Instant::now());
        this.outputs.watchdog.alive(Instant::now());
    }
    this.drainer.close().await;
}

/// Reason the loop wakes up.
#[derive(Debug, Clone, Copy)]
enum Wake {
    /// A new table.
    Reconcile,
    /// A retry is due.
    Retry,
    /// The sync period has passed.
    Sync,
    /// The check period has passed.
    Check,
    /// The rest of a reconciliation is due.
    Settle,
    /// Notified when the node's addresses may have changed.
    Addresses,
    /// Draining real servers are to be checked.
    Drain,
    /// Leftovers of a kube-proxy are to be removed.
    Takeover,
    /// Objects that another dataplane of ours has left are to be retired.
    Retire,
    /// A sign of life is due.
    Beat,
}

struct SyncLoop<E> {
    reconciler: E,
    drainer: Drainer,
    inputs: SyncInputs,
    /// Settings of the host that were set last.
    host: Option<Asked>,
    /// Warnings about the host at the last look.
    host_warnings: Vec<String>,
    timing: Timing,
    outputs: SyncOutputs,
    backoff: Duration,
    retry_at: Option<Instant>,
    drain_at: Option<Instant>,
    /// Whether a failure to delete stale flows was logged.
    flows_failed: bool,
    /// Epoch and revision of the last programmed table.
    last: Option<(u64, u64)>,
    traced: LastProgrammed,
    tally: Tally,
    takeover: Takeover,
    takeover_at: Option<Instant>,
    retire_at: Option<Instant>,
    /// Progress of the retirement of another dataplane of ours; `None` before it begins.
    retirement: Option<Retirement>,
    /// Time at which the rest of the last reconciliation is due.
    settle_at: Option<Instant>,
    /// Time until which notifications of foreign changes wait.
    quiet_until: Instant,
    /// Changes of the table that are not programmed.
    pending: TableChanges,
}

impl<E: Engine> SyncLoop<E> {
    /// Waits for the next reason; `None` when the source of tables has ended.
    async fn wait(&mut self, sync: &mut Interval, check: &mut Interval) -> Option<Wake> {
        tokio::select! {
            changed = self.inputs.tables.changed() => changed.ok().map(|()| Wake::Reconcile),
            () = self.inputs.host.changed() => Some(Wake::Reconcile),
            _ = sync.tick() => Some(Wake::Sync),
            _ = check.tick() => Some(Wake::Check),
            () = disturbed(&mut self.reconciler, self.quiet_until) => {
                self.quiet_until = Instant::now() + QUIET;
                Some(Wake::Check)
            }
            () = at(self.retry_at) => Some(Wake::Retry),
            () = self.inputs.addresses.notified() => Some(Wake::Addresses),
            () = at(self.drain_at) => Some(Wake::Drain),
            () = at(self.takeover_at) => Some(Wake::Takeover),
            () = at(self.retire_at) => Some(Wake::Retire),
            () = at(self.settle_at) => Some(Wake::Settle),
        }
    }

    /// Reconciles if a cheap comparison finds a difference.
    async fn check(&mut self) {
        match self.reconciler.glance().await {
            Ok(None) => self.check_host().await,
            Ok(Some(found)) => {
                tracing::info!(found, "another program has changed the kernel");
                self.outputs.metrics.observe_difference();
                self.look_at_kernel().await;
            }
            // A full comparison reports the error and retries.
            Err(error) => tracing::debug!(%error, "kernel cannot be compared"),
        }
    }

    /// Reconciles if the addresses have changed.
    async fn look_at_addresses(&mut self) {
        match self.reconciler.refresh_facts().await {
            // An interface that a sync daemon waits for may be there now.
            Ok(false) => self.check_host().await,
            Ok(true) => {
                tracing::info!("node addresses have changed");
                self.reconcile().await;
            }
            Err(error) => {
                tracing::warn!(%error, "node addresses cannot be read");
                self.retry();
            }
        }
    }

    /// Reads the kernel, unless it is certainly as it was, and reconciles.
    async fn sync(&mut self) {
        self.reconciler.forget_unproven().await;
        self.reconcile().await;
    }

    /// Reads the kernel and reconciles.
    async fn look_at_kernel(&mut self) {
        self.reconciler.forget();
        self.reconcile().await;
    }

    /// Reconciles once and reports the outcome; nothing without a table.
    async fn reconcile(&mut self) {
        // Taken before the table: a table that arrives in between counts as waiting.
        let start = Instant::now();
        self.retry_at = None;
        if self.takeover.waits().await {
            self.retry_at = Some(Instant::now() + LOOK);
            return;
        }
        let Some(target) = self.inputs.tables.borrow_and_update().clone() else {
            return;
        };
        let began = std::time::Instant::now();
        let outcome = self.program(&target).await;
        self.traced.programmed(&target, &outcome, began);
        let outputs = &mut self.outputs;
        let wall = SystemTime::now();
        outputs.health.served(start, outcome.broken, wall);
        let desired = self.reconciler.desired();
        outputs.status.set_config(self.reconciler.config());
        outputs.status.update(&target, desired, &outcome);
        if outcome.broken.is_empty() {
            self.last = Some((target.epoch, target.revision));
        }
        report::report(&target, self.last, &outcome, &outputs.reports);
        // Connections do not wait for the rest.
        self.observe(&target, &outcome);
        let outputs = &mut self.outputs;
        outputs.ready.follow(outcome.broken);
        if let Some(facts) = self.reconciler.facts() {
            let (wanted, addresses) = (self.tally.health_checks(), &facts.node_port_addresses);
            outputs.health_checks.apply(wanted, addresses).await;
        }
        self.settle().await;
        self.tell_ways();
        self.plan_retry(&outcome);
        self.forget_stale_flows(&target).await;
        self.note_drains(&target);
        self.plan_retirement(&target, &outcome);
    }

    /// Completes a reconciliation, and plans the rest of that.
    async fn settle(&mut self) {
        self.settle_at = None;
        match self.reconciler.settle().await {
            Ok(()) => self.settle_at = self.reconciler.settles_at().map(Instant::from_std),
            Err(error) => {
                tracing::warn!(%error, "the reconciliation is not complete: the next one completes it");
            }
        }
    }

    /// Does the rest of a reconciliation. With a newer table the next reconciliation does it.
    async fn settle_again(&mut self) {
        self.settle_at = None;
        let target = self.inputs.tables.borrow().clone();
        let is_newest = !self.inputs.tables.has_changed().unwrap_or(true);
        if let Some(target) = target.filter(|_| is_newest) {
            self.settle().await;
            // After clients: the next packet of a flow is led to the endpoint that its client is remembered with.
            self.forget_stale_flows(&target).await;
        }
    }

    /// Tells the health checks which ways they have. A probe with a mark that leads nowhere would go to any backend.
    fn tell_ways(&mut self) {
        if let Some(ways) = self.reconciler.ways() {
            self.outputs.ways.send_if_modified(|told| {
                let is_other = **told != ways;
                *told = Arc::new(ways);
                is_other
            });
        }
    }

    /// Updates the metrics.
    fn observe(&mut self, target: &Subscribed, outcome: &Outcome) {
        let metrics = &self.outputs.metrics;
        let rules = outcome.is_full.then(|| self.reconciler.rule_counts());
        metrics.observe(outcome, self.reconciler.counts(), rules.as_ref());
        if outcome.repaired > 0 {
            let objects = outcome.repaired;
            metrics.observe_drift(objects);
            tracing::warn!(objects, "another program had changed the kernel: repaired");
        }
        let changes = self.tally.follow(&target.table);
        self.pending += changes;
        if outcome.broken.is_empty() {
            self.pending = TableChanges::default();
        }
        metrics.observe_changes(changes, self.pending);
        metrics.observe_no_local_endpoints(self.tally.no_local_endpoints());
    }

    /// Programs a table, after the start of a takeover if one is due.
    async fn program(&mut self, target: &Subscribed) -> Outcome {
        let table = &target.table;
        let takeover = &mut self.takeover;
        if let Err(error) = self.reconciler.begin_takeover(takeover, table).await {
            return Outcome {
                errors: vec![(None, error.to_string())],
                again: true,
                broken: portolan_model::Family::ALL.into_iter().collect(),
                ..Outcome::default()
            };
        }
        self.take_host();
        self.reconciler.begin_host().await;
        let outcome = match self.reconciler.reconcile(table, target.is_from_disk).await {
            Ok(outcome) => self.with_host(target, outcome).await,
            Err(error) => Outcome::unreadable(&error),
        };
        self.plan_takeover(target);
        let pending = self.takeover.is_pending();
        self.outputs.metrics.observe_takeover(pending);
        outcome
    }

    /// Schedules the next retry: each refused record has its own pause, other errors share one.
    fn plan_retry(&mut self, outcome: &Outcome) {
        let (now, longest) = (Instant::now().into_std(), self.timing.sync_period);
        let next = self
            .reconciler
            .next_attempt(now, self.timing.retry, longest);
        match next.filter(|at| *at > now) {
            Some(at) if outcome.broken.is_empty() => self.retry_at = Some(Instant::from_std(at)),
            _ if outcome.again => return self.retry(),
            _ => {}
        }
        self.backoff = self.timing.retry;
    }

    /// Schedules a retry after a pause that doubles each time.
    fn retry(&mut self) {
        self.retry_at = Some(Instant::now() + self.backoff);
        self.backoff = (self.backoff * 2).min(self.timing.sync_period);
    }

    async fn forget_stale_flows(&mut self, target: &Subscribed) {
        if target.is_from_disk {
            // A newer table may have directed flows to their endpoints.
            return;
        }
        let start = Instant::now();
        match self.reconciler.forget_stale_flows(&target.table).await {
            Ok(None) => {}
            Ok(Some(deleted)) => {
                self.flows_failed = false;
                let metrics = &self.outputs.metrics;
                metrics.observe_flows(start.elapsed(), deleted);
                tracing::debug!(deleted, "stale UDP flows deleted");
            }
            Err(error) => {
                // The next reconciliation retries.
                if !std::mem::replace(&mut self.flows_failed, true) {
                    tracing::warn!(%error, "stale UDP flows cannot be deleted");
                }
            }
        }
    }
}

/// Waits for a notification of a foreign change, not before a time.
async fn disturbed<E: Engine>(reconciler: &mut E, not_before: Instant) {
    sleep_until(not_before).await;
    reconciler.disturbed().await;
}

/// Sleeps until a time, or for ever.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
