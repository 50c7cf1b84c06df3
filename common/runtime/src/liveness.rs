//! Whether tasks that a program is nothing without get on with their work.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// How often a task shows that it is not stuck: a small part of any bound.
const PERIOD: Duration = Duration::from_secs(1);

/// The tasks that are watched. A program is alive while none of them is stuck.
#[derive(Debug, Clone, Default)]
pub struct Liveness(Arc<Mutex<BTreeMap<&'static str, Beat>>>);

#[derive(Debug)]
struct Beat {
    last: Instant,
    bound: Duration,
}

impl Liveness {
    /// Runs a task to its end. It is stuck while it has not returned to the runtime for longer than
    /// the bound, which is longer than a second: in a loop without end, or in a lock that nobody
    /// gives back. A task that waits is not stuck.
    pub async fn watch<T>(
        &self,
        what: &'static str,
        bound: Duration,
        task: impl Future<Output = T>,
    ) -> T {
        let mut task = Box::pin(task);
        loop {
            let last = Instant::now();
            self.beats().insert(what, Beat { last, bound });
            if let Ok(result) = timeout(PERIOD, &mut task).await {
                self.beats().remove(what);
                return result;
            }
        }
    }

    /// What is stuck, sorted.
    #[must_use]
    pub fn stuck(&self) -> Vec<&'static str> {
        let now = Instant::now();
        let beats = self.beats();
        let is_stuck = |beat: &Beat| now.saturating_duration_since(beat.last) > beat.bound;
        let stuck = beats.iter().filter(|(_, beat)| is_stuck(beat));
        stuck.map(|(what, _)| *what).collect()
    }

    fn beats(&self) -> MutexGuard<'_, BTreeMap<&'static str, Beat>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_task_that_does_not_return_is_stuck_until_it_does() {
        let liveness = Liveness::default();
        let (go_on, gate) = mpsc::channel::<()>();
        let task = tokio::spawn({
            let liveness = liveness.clone();
            async move {
                let bound = Duration::from_millis(20);
                let work = async move {
                    // Of the kind that no task should do.
                    let _ = gate.recv();
                    std::future::pending::<()>().await;
                };
                liveness.watch("writer", bound, work).await;
            }
        });
        let becomes = async |expected: &[&str]| {
            while liveness.stuck() != expected {
                sleep(Duration::from_millis(1)).await;
            }
        };
        becomes(&["writer"]).await;
        drop(go_on);
        becomes(&[]).await;
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_waits_or_has_ended_is_not_stuck() {
        let liveness = Liveness::default();
        let bound = PERIOD * 2;
        let work = async {
            sleep(bound * 10).await;
            assert_eq!(liveness.stuck(), [""; 0]);
            7
        };
        assert_eq!(liveness.watch("writer", bound, work).await, 7);
        sleep(bound * 10).await;
        assert_eq!(liveness.stuck(), [""; 0]);
    }
}
