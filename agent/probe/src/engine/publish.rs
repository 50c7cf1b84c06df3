// SPDX-License-Identifier: Apache-2.0

//! Verdicts and saved states, as the engine publishes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use portolan_health::{Balancer, Saved};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Clock, Dirty, Health, Key};

/// Changes within this time are published together.
const COALESCE: Duration = Duration::from_millis(10);
/// The shortest time between two saved states.
const SAVE_BETWEEN: Duration = Duration::from_secs(1);
/// The longest time between two saved states: younger than those that are not believed.
const SAVE_AT_LEAST: Duration = Duration::from_secs(60);

/// Publisher of changed verdicts and states, with the times at which they are due.
#[derive(Debug)]
pub(super) struct Publisher<K: Ord> {
    clock: Clock,
    dirty: Dirty<K>,
    /// When `dirty` got its first key.
    dirty_since: Option<Instant>,
    /// When verdicts change by time alone, by load balancer.
    ramps: BTreeMap<K, Duration>,
    has_unsaved: bool,
    saved_at: Instant,
    health: watch::Sender<Health<K>>,
    saved: watch::Sender<Arc<Saved<K>>>,
}

type Published<K> = (
    Publisher<K>,
    watch::Receiver<Health<K>>,
    watch::Receiver<Arc<Saved<K>>>,
);

impl<K: Key> Publisher<K> {
    pub(super) fn new(clock: Clock) -> Published<K> {
        let (health, health_receiver) = watch::channel(Health::new());
        let now = Instant::now();
        let (saved, saved_receiver) = watch::channel(Arc::new(Saved {
            boot: clock.boot().to_owned(),
            at: clock.at(now),
            balancers: Vec::new(),
        }));
        let publisher = Self {
            clock,
            dirty: Dirty::new(),
            dirty_since: None,
            ramps: BTreeMap::new(),
            has_unsaved: false,
            saved_at: now,
            health,
            saved,
        };
        (publisher, health_receiver, saved_receiver)
    }

    /// Notes that verdicts about a load balancer may have changed.
    pub(super) fn note(&mut self, key: &K) {
        self.dirty.insert(key.clone());
        self.dirty_since.get_or_insert_with(Instant::now);
    }

    /// When there is work by time alone.
    pub(super) fn wake(&self) -> Option<Instant> {
        let publish = self.dirty_since.map(|since| since + COALESCE);
        let ramp = self
            .ramps
            .values()
            .min()
            .map(|time| self.clock.instant(*time));
        let times = [publish, ramp, Some(self.save_at())];
        times.into_iter().flatten().min()
    }

    fn save_at(&self) -> Instant {
        let between = if self.has_unsaved {
            SAVE_BETWEEN
        } else {
            SAVE_AT_LEAST
        };
        self.saved_at + between
    }

    /// Takes the load balancers whose verdicts change now by time alone. They are to be noted:
    /// publishing finds their next times.
    pub(super) fn ramping(&mut self, now: Duration) -> Vec<K> {
        let due = |(_, time): &(&K, &Duration)| **time <= now;
        let keys: Vec<K> = self
            .ramps
            .iter()
            .filter(due)
            .map(|(key, _)| key.clone())
            .collect();
        for key in &keys {
            self.ramps.remove(key);
        }
        keys
    }

    /// Publishes and saves what is due. Where nothing may be saved, saving waits once more.
    pub(super) fn work(&mut self, balancers: &mut BTreeMap<K, Balancer>, may_save: bool) {
        let now = Instant::now();
        if self
            .dirty_since
            .is_some_and(|since| since + COALESCE <= now)
        {
            self.publish(balancers);
        }
        if self.save_at() <= now {
            match may_save {
                true => self.save(balancers),
                false => self.saved_at = now,
            }
        }
    }

    /// Publishes the verdicts that have changed.
    pub(super) fn publish(&mut self, balancers: &mut BTreeMap<K, Balancer>) {
        let now = self.clock.at(Instant::now());
        let mut health = self.health.borrow().clone();
        let mut is_changed = false;
        self.dirty_since = None;
        for key in std::mem::take(&mut self.dirty) {
            let Some(balancer) = balancers.get_mut(&key) else {
                self.ramps.remove(&key);
                is_changed |= health.remove(&key).is_some();
                continue;
            };
            match balancer.next_tick(now) {
                Some(next) => self.ramps.insert(key.clone(), next),
                None => self.ramps.remove(&key),
            };
            let verdicts = balancer.verdicts(now);
            if health.get(&key).is_none_or(|old| **old != verdicts) {
                health.insert(key, Arc::new(verdicts));
                is_changed = true;
            }
        }
        self.has_unsaved |= is_changed;
        if is_changed {
            self.health.send_replace(health);
        }
    }

    /// Publishes the states to be saved.
    pub(super) fn save(&mut self, balancers: &BTreeMap<K, Balancer>) {
        let now = Instant::now();
        let saved = balancers
            .iter()
            .map(|(key, balancer)| balancer.save(key.clone()));
        self.saved.send_replace(Arc::new(Saved {
            boot: self.clock.boot().to_owned(),
            at: self.clock.at(now),
            balancers: saved.collect(),
        }));
        (self.has_unsaved, self.saved_at) = (false, now);
    }
}
