// SPDX-License-Identifier: Apache-2.0

//! A zone with one writer and many readers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::input::{NamesChange, Subject};
use crate::zone::{Applied, Zone};

/// A zone behind a lock. A reader waits for one change at most, and a change for the answers that
/// are being made; both take microseconds.
#[derive(Debug)]
pub struct SharedZone {
    zone: RwLock<Zone>,
    subscribers: Mutex<Vec<Weak<Inbox>>>,
    #[cfg(test)]
    reads: std::sync::atomic::AtomicUsize,
}

impl SharedZone {
    /// Shares a zone.
    #[must_use]
    pub fn new(zone: Zone) -> Self {
        Self {
            zone: RwLock::new(zone),
            subscribers: Mutex::default(),
            #[cfg(test)]
            reads: 0.into(),
        }
    }

    /// The number of times that it was locked for reading.
    #[cfg(test)]
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Applies changes one by one: questions are answered between two of them.
    pub fn apply(&self, changes: impl IntoIterator<Item = NamesChange>) -> Applied {
        let mut all = Applied::default();
        for change in changes {
            let mut zone = self.zone.write().unwrap_or_else(PoisonError::into_inner);
            all.extend(zone.apply(change));
        }
        if !all.subjects.is_empty() {
            self.tell(&Dirty::Some(all.subjects.clone()));
        }
        all
    }

    /// Replaces the zone at once, after a new listing.
    pub fn replace(&self, mut zone: Zone) {
        let mut place = self.zone.write().unwrap_or_else(PoisonError::into_inner);
        zone.succeed(&place);
        let old = std::mem::replace(&mut *place, zone);
        drop(place);
        // Freed outside of the lock, since a large zone takes a while.
        drop(old);
        self.tell(&Dirty::All);
    }

    /// The zone as it is now. Changes wait for as long as this is held: hold it shortly, and not
    /// across an `await`.
    pub fn read(&self) -> RwLockReadGuard<'_, Zone> {
        #[cfg(test)]
        self.reads
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.zone.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to changes; `who` labels the subscriber's metrics. The first changes are
    /// [`Dirty::All`].
    #[must_use]
    pub fn subscribe(&self, who: &'static str) -> Subscription {
        let inbox = Arc::new(Inbox {
            who,
            ..Inbox::default()
        });
        inbox.put(&Dirty::All);
        let mut subscribers = self
            .subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        subscribers.push(Arc::downgrade(&inbox));
        Subscription { inbox }
    }

    /// The age of each subscriber's oldest unhandled change; zero if there is none.
    #[must_use]
    pub fn lags(&self) -> Vec<(&'static str, Duration)> {
        let subscribers = self
            .subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let inboxes = subscribers.iter().filter_map(Weak::upgrade);
        inboxes.map(|inbox| (inbox.who, inbox.age())).collect()
    }

    fn tell(&self, dirty: &Dirty) {
        let mut subscribers = self
            .subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        subscribers.retain(|subscriber| match subscriber.upgrade() {
            Some(inbox) => {
                inbox.put(dirty);
                true
            }
            None => false,
        });
    }
}

/// The changes that a subscriber has not received yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dirty {
    /// These subjects may have changed.
    Some(BTreeSet<Subject>),
    /// Any subject may have changed.
    All,
}

impl Dirty {
    fn add(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Some(mine), Self::Some(more)) => mine.extend(more.iter().cloned()),
            _ => *self = Self::All,
        }
    }
}

#[derive(Debug, Default)]
struct Inbox {
    who: &'static str,
    /// The time of the oldest unhandled change.
    since: Mutex<Option<Instant>>,
    /// At most as large as the zone, however slow the subscriber is.
    dirty: Mutex<Option<Dirty>>,
    filled: Notify,
}

impl Inbox {
    fn put(&self, more: &Dirty) {
        let mut dirty = self.dirty.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *dirty {
            Some(dirty) => dirty.add(more),
            None => *dirty = Some(more.clone()),
        }
        drop(dirty);
        self.since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(Instant::now);
        self.filled.notify_one();
    }

    fn age(&self) -> Duration {
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Marks received changes as handled. Changes since then count from now.
    fn done(&self) {
        let dirty = self.dirty.lock().unwrap_or_else(PoisonError::into_inner);
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        *since = dirty.is_some().then(Instant::now);
    }

    fn take_dirty(&self) -> Option<Dirty> {
        self.dirty
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// A subscription to the changes of a zone.
#[derive(Debug)]
pub struct Subscription {
    inbox: Arc<Inbox>,
}

impl Subscription {
    /// Waits for changes, and returns all since the last call.
    pub async fn changed(&mut self) -> Dirty {
        loop {
            if let Some(dirty) = self.inbox.take_dirty() {
                return dirty;
            }
            self.inbox.filled.notified().await;
        }
    }

    /// Marks all received changes as handled.
    pub fn done(&self) {
        self.inbox.done();
    }

    /// Puts back changes that could not be handled.
    pub fn put_back(&self, dirty: &Dirty) {
        self.inbox.put(dirty);
    }
}
