//! The tokens that streams go by, and which of them is to be reviewed next.
//!
//! Whoever verifies a token by keys alone does not see that its pod was deleted. So the API server is
//! asked about it now and then, by somebody else: this knows whose turn it is, and ends streams.
//!
//! Invariant: each token that is known here stands in the queue once, at the time of its turn; and one
//! that was found to be revoked lets nobody in before a review finds it good.

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

/// How soon one that was found to be revoked may be asked about again, if its agent comes back: a
/// review that was wrong must not keep a node out for long.
const APPEAL: Duration = Duration::from_secs(60);

/// What came of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The API server takes the token.
    Good,
    /// It does not, any more.
    Revoked,
    /// It could not say. Nothing changes; the token is asked about at its next turn.
    Unknown,
}

/// The tokens of live streams, each of which is to be reviewed once in a period.
pub struct Reviews {
    period: Duration,
    hasher: RandomState,
    state: Mutex<State>,
    /// Notified when there is one whose turn may be sooner than all others'.
    more: Notify,
}

/// What a token is known by. Seeded anew in each process, so that nobody can make up two of the same.
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

/// What a stream holds that goes by a token.
#[derive(Debug)]
pub struct Reviewed {
    reviews: Arc<Reviews>,
    id: Id,
    revoked: CancellationToken,
}

impl Reviews {
    /// Knows no token yet. Each will have its turn at most once in a period.
    #[must_use]
    pub fn new(period: Duration) -> Arc<Self> {
        Arc::new(Self {
            period,
            hasher: RandomState::new(),
            state: Mutex::default(),
            more: Notify::new(),
        })
    }

    /// A stream of a node begins that goes by a token, which was verified and expires after a time.
    /// `None` if it was found to be revoked.
    #[must_use]
    pub fn watch(self: &Arc<Self>, node: &str, token: &str, expires: Duration) -> Option<Reviewed> {
        let (id, now) = (self.hasher.hash_one(token), Instant::now());
        let mut state = self.lock();
        let State { entries, queue } = &mut *state;
        let entry = entries.entry(id).or_insert_with(|| {
            queue.insert((now, id));
            ReviewEntry::new(node, now, expires)
        });
        // One that waits for its turn keeps its place, however often it comes back.
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

    /// Waits for a turn. The one that has waited longest is first; its next turn is a period later,
    /// whatever comes of this one.
    pub async fn next(&self) -> Due {
        loop {
            let turn = self.lock().take(Instant::now(), self.period);
            match turn {
                Ok(due) => return due,
                // Then, or when there is another one: both are looked at.
                Err(Some(at)) => drop(timeout_at(at, self.more.notified()).await),
                Err(None) => self.more.notified().await,
            }
        }
    }

    /// Says what came of a review. Whether that is news: the last one said otherwise, or there was
    /// none, which counts as good.
    pub fn report(&self, due: &Due, verdict: Verdict) -> bool {
        let now = Instant::now();
        let mut state = self.lock();
        match verdict {
            Verdict::Unknown => false,
            Verdict::Good => state.change(due.id, |entry| entry.found_good(now + self.period)),
            Verdict::Revoked => state.change(due.id, ReviewEntry::found_revoked),
        }
    }

    /// A stream has ended.
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
        // That it was asked about is remembered: it may be back at once.
        if entry.asked.is_none() {
            let due = entry.due;
            state.queue.remove(&(due, id));
            state.entries.remove(&id);
        }
    }

    /// Nothing in here panics half way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the one whose turn it is; else, when the first one's will be.
    fn take(&mut self, now: Instant, period: Duration) -> Result<Due, Option<Instant>> {
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

    /// Changes an entry, and with it perhaps when its turn is.
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

    /// The token. It must not get into a log.
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
