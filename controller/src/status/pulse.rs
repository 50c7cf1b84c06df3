// SPDX-License-Identifier: Apache-2.0

//! Tells followers that something has changed. One task looks for all of them, while there are any.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// Period of looks. A change is told within this time.
const PERIOD: Duration = Duration::from_millis(400);

/// The digest of what followers see.
#[derive(Debug, Clone, Default)]
pub(super) struct Pulse(Arc<Mutex<Beat>>);

#[derive(Debug, Default)]
struct Beat {
    digests: watch::Sender<u64>,
    is_running: bool,
}

impl Pulse {
    /// The digest now, and whenever it changes.
    pub(super) fn subscribe(
        &self,
        digest: impl Fn() -> u64 + Send + 'static,
    ) -> watch::Receiver<u64> {
        let mut beat = self.lock();
        if !beat.is_running {
            beat.is_running = true;
            beat.digests.send_replace(digest());
            tokio::spawn(self.clone().run(digest));
        }
        beat.digests.subscribe()
    }

    /// Looks until nobody follows.
    async fn run(self, digest: impl Fn() -> u64 + Send + 'static) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            {
                let mut beat = self.lock();
                // Under the lock, so that a follower who comes now starts another task.
                if beat.digests.receiver_count() == 0 {
                    beat.is_running = false;
                    return;
                }
            }
            let now = digest();
            self.lock().digests.send_if_modified(|before| {
                let is_news = *before != now;
                *before = now;
                is_news
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Beat> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::time::{advance, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn followers_hear_of_changes_and_nobody_looks_without_them() {
        let (state, looks) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
        let digest = || {
            let (state, looks) = (Arc::clone(&state), Arc::clone(&looks));
            move || {
                looks.fetch_add(1, Ordering::Relaxed);
                state.load(Ordering::Relaxed)
            }
        };
        let pulse = Pulse::default();
        let mut one = pulse.subscribe(digest());
        let mut two = pulse.subscribe(digest());
        assert_eq!((*one.borrow_and_update(), *two.borrow_and_update()), (1, 1));
        state.store(2, Ordering::Relaxed);
        for follower in [&mut one, &mut two] {
            let changed = timeout(PERIOD * 3, follower.changed());
            changed.await.unwrap().unwrap();
            assert_eq!(*follower.borrow_and_update(), 2);
        }
        // Only changes are told, and one task looks for both.
        assert!(timeout(PERIOD * 10, one.changed()).await.is_err());
        let before = looks.load(Ordering::Relaxed);
        assert!((10..=13).contains(&before), "{before}");
        drop((one, two));
        advance(PERIOD * 2).await;
        tokio::task::yield_now().await;
        let after = looks.load(Ordering::Relaxed);
        advance(PERIOD * 10).await;
        tokio::task::yield_now().await;
        assert_eq!(looks.load(Ordering::Relaxed), after);
        assert_eq!(*pulse.subscribe(digest()).borrow(), 2);
    }
}
