// SPDX-License-Identifier: Apache-2.0

//! The shared part of all streams of names: the whole zone and later changes, encoded once.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message as _;
use prost::bytes::{BufMut, Bytes};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::encode::{self, ItemSum};
use super::pb::{Frame, Item};
use crate::input::Subject;
use crate::shared::{Dirty, SharedZone};

/// About how long a frame is, in bytes; an item is never cut.
const FRAME_BYTES: usize = 32 << 10;

/// The least size of kept changes, in bytes, for small zones.
const KEPT_BYTES: usize = 1 << 20;

/// The shortest time from one round of changes to the next.
const INTERVAL: Duration = Duration::from_millis(100);

/// The age of the whole encoding that a new stream may be sent, with the changes since. A stalled
/// stream keeps its encoding in memory: fewer versions take less.
const FRESH: Duration = Duration::from_secs(5);

/// The shortest time between two whole encodings. A stream with names waits for it, as it may be up
/// to date.
const ENCODING_INTERVAL: Duration = Duration::from_millis(500);

/// Frames for gRPC, shared.
type Frames = Arc<[Bytes]>;

/// The writer is one task, [`run`](Feed::run); streams only look.
#[derive(Debug)]
pub(super) struct Feed {
    zone: Arc<SharedZone>,
    state: Mutex<State>,
    /// A stream waits for everything as it is now.
    wanted: Notify,
    news: Notify,
    /// The least size of kept changes, in bytes.
    kept_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    /// The task ended, so there is no more news.
    has_ended: bool,
    /// Nothing is streamed before the zone is synced.
    has_begun: bool,
    whole: Option<Whole>,
    is_wanted: bool,
    /// The rounds of changes, in order.
    rounds: VecDeque<Round>,
    bytes: usize,
    /// The number of the first round that is kept.
    first: u64,
}

/// Everything there was.
#[derive(Debug)]
struct Whole {
    /// The round that comes after it.
    next: u64,
    made: Instant,
    digest: [u8; 16],
    frames: Frames,
    bytes: usize,
    /// The Commit alone, for a stream that is up to date.
    commit: Frames,
}

#[derive(Debug)]
struct Round {
    frames: Frames,
    bytes: usize,
}

/// Position of a stream in the feed.
#[derive(Debug)]
pub(super) enum Cursor {
    /// The stream begins with the names of this digest; without names if it is empty.
    Begin(Vec<u8>),
    /// It is being sent these, and then the round of this number.
    Sending(Frames, usize, u64),
    /// It waits for a round.
    At(u64),
}

impl Feed {
    pub(super) fn new(zone: Arc<SharedZone>) -> Self {
        Self {
            zone,
            state: Mutex::default(),
            wanted: Notify::new(),
            news: Notify::new(),
            kept_bytes: KEPT_BYTES,
        }
    }

    /// A feed that keeps fewer changes.
    #[cfg(test)]
    pub(super) fn forgetful(zone: Arc<SharedZone>, kept_bytes: usize) -> Self {
        Self {
            kept_bytes,
            ..Self::new(zone)
        }
    }

    #[cfg(test)]
    pub(super) fn zone(&self) -> &SharedZone {
        &self.zone
    }

    /// Completes with the next round or encoding after the call, or with the end of the feed.
    pub(super) fn news(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Returns `true` if nothing follows the zone any more.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// Follows the zone. The end of the task, or its drop, ends the feed.
    pub(super) fn run(self: Arc<Self>) -> impl Future<Output = ()> + Send + 'static {
        let ending = Ending(self);
        async move { ending.0.follow().await }
    }

    async fn follow(self: &Arc<Self>) {
        let mut subscription = self.zone.subscribe("agent");
        loop {
            tokio::select! {
                dirty = subscription.changed() => {
                    let is_synced = self.zone.read().is_synced();
                    match dirty {
                        _ if !is_synced => self.stop(),
                        Dirty::Some(subjects) if self.has_begun() => self.add_round(&subjects),
                        Dirty::Some(_) | Dirty::All => self.begin_anew(),
                    }
                }
                () = self.wanted.notified() => {}
            }
            if self.is_wanted() {
                tokio::time::sleep_until(self.next_encoding()).await;
                let this = Arc::clone(self);
                // Slow with many Services. A panic is reported by the task's owner.
                let made = tokio::task::spawn_blocking(move || this.make_whole()).await;
                if let Err(error) = made {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
            subscription.done();
            self.news.notify_waiters();
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// The next message of a stream; `None` if there is none before the next news.
    pub(super) fn next(&self, cursor: &mut Cursor) -> Option<Bytes> {
        loop {
            match cursor {
                Cursor::Sending(frames, sent, then) => {
                    if let Some(frame) = frames.get(*sent) {
                        *sent += 1;
                        return Some(frame.clone());
                    }
                    *cursor = Cursor::At(*then);
                }
                Cursor::At(round) => *cursor = self.lock().after(*round)?,
                Cursor::Begin(known) => match self.lock().begin(known) {
                    Some(next) => *cursor = next,
                    None => {
                        self.wanted.notify_one();
                        return None;
                    }
                },
            }
        }
    }

    fn has_begun(&self) -> bool {
        self.lock().has_begun
    }

    fn next_encoding(&self) -> Instant {
        let state = self.lock();
        let last = state.whole.as_ref().map(|whole| whole.made);
        last.map_or_else(Instant::now, |made| made + ENCODING_INTERVAL)
    }

    /// Not everything is known any more.
    fn stop(&self) {
        self.lock().has_begun = false;
    }

    fn is_wanted(&self) -> bool {
        let state = self.lock();
        state.has_begun && state.is_wanted
    }

    /// Begins anew for a replaced zone, whose changes are unknown.
    fn begin_anew(&self) {
        let mut state = self.lock();
        state.has_begun = true;
        state.first = state.next() + 1;
        state.rounds.clear();
        state.bytes = 0;
        state.whole = None;
    }

    fn add_round(&self, subjects: &BTreeSet<Subject>) {
        // Before the items: what changes meanwhile is in a later round, with a later serial.
        let commit = encode::commit(self.zone.read().serial());
        let items = encode::items(&*self.zone, subjects.iter().cloned());
        let (frames, bytes) = frames(items.chain([commit]));
        let mut state = self.lock();
        state.rounds.push_back(Round { frames, bytes });
        state.bytes += bytes;
        let most = state.whole.as_ref().map_or(0, |whole| whole.bytes);
        while state.bytes > most.max(self.kept_bytes)
            && let Some(round) = state.rounds.pop_front()
        {
            state.bytes -= round.bytes;
            state.first += 1;
        }
    }

    /// Encodes the whole zone. Changes that are in no round yet are repeated by theirs, which is
    /// harmless: an item replaces its subject.
    fn make_whole(&self) {
        let next = self.lock().next();
        let commit = encode::commit(self.zone.read().serial());
        let mut sum = ItemSum::default();
        let items = encode::all_items(&*self.zone).inspect(|item| sum.add(item));
        let (frames, bytes) = frames(items.chain([commit.clone()]));
        let mut state = self.lock();
        state.is_wanted = false;
        state.whole = Some(Whole {
            next,
            made: Instant::now(),
            digest: sum.digest(),
            frames,
            bytes,
            commit: self::frames([commit]).0,
        });
    }

    /// The state is consistent at each point where a panic may occur.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the feed when it is dropped.
struct Ending(Arc<Feed>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.news.notify_waiters();
    }
}

impl State {
    /// The number of the round that comes next.
    fn next(&self) -> u64 {
        self.first + self.rounds.len() as u64
    }

    /// The first message for a stream with these names; `None` before it is encoded.
    fn begin(&mut self, known: &[u8]) -> Option<Cursor> {
        let is_good = |whole: &&Whole| {
            self.has_begun
                && whole.next >= self.first
                && (known == whole.digest
                    || whole.next == self.next()
                    || (known.is_empty() && whole.made.elapsed() < FRESH))
        };
        let Some(whole) = self.whole.as_ref().filter(is_good) else {
            self.is_wanted = true;
            return None;
        };
        let frames = match known == whole.digest {
            true => &whole.commit,
            false => &whole.frames,
        };
        Some(Cursor::Sending(Arc::clone(frames), 0, whole.next))
    }

    /// The message after a round; `None` before it is encoded.
    fn after(&self, round: u64) -> Option<Cursor> {
        let Some(index) = round.checked_sub(self.first) else {
            // It is too far behind.
            return Some(Cursor::Begin(Vec::new()));
        };
        let found = self.rounds.get(usize::try_from(index).ok()?)?;
        Some(Cursor::Sending(Arc::clone(&found.frames), 0, round + 1))
    }
}

/// Items in frames as gRPC sends them, and how long these are in all.
fn frames(items: impl IntoIterator<Item = Item>) -> (Frames, usize) {
    let mut frames = Vec::new();
    let (mut frame, mut bytes) = (Frame::default(), 0);
    for item in items {
        bytes += item.encoded_len();
        frame.items.push(item);
        if bytes >= FRAME_BYTES {
            frames.push(framed(&std::mem::take(&mut frame)));
            bytes = 0;
        }
    }
    if !frame.items.is_empty() {
        frames.push(framed(&frame));
    }
    let bytes = frames.iter().map(Bytes::len).sum();
    (frames.into(), bytes)
}

/// A message that is not compressed, after its length.
fn framed(frame: &Frame) -> Bytes {
    let length = frame.encoded_len();
    let mut bytes = Vec::with_capacity(5 + length);
    bytes.put_u8(0);
    // A message beyond gRPC's length would not fit into memory.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.encode_raw(&mut bytes);
    bytes.into()
}
