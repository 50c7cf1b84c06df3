// SPDX-License-Identifier: Apache-2.0

//! The tokens of live streams, and the order of their reviews.
//!
//! Verification by keys alone does not notice that a token's pod was deleted. So the API server is
//! asked about each token from time to time. This module schedules the reviews and ends streams;
//! its caller asks the API server.
//!
//! Invariants: each known token is in the queue exactly once, at the time of its turn. A revoked
//! token admits no stream before a review finds it good.

mod entry;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use entry::{ReviewEntry, Turn};

/// Shortest time from a review of a revoked token to the next one, if its agent comes back: a wrong
/// review must not keep a node out for long.
const APPEAL: Duration = Duration::from_secs(60);

/// The result of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The API server accepts the token.
    Good,
    /// The API server does not accept the token any more.
    Revoked,
    /// The API server gave no answer. Nothing changes; the token is reviewed at its next turn.
    Unknown,
}

/// The tokens of live streams, each of which is reviewed once in a period.
pub struct Reviews {
    period: Duration,
    hasher: RandomState,
    state: Mutex<State>,
    /// Notified when the earliest turn may have changed.
    more: Notify,
}

/// The hash of a token. Its seed is random in each process, so collisions cannot be constructed.
type Id = u64;

#[derive(Default)]
struct State {
    entries: HashMap<Id, ReviewEntry>,
    queue: BTreeSet<(Instant, Id)>,
}

/// A token whose turn it is.
pub struct Due {
    id: Id,
    node: Arc<str>,
    token: Arc<str>,
}

/// The watch of a stream's token. A stream holds it while it lives.
#[derive(Debug)]
pub struct Reviewed {
    reviews: Arc<Reviews>,
    id: Id,
    revoked: CancellationToken,
}

impl Reviews {
    /// Creates reviews of no tokens. Each token has its turn once in a period.
    #[must_use]
    pub fn new(period: Duration) -> Arc<Self> {
        Arc::new(Self {
            period,
            hasher: RandomState::new(),
            state: Mutex::default(),
            more: Notify::new(),
        })
    }

    /// Begins to watch the token of a node's stream, which was verified and expires after
    /// `expires`. Returns `None` if it was found to be revoked.
    #[must_use]
    pub fn watch(self: &Arc<Self>, node: &str, token: &str, expires: Duration) -> Option<Reviewed> {
        let (id, now) = (self.hasher.hash_one(token), Instant::now());
        let mut state = self.lock();
        let State { entries, queue } = &mut *state;
        let entry = entries.entry(id).or_insert_with(|| {
            queue.insert((now, id));
            ReviewEntry::new(node, now, expires)
        });
        // A token that waits for its turn keeps its place, however often it is presented.
        let waits = entry.token.is_some();
        entry.token.get_or_insert_with(|| token.into());
        let is_revoked = entry.is_revoked;
        entry.streams += usize::from(!is_revoked);
        let revoked = entry.revoked.clone();
        if is_revoked && !waits {
            let pause = APPEAL.min(self.period);
            state.change(id, |entry| entry.appeal(now, pause));
        }
        drop(state);
        self.more.notify_one();
        (!is_revoked).then(|| Reviewed {
            reviews: Arc::clone(self),
            id,
            revoked,
        })
    }

    /// Waits for a turn. The token that has waited longest is first. Its next turn is a period
    /// later, except for a revoked token, whose next turn follows when it is presented again.
    pub async fn next(&self) -> Due {
        loop {
            let turn = self.lock().take_due(Instant::now(), self.period);
            match turn {
                Ok(due) => return due,
                // The earliest turn is read again at its time, and after a notification.
                Err(Some(at)) => drop(timeout_at(at, self.more.notified()).await),
                Err(None) => self.more.notified().await,
            }
        }
    }

    /// Records the result of a review. Returns whether the token has changed between good and
    /// revoked. A token without a review counts as good.
    pub fn report(&self, due: &Due, verdict: Verdict) -> bool {
        let now = Instant::now();
        let mut state = self.lock();
        match verdict {
            Verdict::Unknown => false,
            Verdict::Good => state.change(due.id, |entry| entry.found_good(now + self.period)),
            Verdict::Revoked => state.change(due.id, ReviewEntry::found_revoked),
        }
    }

    /// Ends the watch of a stream.
    fn release(&self, id: Id) {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(&id) else {
            return;
        };
        entry.streams = entry.streams.saturating_sub(1);
        if entry.streams > 0 || entry.is_revoked {
            return;
        }
        entry.token = None;
        // A token that was reviewed stays known, so that it has no early turn if its agent is back
        // at once.
        if entry.asked.is_none() {
            let due = entry.due;
            state.queue.remove(&(due, id));
            state.entries.remove(&id);
        }
    }

    /// Locks the state. A poisoned lock is usable: no panic leaves a change incomplete.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the token whose turn it is. Otherwise returns the time of the earliest turn, if there
    /// is one.
    fn take_due(&mut self, now: Instant, period: Duration) -> Result<Due, Option<Instant>> {
        loop {
            let (at, id) = *self.queue.first().ok_or(None)?;
            if at > now {
                return Err(Some(at));
            }
            self.queue.pop_first();
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            let turn = entry.turn(now, period);
            let (due, node) = (entry.due, Arc::clone(&entry.node));
            if matches!(turn, Turn::Forget) {
                self.entries.remove(&id);
                continue;
            }
            self.queue.insert((due, id));
            if let Turn::Ask(token) = turn {
                return Ok(Due { id, node, token });
            }
        }
    }

    /// Changes an entry, and its place in the queue.
    fn change<R: Default>(&mut self, id: Id, change: impl FnOnce(&mut ReviewEntry) -> R) -> R {
        let Some(entry) = self.entries.get_mut(&id) else {
            return R::default();
        };
        self.queue.remove(&(entry.due, id));
        let result = change(entry);
        self.queue.insert((entry.due, id));
        result
    }
}

impl Due {
    /// The node that the token is bound to.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The token. It must not be logged.
    #[must_use]
    pub fn token(&self) -> Arc<str> {
        Arc::clone(&self.token)
    }
}

impl Reviewed {
    /// Completes when the token was found to be revoked.
    pub async fn revoked(&self) {
        self.revoked.cancelled().await;
    }
}

impl Drop for Reviewed {
    fn drop(&mut self) {
        self.reviews.release(self.id);
    }
}

impl fmt::Debug for Reviews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.lock().entries.len();
        f.debug_struct("Reviews")
            .field("period", &self.period)
            .field("known", &known)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Due")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
