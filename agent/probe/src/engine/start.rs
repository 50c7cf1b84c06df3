// SPDX-License-Identifier: Apache-2.0

//! The start of probes: limits, rate, jitter, and whether the engine was late.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::BoxFuture;
use portolan_health::Outcome;
use portolan_model::check::{Check, Probe, Timers};
use tokio::time::Instant;

use super::counts::Shared;
use super::pace::Pace;
use super::runs::{Run, RunId};
use super::{Limits, Prober};

/// First probes are spread over the interval, but over no longer time than this.
const SPREAD: Duration = Duration::from_secs(5);
/// After a suspension, the next probes are spread over no longer time than this: their states may be old.
const SPREAD_AFTER_SUSPENSION: Duration = Duration::from_secs(1);
/// Warnings that this machine keeps probes from their work are this far apart.
const WARNINGS: Duration = Duration::from_secs(60);

/// A probe that has ended.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) id: RunId,
    pub(super) check: Arc<Check>,
    pub(super) outcome: Outcome,
    started: Instant,
    /// Time from when the probe was due until the engine noticed.
    late: Duration,
}

/// Runs that are due, and the limits of how many run.
pub(super) struct Starter {
    prober: Box<dyn Prober>,
    counts: Shared,
    random: Rng,
    pace: Pace,
    /// Programs, and all other probes.
    lanes: [Lane; 2],
    warned: Option<Instant>,
}

/// Runs under one limit.
#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<RunId>,
    running: usize,
    limit: usize,
}

impl Lane {
    /// Sets how many may run, at least 1. Those that run go on.
    fn allow(&mut self, limit: usize) {
        self.limit = limit.max(1);
    }
}

fn lane(probe: &Probe) -> usize {
    usize::from(!matches!(probe, Probe::Exec(_)))
}

impl Starter {
    /// Without a seed, jitter and spread are random.
    pub(super) fn new(prober: Box<dyn Prober>, seed: Option<u64>, counts: Shared) -> Self {
        let limits = Limits::default();
        let mut this = Self {
            prober,
            counts,
            random: seed.map_or_else(Rng::new, Rng::with_seed),
            pace: Pace::new(limits.per_second, Instant::now()),
            lanes: Default::default(),
            warned: None,
        };
        this.limit(limits, Instant::now());
        this
    }

    /// Sets the limits of what starts from now on.
    pub(super) fn limit(&mut self, limits: Limits, now: Instant) {
        let [programs, others] = &mut self.lanes;
        programs.allow(limits.program_concurrency);
        others.allow(limits.concurrency);
        self.pace.set(limits.per_second, now);
    }

    /// The delay of a first probe.
    pub(super) fn first(&mut self, timers: &Timers) -> Duration {
        timers.interval.min(SPREAD).mul_f64(self.random.f64())
    }

    /// The delay of a probe after a suspension.
    pub(super) fn soon(&mut self, timers: &Timers) -> Duration {
        let spread = timers.interval.min(SPREAD_AFTER_SUSPENSION);
        spread.mul_f64(self.random.f64())
    }

    /// A delay with jitter: 10 % more or less.
    pub(super) fn jitter(&mut self, delay: Duration) -> Duration {
        delay.mul_f64(0.9 + 0.2 * self.random.f64())
    }

    pub(super) fn queue(&mut self, id: RunId, probe: &Probe) {
        self.lanes[lane(probe)].queue.push_back(id);
    }

    /// Forgets the runs that wait.
    pub(super) fn clear(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.queue.clear());
    }

    /// Returns `true` if any run waits for its start.
    pub(super) fn has_queued(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.queue.is_empty())
    }

    /// The next run to start, or when there is one; `None` if that depends on probes that end.
    pub(super) fn next(&mut self, now: Instant) -> Option<Result<RunId, Instant>> {
        let free = |lane: &&mut Lane| lane.running < lane.limit && !lane.queue.is_empty();
        let lane = self.lanes.iter_mut().find(free)?;
        if let Err(later) = self.pace.take(now) {
            return Some(Err(later));
        }
        lane.queue.pop_front().map(Ok)
    }

    pub(super) fn start<K>(
        &mut self,
        id: RunId,
        run: &Run<K>,
        now: Instant,
    ) -> BoxFuture<'static, Landed> {
        let check = Arc::clone(&run.job.check);
        self.lanes[lane(&check.probe)].running += 1;
        self.counts.started(now.saturating_duration_since(run.due));
        let late = run.noticed.saturating_duration_since(run.due);
        let probe = self
            .prober
            .probe(Arc::clone(&check), run.job.target.clone(), now);
        Box::pin(async move {
            Landed {
                id,
                outcome: probe.await,
                check,
                started: now,
                late,
            }
        })
    }

    /// Counts an end. A failure is no verdict if the engine was late by more than an interval: it may
    /// have been stopped while the backend answered.
    pub(super) fn landed(&mut self, mut landed: Landed, now: Instant) -> Landed {
        let Timers {
            timeout, interval, ..
        } = landed.check.timers;
        let took = now.saturating_duration_since(landed.started);
        let late = landed.late.max(took.saturating_sub(timeout));
        if late > interval && matches!(landed.outcome, Outcome::Fail(_)) {
            landed.outcome = Outcome::no_verdict(format!("this agent was late by {late:.1?}"));
        }
        if let Outcome::NoVerdict(reason) = &landed.outcome
            && self.warned.is_none_or(|warned| now - warned >= WARNINGS)
        {
            self.warned = Some(now);
            tracing::warn!(%reason, "checks give no verdicts because of this machine");
        }
        self.lanes[lane(&landed.check.probe)].running -= 1;
        self.counts
            .ended(&landed.check.probe, &landed.outcome, took);
        landed
    }
}

impl std::fmt::Debug for Starter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Starter({:?}, {:?})", self.pace, self.lanes)
    }
}
