// SPDX-License-Identifier: Apache-2.0

//! Detection of tasks that are stuck.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// Period of heartbeats. Far below every bound.
const PERIOD: Duration = Duration::from_secs(1);

/// The watched tasks of a program, which is alive while none of them is stuck.
#[derive(Debug, Clone, Default)]
pub struct Liveness(Arc<Mutex<BTreeMap<&'static str, Beat>>>);

#[derive(Debug)]
struct Beat {
    last: Instant,
    bound: Duration,
}

impl Liveness {
    /// Runs a task to its end. It is stuck when it has not yielded to the runtime for longer than the
    /// bound, which must exceed a second: in an endless loop, or on a lock that is never released. A
    /// task that awaits is not stuck.
    pub async fn watch<T>(
        &self,
        name: &'static str,
        bound: Duration,
        task: impl Future<Output = T>,
    ) -> T {
        let mut task = Box::pin(task);
        loop {
            let last = Instant::now();
            self.beats().insert(name, Beat { last, bound });
            if let Ok(result) = timeout(PERIOD, &mut task).await {
                self.beats().remove(name);
                return result;
            }
        }
    }

    /// The names of stuck tasks, sorted.
    #[must_use]
    pub fn stuck(&self) -> Vec<&'static str> {
        let now = Instant::now();
        let beats = self.beats();
        let is_stuck = |beat: &Beat| now.saturating_duration_since(beat.last) > beat.bound;
        let stuck = beats.iter().filter(|(_, beat)| is_stuck(beat));
        stuck.map(|(name, _)| *name).collect()
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
    async fn a_blocked_task_is_stuck_until_it_yields() {
        let liveness = Liveness::default();
        let (go_on, gate) = mpsc::channel::<()>();
        let task = tokio::spawn({
            let liveness = liveness.clone();
            async move {
                let bound = Duration::from_millis(20);
                let work = async move {
                    // A blocking call, which tasks must not make.
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
    async fn an_awaiting_or_finished_task_is_not_stuck() {
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
