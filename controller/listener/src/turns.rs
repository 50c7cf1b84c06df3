// SPDX-License-Identifier: Apache-2.0

//! Turns for handshakes, shared fairly between sources.
//!
//! A handshake costs a signature, and lasts as long as its peer takes. So the number of concurrent
//! handshakes is limited, and others wait. The next turn is for the source that has the fewest.
//! While others wait, turns that have lasted long are revoked. A source within its share keeps its
//! turns longer.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan_runtime::Source;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Factor by which a source within its share keeps its turns longer than others.
const MODEST: u32 = 8;

/// Interval of the search for overdue turns, while others wait.
const LOOK: Duration = Duration::from_millis(50);

/// Divisor of the number of turns that yields how many are revoked at a time, at most.
const TAKEN: usize = 16;

/// Limits of turns.
#[derive(Debug, Clone)]
pub(crate) struct TurnLimits {
    /// Concurrent turns.
    pub(crate) turns: usize,
    /// Limit of handshakes that wait for a turn.
    pub(crate) waiting: usize,
    /// Time after which a turn can be lost, if others wait.
    pub(crate) patience: Duration,
}

/// The turns and their queue. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: TurnLimits,
    state: Mutex<State>,
    /// Notified when a handshake has to wait.
    crowded: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By age: the lowest number is the oldest.
    held: BTreeMap<u64, Held>,
    sources: HashMap<Source, SourceTurns>,
    waiting: usize,
    next: u64,
}

#[derive(Debug)]
struct Held {
    source: Source,
    since: Instant,
    lost: CancellationToken,
}

#[derive(Debug, Default)]
struct SourceTurns {
    held: usize,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    ready: oneshot::Sender<Turn>,
}

/// A turn. Dropping it grants it to the next in the queue.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    number: u64,
    lost: CancellationToken,
}

impl Turn {
    /// Completes when the turn is revoked in favour of others that wait.
    pub(crate) async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let ready = {
            let mut state = self.turns.state();
            state.give_back(self.number);
            self.turns.grant(&mut state)
        };
        send(ready);
    }
}

/// Granted turns. They are sent with the lock released: a turn whose receiver is gone is dropped at
/// once, and its drop takes the lock to grant it to another.
type Ready = Vec<(oneshot::Sender<Turn>, Turn)>;

fn send(ready: Ready) {
    for (waiting, turn) in ready {
        // An error means that the receiver is gone.
        drop(waiting.send(turn));
    }
}

impl Turns {
    pub(crate) fn new(limits: TurnLimits) -> Self {
        Self(Arc::new(Shared {
            limits,
            state: Mutex::default(),
            crowded: Notify::new(),
        }))
    }

    /// Waits for a turn. Returns `None` if too many wait and this source has the most of them.
    pub(crate) async fn turn(&self, source: Source) -> Option<Turn> {
        let wait = {
            let mut state = self.state();
            if state.held.len() < self.0.limits.turns && state.waiting == 0 {
                return Some(self.hold(&mut state, source));
            }
            if state.waiting >= self.0.limits.waiting {
                state.refuse_one(source)?;
            }
            state.wait(source)
        };
        self.0.crowded.notify_one();
        wait.await.ok()
    }

    /// Revokes overdue turns while others wait. Never completes.
    pub(crate) async fn watch(&self) -> Infallible {
        loop {
            self.0.crowded.notified().await;
            while self.state().waiting > 0 {
                sleep(LOOK).await;
                self.look(Instant::now());
            }
        }
    }

    fn look(&self, now: Instant) {
        let ready = {
            let mut state = self.state();
            state.take_away(now, self.0.limits.patience, self.0.limits.turns);
            self.grant(&mut state)
        };
        send(ready);
    }

    fn grant(&self, state: &mut State) -> Ready {
        let mut ready = Vec::new();
        while state.held.len() < self.0.limits.turns {
            let Some((source, waiting)) = state.next_waiting() else {
                break;
            };
            ready.push((waiting.ready, self.hold(state, source)));
        }
        ready
    }

    fn hold(&self, state: &mut State, source: Source) -> Turn {
        let number = state.number();
        let lost = CancellationToken::new();
        let held = Held {
            source,
            since: Instant::now(),
            lost: lost.clone(),
        };
        state.held.insert(number, held);
        state.sources.entry(source).or_default().held += 1;
        let turns = self.clone();
        Turn {
            turns,
            number,
            lost,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn wait(&mut self, source: Source) -> oneshot::Receiver<Turn> {
        let (ready, wait) = oneshot::channel();
        let number = self.number();
        let entry = self.sources.entry(source).or_default();
        entry.waiting.push_back(Waiting { number, ready });
        self.waiting += 1;
        wait
    }

    /// Takes the handshake that has waited longest, of the source with the fewest turns.
    fn next_waiting(&mut self) -> Option<(Source, Waiting)> {
        let rank = |entry: &SourceTurns| Some((entry.held, entry.waiting.front()?.number));
        let ranks = (self.sources.iter()).filter_map(|(source, e)| Some((rank(e)?, *source)));
        let (_, source) = ranks.min()?;
        let waiting = self.sources.get_mut(&source)?.waiting.pop_front()?;
        self.waiting -= 1;
        Some((source, waiting))
    }

    /// Refuses the newest waiting handshake of the source with the most; `None` if that source is
    /// the newcomer's.
    fn refuse_one(&mut self, newcomer: Source) -> Option<()> {
        let own = self.sources.get(&newcomer);
        let own = own.map_or(0, |entry| entry.waiting.len());
        let most = self.sources.values_mut();
        let most = most.max_by_key(|entry| entry.waiting.len())?;
        if most.waiting.len() <= own + 1 {
            return None;
        }
        most.waiting.pop_back()?;
        self.waiting -= 1;
        Some(())
    }

    fn give_back(&mut self, number: u64) {
        let Some(Held { source, .. }) = self.held.remove(&number) else {
            return;
        };
        if let Some(entry) = self.sources.get_mut(&source) {
            entry.held -= 1;
            if entry.held == 0 && entry.waiting.is_empty() {
                self.sources.remove(&source);
            }
        }
    }

    /// Revokes overdue turns, the oldest first. No more than are waited for, and not many at once:
    /// each lets a new handshake begin, and those under way must not wait for the processor.
    fn take_away(&mut self, now: Instant, patience: Duration, turns: usize) {
        let long = |held: &&u64| now - self.held[*held].since >= patience;
        let overdue: Vec<u64> = self.held.keys().take_while(long).copied().collect();
        let mut wanted = self.waiting.min(turns.div_ceil(TAKEN));
        for number in overdue {
            if wanted == 0 {
                return;
            }
            let held = &self.held[&number];
            let share = (turns / self.sources.len().max(1)).max(1);
            let of_source = self.sources.get(&held.source).map_or(0, |entry| entry.held);
            if of_source > share || now - held.since >= patience * MODEST {
                held.lost.cancel();
                self.give_back(number);
                wanted -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
