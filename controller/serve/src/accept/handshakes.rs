//! Handshakes that are not finished, the oldest first.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep_until};

/// At most so many at a time; the oldest makes room for others when it had its time.
#[derive(Debug)]
pub(super) struct Handshakes {
    tasks: JoinSet<()>,
    by_age: VecDeque<(Began, AbortHandle)>,
    capacity: usize,
    /// After how long the oldest may be ended if there is no room.
    patience: Duration,
    evicted: usize,
}

/// When a handshake was first looked at: a peer's time does not run before that, or thousands of
/// agents that come back at once would be ended for what keeps us busy.
type Began = Arc<OnceLock<Instant>>;

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

    pub(super) fn spawn(&mut self, handshake: impl Future<Output = ()> + Send + 'static) {
        let began = Began::default();
        let first_look = Arc::clone(&began);
        let handle = self.tasks.spawn(async move {
            first_look.get_or_init(Instant::now);
            handshake.await;
        });
        self.by_age.push_back((began, handle));
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
            let Some((began, handle)) = self.by_age.front() else {
                return;
            };
            let Some(began) = began.get() else {
                yield_now().await;
                continue;
            };
            tokio::select! {
                _ = self.tasks.join_next() => {}
                () = sleep_until(*began + self.patience) => {
                    // What it has said may be here, and only we are late: the first time sees it,
                    // and by the second it was looked at.
                    yield_now().await;
                    yield_now().await;
                    if handle.is_finished() {
                        continue;
                    }
                    handle.abort();
                    self.by_age.pop_front();
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
            handshakes.spawn(pending());
        }
        assert_eq!((handshakes.evicted(), handshakes.evicted()), (16, 0));
    }

    #[tokio::test]
    async fn those_that_only_we_keep_waiting_are_not_ended() {
        let patience = Duration::from_millis(1);
        let mut handshakes = Handshakes::new(4, patience);
        for _ in 0..100 {
            handshakes.room_then(ready(())).await;
            handshakes.spawn(async {
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
            handshakes.spawn(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                done.add_permits(1);
            });
        }
        assert_eq!(handshakes.evicted(), 0);
        done.acquire_many(100).await.unwrap().forget();
    }
}
