//! When to reconcile.

use std::sync::Arc;
use std::time::Duration;

use portolan_dataplane::Dataplane;
use portolan_runtime::BlockReady;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Outcome, Reconciler};
use crate::metrics::ReconcileMetrics;
use crate::status::Status;
use crate::subscribe::{Report, Subscribed};

/// How long to wait for what.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Between two full comparisons with the kernel.
    pub sync_period: Duration,
    /// Before the first retry after an error; doubles up to the sync period.
    pub retry: Duration,
    /// Between two looks at the connections of draining real servers.
    pub drain: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            sync_period: Duration::from_secs(30),
            retry: Duration::from_secs(1),
            drain: Duration::from_secs(5),
        }
    }
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
    /// Not ready until the first table is programmed.
    pub unready: Option<BlockReady>,
}

/// Keeps the kernel equal to the newest table until the token is cancelled. Touches nothing before
/// the first table is in; leaves everything in place at the end.
pub async fn run<D: Dataplane>(
    mut reconciler: Reconciler<D>,
    mut tables: watch::Receiver<Option<Arc<Subscribed>>>,
    timing: Timing,
    mut outlets: Outlets,
    token: CancellationToken,
) {
    let mut sync = interval_at(Instant::now() + timing.sync_period, timing.sync_period);
    sync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut drain = interval_at(Instant::now() + timing.drain, timing.drain);
    drain.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut backoff = timing.retry;
    let mut retry_at: Option<Instant> = None;
    loop {
        let retry = async {
            match retry_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = token.cancelled() => return,
            changed = tables.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            _ = sync.tick() => reconciler.forget(),
            () = retry => {}
            _ = drain.tick() => {
                if let Err(error) = reconciler.finish_drains().await {
                    tracing::warn!(%error, "connections of draining real servers cannot be read");
                }
                continue;
            }
        }
        let Some(target) = tables.borrow_and_update().clone() else {
            continue;
        };
        let good = once(&mut reconciler, &target, &mut outlets).await;
        if good {
            (backoff, retry_at) = (timing.retry, None);
        } else {
            retry_at = Some(Instant::now() + backoff);
            backoff = (backoff * 2).min(timing.sync_period);
        }
    }
}

/// Reconciles once and tells; whether all went well.
async fn once<D: Dataplane>(
    reconciler: &mut Reconciler<D>,
    target: &Subscribed,
    outlets: &mut Outlets,
) -> bool {
    let outcome = reconciler
        .reconcile(&target.table)
        .await
        .unwrap_or_else(|error| Outcome {
            errors: vec![(None, format!("the kernel cannot be read: {error}"))],
            ..Outcome::default()
        });
    let good = outcome.errors.is_empty();
    outlets.metrics.observe(&outcome, reconciler.known());
    outlets.status.update(target, reconciler, &outcome);
    if good {
        outlets.unready = None;
    }
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
        errors: outcome.errors,
    };
    tell_new_errors(&outlets.reports, &report);
    outlets.reports.send_replace(Some(report));
    good
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
