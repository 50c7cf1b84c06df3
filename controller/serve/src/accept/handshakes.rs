//! Handshakes that are not finished, the oldest first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep_until};

/// At most so many at a time; the oldest that has said nothing makes room for others when it had its
/// time.
#[derive(Debug)]
pub(super) struct Handshakes {
    tasks: JoinSet<()>,
    by_age: VecDeque<(Arc<Life>, AbortHandle)>,
    capacity: usize,
    /// After how long the oldest may be ended if there is no room.
    patience: Duration,
    evicted: usize,
}

/// What is known of the peer of a handshake.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// When it was first looked at: a peer's time does not run before that, or thousands of agents
    /// that come back at once would be ended for what keeps us busy.
    began: OnceLock<Instant>,
    has_spoken: AtomicBool,
}

impl Life {
    /// The peer has said something: it has [longer](SPOKEN), since it may be as busy as we are.
    pub(super) fn has_spoken(&self) {
        self.has_spoken.store(true, Ordering::Relaxed);
    }

    fn is_silent(&self) -> bool {
        !self.has_spoken.load(Ordering::Relaxed)
    }
}

/// So many times as long as the silent have those that have said something.
const SPOKEN: u32 = 8;

impl Handshakes {
    pub(super) fn new(capacity: usize, patience: Duration) -> Self {
        Self {
            tasks: JoinSet::new(),
            by_age: VecDeque::new(),
            capacity: capacity.max(1),
            patience,
            evicted: 0,
        }
    }

    pub(super) fn spawn<H>(&mut self, handshake: impl FnOnce(Arc<Life>) -> H + Send + 'static)
    where
        H: Future<Output = ()> + Send,
    {
        let life = Arc::new(Life::default());
        let of_task = Arc::clone(&life);
        let handle = self.tasks.spawn(async move {
            of_task.began.get_or_init(Instant::now);
            handshake(of_task).await;
        });
        self.by_age.push_back((life, handle));
    }

    /// How many were ended to make room since the last call.
    pub(super) fn evicted(&mut self) -> usize {
        std::mem::take(&mut self.evicted)
    }

    /// What comes out of `next`, which is asked only while there is room. Nothing is lost when
    /// this is dropped, if nothing is lost when `next` is.
    pub(super) async fn room_then<T>(&mut self, next: impl Future<Output = T>) -> T {
        self.room().await;
        let mut next = std::pin::pin!(next);
        loop {
            tokio::select! {
                found = &mut next => return found,
                Some(_) = self.tasks.join_next() => {}
            }
        }
    }

    async fn room(&mut self) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            self.by_age.retain(|(_, handle)| !handle.is_finished());
            if self.tasks.len() < self.capacity {
                return;
            }
            let silent = self.by_age.iter().position(|(life, _)| life.is_silent());
            let (oldest, patience) = match silent {
                Some(silent) => (silent, self.patience),
                None => (0, self.patience * SPOKEN),
            };
            let Some((life, handle)) = self.by_age.get(oldest) else {
                return;
            };
            let Some(began) = life.began.get() else {
                yield_now().await;
                continue;
            };
            tokio::select! {
                _ = self.tasks.join_next() => {}
                () = sleep_until(*began + patience) => {
                    // What it has said may be here, and only we are late: the first time sees it,
                    // and by the second it was looked at.
                    yield_now().await;
                    yield_now().await;
                    let speaks_now = silent.is_some() && !life.is_silent();
                    if handle.is_finished() || speaks_now {
                        continue;
                    }
                    handle.abort();
                    self.by_age.remove(oldest);
                    self.evicted += 1;
                    self.tasks.join_next().await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_silent_make_room_when_they_had_their_time() {
        let patience = Duration::from_millis(250);
        let mut handshakes = Handshakes::new(4, patience);
        let start = Instant::now();
        for number in 0..20 {
            handshakes.room_then(ready(())).await;
            // The fifth waits for the first, and then there is room for four more.
            let waited = start.elapsed();
            assert!(waited >= patience * (number / 4), "{number}: {waited:?}");
            assert!(waited < patience * (number / 4 + 1), "{number}: {waited:?}");
            handshakes.spawn(|_| pending());
        }
        assert_eq!((handshakes.evicted(), handshakes.evicted()), (16, 0));
    }

    #[tokio::test]
    async fn those_that_only_we_keep_waiting_are_not_ended() {
        let patience = Duration::from_millis(1);
        let mut handshakes = Handshakes::new(4, patience);
        for _ in 0..100 {
            handshakes.room_then(ready(())).await;
            handshakes.spawn(async |_| {
                let (answer, answered) = tokio::sync::oneshot::channel();
                // Longer than a peer may take.
                let work = Instant::now();
                while work.elapsed() < 2 * Duration::from_millis(1) {}
                tokio::spawn(async move { answer.send(()) });
                answered.await.unwrap();
            });
        }
        assert_eq!(handshakes.evicted(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_busy_are_waited_for() {
        let mut handshakes = Handshakes::new(4, Duration::from_millis(250));
        let done = Arc::new(Semaphore::new(0));
        for _ in 0..100 {
            handshakes.room_then(ready(())).await;
            let done = Arc::clone(&done);
            handshakes.spawn(async move |_| {
                tokio::time::sleep(Duration::from_millis(100)).await;
                done.add_permits(1);
            });
        }
        assert_eq!(handshakes.evicted(), 0);
        done.acquire_many(100).await.unwrap().forget();
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_spoken_has_longer_than_the_silent_and_not_for_ever() {
        let patience = Duration::from_millis(250);
        let mut handshakes = Handshakes::new(2, patience);
        let start = Instant::now();
        let spoken = || {
            |life: Arc<Life>| {
                life.has_spoken();
                pending()
            }
        };
        handshakes.room_then(ready(())).await;
        handshakes.spawn(spoken());
        for silent in 0..3 {
            handshakes.room_then(ready(())).await;
            assert!(start.elapsed() >= patience * silent && handshakes.by_age.len() < 2);
            handshakes.spawn(|_| pending());
        }
        // The first one is still there, though it is the oldest.
        assert!(!handshakes.by_age[0].0.is_silent());
        handshakes.room_then(ready(())).await;
        handshakes.spawn(spoken());
        handshakes.room_then(ready(())).await;
        assert!(start.elapsed() >= patience * SPOKEN);
        assert_eq!(handshakes.evicted(), 4);
    }
}
