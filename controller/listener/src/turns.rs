//! Turns to go on with a handshake, shared fairly between sources.
//!
//! A handshake costs a signature, and then its peer's time. So there are only so many at once, and
//! others wait. The next turn is for the source that has the fewest. While others wait, those that
//! have had theirs for long lose it, the ones of sources with more than their share first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan_runtime::Source;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// A source with no more than its share keeps its turns so many times as long as others.
const MODEST: u32 = 8;

/// How often it is looked for turns that have lasted long, while others wait.
const LOOK: Duration = Duration::from_millis(50);

/// One of so many turns is taken away at a time, at most.
const TAKEN: usize = 16;

/// How many turns there are.
#[derive(Debug, Clone)]
pub(crate) struct TurnLimits {
    /// Turns at the same time.
    pub(crate) turns: usize,
    /// How many can wait for one.
    pub(crate) waiting: usize,
    /// After how long a turn can be lost, if others wait.
    pub(crate) patience: Duration,
}

/// Turns. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: TurnLimits,
    state: Mutex<State>,
    /// Told when somebody has to wait.
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

/// A turn. Dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    number: u64,
    lost: CancellationToken,
}

impl Turn {
    /// Completes when the turn is lost to others that wait.
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

/// Turns that others have waited for. Each goes with the lock released: one that nobody takes any
/// more is dropped at once, and passes itself on.
type Ready = Vec<(oneshot::Sender<Turn>, Turn)>;

fn send(ready: Ready) {
    for (waiting, turn) in ready {
        // Nobody waits any more if this fails.
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

    /// Waits for a turn; `None` if too many wait, and this source has the most of them.
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

    /// Takes turns away for as long as others wait. Never completes.
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

    /// The one that has waited longest, of the source with the fewest turns.
    fn next_waiting(&mut self) -> Option<(Source, Waiting)> {
        let rank = |entry: &SourceTurns| Some((entry.held, entry.waiting.front()?.number));
        let ranks = (self.sources.iter()).filter_map(|(source, e)| Some((rank(e)?, *source)));
        let (_, source) = ranks.min()?;
        let waiting = self.sources.get_mut(&source)?.waiting.pop_front()?;
        self.waiting -= 1;
        Some((source, waiting))
    }

    /// Refuses the newest of the source of which the most wait; `None` if that is the newcomer.
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

    /// Takes turns away that have lasted long, the oldest first. No more than are waited for, and not
    /// many at once: each is a new handshake, and those that go on are not to wait for the processor.
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
