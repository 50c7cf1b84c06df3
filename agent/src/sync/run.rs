//! When to reconcile.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portolan_dataplane::{Dataplane, KubeProxyObjects};
use portolan_model::{NodeTable, RecordKey};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;

use super::tally::Tally;
use super::{Drainer, Outcome, Ready, Reconciler};
use crate::health::Health;
use crate::health_check::HealthChecks;
use crate::kube_proxy::{Takeover, TakeoverConfig};
use crate::metrics::ReconcileMetrics;
use crate::status::Status;
use crate::subscribe::{Report, Subscribed};

/// Between two rounds of deletions of what has drained, at least.
const DRAIN_PAUSE: Duration = Duration::from_secs(1);

/// So often the loop shows that it is not stuck, far more often than anybody doubts it.
const BEAT: Duration = Duration::from_secs(10);

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

/// What did not work, with the record that it belongs to.
type RecordError = (Option<RecordKey>, String);

/// So many new errors are logged at a time.
const MAX_LOGGED_ERRORS: usize = 64;

/// What the loop is told.
#[derive(Debug)]
pub struct SyncInputs {
    /// The newest table.
    pub tables: watch::Receiver<Option<Arc<Subscribed>>>,
    /// The node's addresses may have changed.
    pub addresses: Arc<Notify>,
    /// Whether to take over from a kube-proxy.
    pub takeover: TakeoverConfig,
}

/// What the loop tells the others.
#[derive(Debug)]
pub struct SyncOutputs {
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
    /// Whether the agent is ready.
    pub ready: Ready,
}

/// Keeps the kernel equal to the newest table until the token is cancelled. Touches nothing before
/// the first table is in; leaves everything in place at the end.
pub async fn run<D: Dataplane + KubeProxyObjects>(
    reconciler: Reconciler<D>,
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
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut this = SyncLoop {
        reconciler,
        drainer,
        takeover: Takeover::new(inputs.takeover),
        takeover_at: None,
        inputs,
        timing,
        outputs,
        backoff: timing.retry,
        retry_at: None,
        drain_at: None,
        flows_failed: false,
        last: None,
        tally: Tally::default(),
        programmed: None,
    };
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
            Some(Wake::Reconcile) => drop(this.reconcile().await),
            Some(Wake::Retry) => {
                this.reconciler.try_again(Instant::now().into_std());
                drop(this.reconcile().await);
            }
            Some(Wake::Sync) => this.look_at_kernel().await,
            Some(Wake::Takeover) => this.continue_takeover().await,
        }
        this.outputs.health.beat(Instant::now());
    }
    this.drainer.close().await;
}

/// Why the loop does something.
#[derive(Debug, Clone, Copy)]
enum Wake {
    /// There is a new table.
    Reconcile,
    /// It is time for another attempt.
    Retry,
    /// Somebody else may have changed the kernel.
    Sync,
    /// The same, and it may be told cheaply.
    Check,
    /// The node's addresses may have changed.
    Addresses,
    /// What drains may have drained.
    Drain,
    /// Something of a kube-proxy's is left.
    Takeover,
    /// It is time to show that the loop is not stuck.
    Beat,
}

struct SyncLoop<D> {
    reconciler: Reconciler<D>,
    drainer: Drainer,
    inputs: SyncInputs,
    timing: Timing,
    outputs: SyncOutputs,
    backoff: Duration,
    retry_at: Option<Instant>,
    drain_at: Option<Instant>,
    /// Whether it was said that stale flows cannot be forgotten.
    flows_failed: bool,
    /// The epoch and revision of the last table that was programmed.
    last: Option<(u64, u64)>,
    tally: Tally,
    takeover: Takeover,
    takeover_at: Option<Instant>,
    /// The table that the kernel was made equal to, if the last reconciliation had no errors.
    programmed: Option<Arc<NodeTable>>,
}

impl<D: Dataplane + KubeProxyObjects> SyncLoop<D> {
    /// What comes next; `None` when no table will come any more.
    async fn wait(&mut self, sync: &mut Interval, check: &mut Interval) -> Option<Wake> {
        tokio::select! {
            changed = self.inputs.tables.changed() => changed.ok().map(|()| Wake::Reconcile),
            _ = sync.tick() => Some(Wake::Sync),
            _ = check.tick() => Some(Wake::Check),
            () = at(self.retry_at) => Some(Wake::Retry),
            () = self.inputs.addresses.notified() => Some(Wake::Addresses),
            () = at(self.drain_at) => Some(Wake::Drain),
            () = at(self.takeover_at) => Some(Wake::Takeover),
        }
    }

    /// Reconciles if a cheap look finds the kernel changed.
    async fn check(&mut self) {
        match self.reconciler.glance().await {
            Ok(None) => {}
            Ok(Some(found)) => {
                tracing::info!(found, "somebody else has changed the kernel");
                self.outputs.metrics.observe_difference();
                self.look_at_kernel().await;
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
                drop(self.reconcile().await);
            }
            Err(error) => {
                tracing::warn!(%error, "the node's addresses cannot be read");
                self.retry();
            }
        }
    }

    /// Reads the kernel anew. What there is to change then, if the table is the one that was
    /// programmed, somebody else had changed.
    async fn look_at_kernel(&mut self) {
        let before = self.programmed.take();
        self.reconciler.forget();
        let Some((table, objects)) = self.reconcile().await else {
            return;
        };
        if objects > 0 && before.is_some_and(|before| Arc::ptr_eq(&before, &table)) {
            self.outputs.metrics.observe_drift(objects);
            tracing::warn!(objects, "somebody else had changed the kernel: made good");
        }
    }

    /// Takes away a piece of what a kube-proxy left; the rest soon, so that tables come between.
    async fn continue_takeover(&mut self) {
        let more = self.takeover.proceed(&mut self.reconciler).await;
        self.takeover_at = more.then(Instant::now);
        let pending = self.takeover.is_pending();
        self.outputs.metrics.observe_takeover(pending);
    }

    /// Reconciles once and tells; the table, and how many objects were changed. `None` without a
    /// table.
    async fn reconcile(&mut self) -> Option<(Arc<NodeTable>, usize)> {
        // Before the look at the table: what arrives between the two rather counts as waiting.
        let start = Instant::now();
        self.retry_at = None;
        let target = self.inputs.tables.borrow_and_update().clone()?;
        let outcome = self.program(&target).await;
        let good = outcome.errors.is_empty();
        let objects = outcome.objects;
        self.programmed = good.then(|| Arc::clone(&target.table));
        let outputs = &mut self.outputs;
        let wall = SystemTime::now();
        outputs.health.served(start, outcome.broken, wall);
        outputs.status.update(&target, &self.reconciler, &outcome);
        if outcome.broken.is_empty() {
            self.last = Some((target.epoch, target.revision));
        }
        report(&target, self.last, &outcome, &outputs.reports);
        // No connection waits for what follows.
        outputs.metrics.observe(&outcome, self.reconciler.counts());
        self.tally.follow(&target.table);
        let no_local = self.tally.no_local_endpoints();
        outputs.metrics.observe_no_local_endpoints(no_local);
        outputs.ready.follow(outcome.broken);
        if let Some(facts) = self.reconciler.facts() {
            let (wanted, addresses) = (self.tally.health_checks(), &facts.node_port_addresses);
            outputs.health_checks.apply(wanted, addresses).await;
        }
        if let Err(error) = self.reconciler.settle().await {
            tracing::warn!(%error, "the rules cannot be looked at: they are written anew");
        }
        self.plan_retry(&outcome);
        self.forget_stale_flows(&target).await;
        self.note_drains(&target);
        Some((Arc::clone(&target.table), objects))
    }

    /// Makes the kernel equal to a table, and ours what a kube-proxy left.
    async fn program(&mut self, target: &Subscribed) -> Outcome {
        let table = &target.table;
        if let Err(message) = self.takeover.begin(&mut self.reconciler, table).await {
            return Outcome {
                errors: vec![(None, message)],
                again: true,
                broken: portolan_model::Family::ALL.into_iter().collect(),
                ..Outcome::default()
            };
        }
        let outcome = match target.is_from_disk {
            true => self.reconciler.reconcile_additions(table).await,
            false => self.reconciler.reconcile(table).await,
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => Outcome::unreadable(&error),
        };
        if self.takeover.is_pending() {
            self.takeover_at = Some(Instant::now());
            self.outputs.metrics.observe_takeover(true);
        }
        outcome
    }

    /// What the kernel refused has a pause of its own for each record; what concerns all has another.
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

    /// Tries again in a while, which gets longer each time.
    fn retry(&mut self) {
        self.retry_at = Some(Instant::now() + self.backoff);
        self.backoff = (self.backoff * 2).min(self.timing.sync_period);
    }

    async fn forget_stale_flows(&mut self, target: &Subscribed) {
        if target.is_from_disk {
            // They may lead to where a newer table had them go.
            return;
        }
        let start = Instant::now();
        match self.reconciler.forget_stale_flows(&target.table).await {
            Ok(None) => {}
            Ok(Some(deleted)) => {
                self.flows_failed = false;
                let metrics = &self.outputs.metrics;
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
    fn note_drains(&mut self, target: &Subscribed) {
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

    /// At the nearest deadline, and every few seconds while anything drains or waits to be deleted.
    fn next_look(&self) -> Option<Instant> {
        let put_off = || self.reconciler.has_put_off().then_some(self.timing.drain);
        let nearest = self.drainer.until_nearest().or_else(put_off)?;
        Some(Instant::now() + nearest.min(self.timing.drain))
    }

    async fn drain(&mut self) {
        self.drain_at = None;
        let target = self.inputs.tables.borrow().clone();
        if target.is_some_and(|target| target.is_from_disk) {
            // It deletes nothing: not before a controller has said what is wanted.
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
        if self.reconciler.observed().is_none() {
            self.retry();
            return;
        }
        let Some(target) = self.inputs.tables.borrow().clone() else {
            return;
        };
        self.note_drains(&target);
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

/// Says what was done with a table. Where nothing can be relied on it counts for the last one that
/// was programmed.
fn report(
    target: &Subscribed,
    last: Option<(u64, u64)>,
    outcome: &Outcome,
    reports: &watch::Sender<Option<Report>>,
) {
    if outcome.objects > 0 {
        tracing::info!(
            revision = target.revision,
            objects = outcome.objects,
            duration_ms = outcome.duration.as_secs_f64() * 1e3,
            errors = outcome.errors.len(),
            "programmed"
        );
    }
    let report = last.map(|(epoch, revision)| Report {
        epoch,
        revision,
        duration: target.received_at.elapsed(),
        errors: outcome.errors.clone(),
    });
    let before = reports.borrow().as_ref().map(|last| last.errors.clone());
    log_new_errors(&before.unwrap_or_default(), &outcome.errors);
    if report.is_some() {
        reports.send_replace(report);
    }
}

/// Logs errors that were not there last time: one that stays is said once.
fn log_new_errors(before: &[RecordError], now: &[RecordError]) {
    let before: HashSet<&RecordError> = before.iter().collect();
    let mut new = now.iter().filter(|error| !before.contains(error));
    for (record, message) in new.by_ref().take(MAX_LOGGED_ERRORS) {
        let record = record.as_ref().map(ToString::to_string);
        tracing::warn!(record = record.unwrap_or_default(), "{message}");
    }
    let more = new.count();
    if more > 0 {
        tracing::warn!(more, "and more errors; /debug has all");
    }
}

#[cfg(test)]
mod tests;
