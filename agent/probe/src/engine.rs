// SPDX-License-Identifier: Apache-2.0

//! The engine: one task that owns the state of all load balancers, and runs their probes.

mod counts;
mod pace;
mod publish;
mod ready;
mod runs;
mod settings;
mod slots;
mod start;
mod suspend;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use portolan_health::{
    Administrative, Balancer, Change, LoadBalancer, Outcome, Saved, SavedBalancer, State, Verdicts,
};
use portolan_model::check::Check;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Expired;

pub use counts::{BUCKETS, Counts, Histogram, ResultKind, kind};
pub use settings::{Clock, Limits};

use crate::probe::probe_from;
use crate::{Context, Target};
use publish::Publisher;
use runs::{RunId, Runs, Subscriber};
use slots::Slots;
use start::{Landed, Starter};

/// The load balancers to be checked.
pub type Wanted<K> = OrdMap<K, Arc<LoadBalancer>>;
/// States that operators gave backends, against configuration and checks.
pub type Overrides<K> = OrdMap<(K, SocketAddr), Administrative>;
/// The verdicts about the load balancers. One that is missing has none yet.
pub type Health<K> = OrdMap<K, Arc<Verdicts>>;

/// The key of a load balancer.
pub trait Key: Ord + Clone + Send + Sync + 'static {}

impl<K: Ord + Clone + Send + Sync + 'static> Key for K {}

/// Runner of a probe.
pub trait Prober: Send + Sync + 'static {
    /// Runs a check of a target once, within its timeout from `start` on, which is now: reading the clock is a part of
    /// the cost of a probe.
    fn probe(
        &self,
        check: Arc<Check>,
        target: Target,
        start: Instant,
    ) -> BoxFuture<'static, Outcome>;
}

impl Prober for Context {
    fn probe(
        &self,
        check: Arc<Check>,
        target: Target,
        start: Instant,
    ) -> BoxFuture<'static, Outcome> {
        let context = self.clone();
        Box::pin(async move { probe_from(start, &check, &target, &context).await })
    }
}

/// Inputs of the engine.
#[derive(Debug, Clone)]
pub struct Inputs<K: Ord> {
    /// The load balancers to be checked.
    pub wanted: watch::Receiver<Wanted<K>>,
    /// States that operators gave backends.
    pub overrides: watch::Receiver<Overrides<K>>,
    /// Whether no probe is to run, and every backend keeps its state.
    pub suspended: watch::Receiver<bool>,
    /// Limits of probes that run at one time, and of starts in one second. Another value holds for the next starts.
    pub limits: watch::Receiver<Limits>,
}

/// Outputs of the engine. All of them may be cloned and read at any time.
#[derive(Debug, Clone)]
pub struct Handle<K: Ord> {
    /// The verdicts. Changes within 10 ms are published together, and those of configuration at once.
    pub health: watch::Receiver<Health<K>>,
    /// States to be saved: after changes, at most one a second, and one a minute without. None as long as those of the
    /// last run wait for load balancers.
    pub saved: watch::Receiver<Arc<Saved<K>>>,
    counts: counts::Shared,
}

impl<K: Ord> Handle<K> {
    /// Returns the counts of the engine since it started.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts.read()
    }
}

/// The engine.
pub struct Engine<K: Ord> {
    clock: Clock,
    inputs: Inputs<K>,
    /// The values of the inputs that are in force.
    wanted: Wanted<K>,
    overrides: Overrides<K>,
    is_suspended: bool,
    /// States of the last run, until there are load balancers: they are of no use for those that come later.
    restored: Option<Saved<K>>,
    balancers: BTreeMap<K, Balancer>,
    runs: Runs<K>,
    slots: Slots,
    timers: DelayQueue<RunId>,
    starter: Starter,
    flights: FuturesUnordered<BoxFuture<'static, Landed>>,
    publisher: Publisher<K>,
    counts: counts::Shared,
}

impl<K: Ord> std::fmt::Debug for Engine<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (balancers, running) = (self.balancers.len(), self.flights.len());
        write!(f, "Engine {{ balancers: {balancers}, running: {running} }}")
    }
}

impl<K: Key> Engine<K> {
    /// An engine that has not started. Without a seed, jitter and spread are random. Saved states are those of the first
    /// load balancers that it is given. States of another boot, or of more than ten minutes before that, are ignored.
    pub fn new(
        prober: impl Prober,
        seed: Option<u64>,
        clock: Clock,
        inputs: Inputs<K>,
        restored: Option<Saved<K>>,
    ) -> (Self, Handle<K>) {
        let counts = counts::Shared::default();
        let (publisher, health, saved) = Publisher::new(clock.clone());
        let handle = Handle {
            health,
            saved,
            counts: counts.clone(),
        };
        let engine = Self {
            starter: Starter::new(Box::new(prober), seed, counts.clone()),
            clock,
            inputs,
            wanted: Wanted::new(),
            overrides: Overrides::new(),
            is_suspended: false,
            restored,
            balancers: BTreeMap::new(),
            runs: Runs::new(),
            slots: Slots::new(Instant::now()),
            timers: DelayQueue::new(),
            flights: FuturesUnordered::new(),
            publisher,
            counts,
        };
        (engine, handle)
    }

    /// Probes until the token is cancelled, and then publishes the states once more to be saved, unless those of the
    /// last run still wait for load balancers. Probes that run at that time are dropped.
    pub async fn run(mut self, token: CancellationToken) {
        self.take_limits();
        self.take_suspended();
        self.take_overrides();
        self.take_wanted();
        let mut open = (true, true, true, true);
        loop {
            let next_start = self.start();
            let wake = next_start.into_iter().chain(self.publisher.wake()).min();
            let sleep = async {
                match wake {
                    Some(wake) => sleep_until(wake).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = token.cancelled() => break,
                landed = poll_fn(|context| ready::all(&mut self.flights, context)) => self.land_all(landed),
                expired = poll_fn(|context| ready::all(&mut self.timers, context)) => {
                    self.expire(expired.into_iter().map(Expired::into_inner));
                }
                () = sleep => self.tick(),
                changed = self.inputs.suspended.changed(), if open.2 => {
                    open.2 = changed.is_ok();
                    self.take_suspended();
                }
                changed = self.inputs.limits.changed(), if open.3 => {
                    open.3 = changed.is_ok();
                    self.take_limits();
                }
                changed = self.inputs.wanted.changed(), if open.0 => {
                    open.0 = changed.is_ok();
                    self.take_wanted();
                }
                changed = self.inputs.overrides.changed(), if open.1 => {
                    open.1 = changed.is_ok();
                    self.take_overrides();
                }
            }
        }
        if self.may_save() {
            self.publisher.save(&self.balancers);
        }
    }

    /// Returns `true` if states may be saved. While those of the last run wait for a table, none
    /// are there to replace them.
    fn may_save(&self) -> bool {
        self.restored.is_none()
    }

    /// Takes how many probes run, and how fast they start.
    fn take_limits(&mut self) {
        let limits = *self.inputs.limits.borrow_and_update();
        self.starter.limit(limits, Instant::now());
    }

    /// Takes the load balancers that changed.
    fn take_wanted(&mut self) {
        // Both may have changed: the first probes of new backends must not come before a suspension.
        self.take_suspended();
        // Those of new backends: a verdict without them would be a wrong one.
        self.take_overrides();
        let new = self.inputs.wanted.borrow_and_update().clone();
        let old = std::mem::replace(&mut self.wanted, new.clone());
        let instant = Instant::now();
        let restored = self.restored(&new, self.clock.at(instant));
        for item in old.diff(&new) {
            let (key, before, after) = match item {
                DiffItem::Add(key, after) => (key, None, Some(after)),
                DiffItem::Update { old, new } => (new.0, Some(old.1), Some(new.1)),
                DiffItem::Remove(key, before) => (key, Some(before), None),
            };
            self.take_balancer(key, after, restored.get(key), self.clock.at(instant));
            let (before, after) = (before.map(|each| &**each), after.map(|each| &**each));
            let changed = self.runs.change(key, before, after, instant);
            for timer in changed.removed {
                self.timers.remove(&timer);
            }
            for id in changed.added {
                let delay = self
                    .runs
                    .get(id)
                    .map(|run| self.starter.first(&run.job.check.timers));
                self.schedule(id, instant, delay.unwrap_or_default());
            }
        }
        // Changes of configuration come together already, and somebody may wait for them.
        self.publisher.publish(&mut self.balancers);
    }

    /// The states of the last run for the first load balancers, if they are to be believed now.
    fn restored(&mut self, new: &Wanted<K>, now: Duration) -> BTreeMap<K, SavedBalancer<K>> {
        let saved = self.restored.take_if(|_| !new.is_empty());
        let usable = saved.filter(|saved| saved.is_usable(self.clock.boot(), now));
        let balancers = usable.into_iter().flat_map(|saved| saved.balancers);
        balancers.map(|each| (each.key.clone(), each)).collect()
    }

    fn take_balancer(
        &mut self,
        key: &K,
        new: Option<&Arc<LoadBalancer>>,
        saved: Option<&SavedBalancer<K>>,
        now: Duration,
    ) {
        let Some(new) = new else {
            self.balancers.remove(key);
            self.publisher.note(key);
            return;
        };
        let new = Arc::clone(new);
        if let Some(balancer) = self.balancers.get_mut(key) {
            let changes = balancer.update(new, now);
            self.note_changes(key, &changes);
        } else {
            let mut balancer = Balancer::new(new, saved, now);
            let first = (key.clone(), SocketAddr::from(([0, 0, 0, 0], 0)));
            let overrides = self.overrides.range(first..);
            for ((_, backend), state) in overrides.take_while(|((each, _), _)| each == key) {
                balancer.set_override(*backend, Some(*state));
            }
            self.balancers.insert(key.clone(), balancer);
        }
        self.publisher.note(key);
    }

    /// Takes the overrides that changed.
    fn take_overrides(&mut self) {
        let new = self.inputs.overrides.borrow_and_update().clone();
        let old = std::mem::replace(&mut self.overrides, new.clone());
        for item in old.diff(&new) {
            let ((key, backend), state) = match item {
                DiffItem::Add(place, state)
                | DiffItem::Update {
                    new: (place, state),
                    ..
                } => (place, Some(*state)),
                DiffItem::Remove(place, _) => (place, None),
            };
            if let Some(balancer) = self.balancers.get_mut(key) {
                balancer.set_override(*backend, state);
                self.publisher.note(key);
            }
        }
    }

    /// Queues the runs whose time has come.
    fn expire(&mut self, ids: impl IntoIterator<Item = RunId>) {
        let now = Instant::now();
        for id in ids {
            if let Some(run) = self.runs.get_mut(id) {
                run.timer = None;
                run.noticed = now;
                self.starter.queue(id, &run.job.check.probe);
            }
        }
    }

    /// Starts what is queued, and tells when more may start by time alone.
    fn start(&mut self) -> Option<Instant> {
        // Reading the clock is a part of the cost of a probe.
        if !self.starter.has_queued() {
            return None;
        }
        let now = Instant::now();
        while let Some(next) = self.starter.next(now) {
            let Ok(id) = next else {
                return next.err();
            };
            if let Some(run) = self.runs.get_mut(id) {
                run.is_running = true;
                self.flights.push(self.starter.start(id, run, now));
            }
        }
        None
    }

    fn land_all(&mut self, all: Vec<Landed>) {
        let now = Instant::now();
        all.into_iter().for_each(|landed| self.land(landed, now));
    }

    /// Tells a result to all whom it is for, and sets the time of the next.
    fn land(&mut self, landed: Landed, instant: Instant) {
        let landed = self.starter.landed(landed, instant);
        let Some(run) = self.runs.get_mut(landed.id) else {
            return;
        };
        run.is_running = false;
        if self.is_suspended {
            return;
        }
        // Lent, not cloned: most have one, whose key is several strings.
        let subscribers = std::mem::take(&mut run.subscribers);
        let next = self.tell(&subscribers, &landed, self.clock.at(instant));
        if let Some(run) = self.runs.get_mut(landed.id) {
            run.subscribers = subscribers;
        }
        let delay = next.unwrap_or(landed.check.timers.interval);
        let delay = self.starter.jitter(delay);
        self.schedule(landed.id, instant, delay);
    }

    /// Tells a result to its subscribers, and returns the delay until they want the next one.
    fn tell(
        &mut self,
        subscribers: &[Subscriber<K>],
        landed: &Landed,
        now: Duration,
    ) -> Option<Duration> {
        let mut next = None;
        for Subscriber {
            balancer: key,
            backend,
            check,
        } in subscribers
        {
            let Some(balancer) = self.balancers.get_mut(key) else {
                continue;
            };
            let told = balancer.take(*backend, *check, &landed.outcome, now);
            let Some(told) = told else {
                continue;
            };
            next = next.into_iter().chain([told.next]).min();
            if told.is_news {
                self.publisher.note(key);
            }
            let change = told.change.map(|change| (*backend, change));
            self.note_changes(key, change.as_slice());
            self.log_failure(key, *backend, landed);
        }
        next
    }

    /// Takes what happens by time alone: the end and the steps of ramps, publishing and saving.
    fn tick(&mut self) {
        let now = self.clock.at(Instant::now());
        let mut ticked = Vec::new();
        for key in self.publisher.ramping(now) {
            let changes = self
                .balancers
                .get_mut(&key)
                .map(|balancer| balancer.tick(now));
            ticked.push((key, changes.unwrap_or_default()));
        }
        for (key, changes) in ticked {
            self.note_changes(&key, &changes);
            self.publisher.note(&key);
        }
        let may_save = self.may_save();
        self.publisher.work(&mut self.balancers, may_save);
    }

    /// Sets the time of a run's next probe; none while they are suspended.
    fn schedule(&mut self, id: RunId, now: Instant, delay: Duration) {
        if self.is_suspended {
            return;
        }
        if let Some(run) = self.runs.get_mut(id) {
            run.due = self.slots.start(now, delay);
            run.timer = Some(self.timers.insert_at(id, run.due));
        }
    }

    fn note_changes(&mut self, key: &K, changes: &[(SocketAddr, Change)]) {
        for (backend, change) in changes {
            let name = self
                .balancers
                .get(key)
                .map(|balancer| Arc::clone(&balancer.wanted().name));
            let (name, reason) = (name.unwrap_or_default(), change.reason.as_deref());
            match (change.from.is_up(), change.to) {
                (_, State::Down) => {
                    self.counts.write(|counts| counts.falls += 1);
                    tracing::info!(load_balancer = %name, %backend, reason, "backend is down");
                }
                (false, State::Up | State::Ramping) => {
                    self.counts.write(|counts| counts.rises += 1);
                    tracing::info!(load_balancer = %name, %backend, "backend is up");
                }
                (true, _) | (_, State::Probing) => {}
            }
        }
    }

    fn log_failure(&self, key: &K, backend: SocketAddr, landed: &Landed) {
        let name = || {
            self.balancers
                .get(key)
                .map(|balancer| Arc::clone(&balancer.wanted().name))
        };
        match &landed.outcome {
            Outcome::Fail(reason) if landed.check.log_failures => {
                let name = name().unwrap_or_default();
                tracing::info!(load_balancer = %name, %backend, %reason, "check failed");
            }
            Outcome::NoVerdict(reason) => {
                let name = name().unwrap_or_default();
                tracing::debug!(load_balancer = %name, %backend, %reason, "check without verdict");
            }
            _ => {}
        }
    }
}

/// The keys of load balancers whose verdicts may have changed.
type Dirty<K> = BTreeSet<K>;
