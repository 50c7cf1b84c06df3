// SPDX-License-Identifier: Apache-2.0

//! Probes and their subscribers. Equal probes of several load balancers are one run.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use portolan_health::LoadBalancer;
use portolan_model::check::Check;
use tokio::time::Instant;
use tokio_util::time::delay_queue;

use crate::Target;

/// A check of a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Job {
    pub(super) check: Arc<Check>,
    pub(super) target: Target,
}

/// Number of a run; never used twice.
pub(super) type RunId = u64;

/// Whom a run is for: a check, by its place, of a backend of a load balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subscriber<K> {
    pub(super) balancer: K,
    pub(super) backend: SocketAddr,
    pub(super) check: usize,
}

/// One job, done again and again.
#[derive(Debug)]
pub(super) struct Run<K> {
    pub(super) job: Arc<Job>,
    /// At least one.
    pub(super) subscribers: Vec<Subscriber<K>>,
    /// Its place among the timers; `None` while it is queued, running or suspended.
    pub(super) timer: Option<delay_queue::Key>,
    /// Whether a probe runs.
    pub(super) is_running: bool,
    /// When it is, or was, to start.
    pub(super) due: Instant,
    /// When the engine noticed that it is due.
    pub(super) noticed: Instant,
}

/// All runs.
#[derive(Debug)]
pub(super) struct Runs<K> {
    by_job: HashMap<Arc<Job>, RunId, RandomState>,
    by_id: HashMap<RunId, Run<K>, RandomState>,
    next: RunId,
}

/// The jobs of one load balancer, by backend and check.
type Jobs = BTreeMap<(SocketAddr, usize), Job>;

/// Runs that came and went with a change of a load balancer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Runs without a timer, new ones.
    pub(super) added: Vec<RunId>,
    /// Timers of runs that are no more.
    pub(super) removed: Vec<delay_queue::Key>,
}

impl<K: Clone + Eq> Runs<K> {
    pub(super) fn new() -> Self {
        Self {
            by_job: HashMap::default(),
            by_id: HashMap::default(),
            next: 0,
        }
    }

    pub(super) fn get(&self, id: RunId) -> Option<&Run<K>> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: RunId) -> Option<&mut Run<K>> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = (RunId, &mut Run<K>)> {
        self.by_id.iter_mut().map(|(id, run)| (*id, run))
    }

    /// Makes runs those of another configuration of a load balancer. What stays the same keeps its
    /// run and its time.
    pub(super) fn change(
        &mut self,
        balancer: &K,
        old: Option<&LoadBalancer>,
        new: Option<&LoadBalancer>,
        now: Instant,
    ) -> Changed {
        let (old, new) = (
            old.map(jobs).unwrap_or_default(),
            new.map(jobs).unwrap_or_default(),
        );
        let mut changed = Changed::default();
        let subscriber = |(backend, check): &(SocketAddr, usize)| Subscriber {
            balancer: balancer.clone(),
            backend: *backend,
            check: *check,
        };
        for (place, job) in &new {
            if old.get(place) != Some(job) {
                changed
                    .added
                    .extend(self.subscribe(job, subscriber(place), now));
            }
        }
        for (place, job) in &old {
            if new.get(place) != Some(job) {
                changed
                    .removed
                    .extend(self.unsubscribe(job, &subscriber(place)));
            }
        }
        // What was added for one place may have been removed for another.
        changed.added.retain(|id| self.by_id.contains_key(id));
        changed
    }

    /// Gives the run if it is new.
    fn subscribe(&mut self, job: &Job, subscriber: Subscriber<K>, now: Instant) -> Option<RunId> {
        if let Some(run) = self.by_job.get(job).and_then(|id| self.by_id.get_mut(id)) {
            run.subscribers.push(subscriber);
            return None;
        }
        let (id, job) = (self.next, Arc::new(job.clone()));
        self.next += 1;
        self.by_job.insert(Arc::clone(&job), id);
        let run = Run {
            job,
            subscribers: vec![subscriber],
            timer: None,
            is_running: false,
            due: now,
            noticed: now,
        };
        self.by_id.insert(id, run);
        Some(id)
    }

    /// Gives the timer of the run if that was its last subscriber.
    fn unsubscribe(&mut self, job: &Job, subscriber: &Subscriber<K>) -> Option<delay_queue::Key> {
        let id = *self.by_job.get(job)?;
        let run = self.by_id.get_mut(&id)?;
        run.subscribers.retain(|each| each != subscriber);
        if !run.subscribers.is_empty() {
            return None;
        }
        self.by_job.remove(job);
        self.by_id.remove(&id)?.timer
    }
}

/// The jobs of a load balancer. A check through a virtual server that is missing has none.
fn jobs(balancer: &LoadBalancer) -> Jobs {
    let mut jobs = Jobs::new();
    for (address, backend) in &balancer.backends {
        for (place, assigned) in backend.checks.iter().enumerate() {
            if let Some(target) = Target::of(balancer, *address, assigned) {
                let check = Arc::clone(&assigned.check);
                jobs.insert((*address, place), Job { check, target });
            }
        }
    }
    jobs
}
