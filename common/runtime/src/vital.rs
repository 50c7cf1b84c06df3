// SPDX-License-Identifier: Apache-2.0

//! Tasks whose end is the end of the program.

use std::future::Future;

use anyhow::anyhow;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Spawns tasks that must run until the program ends. If one of them ends earlier, also by a panic, the
/// program fails instead of going on without it.
#[derive(Debug, Clone)]
pub struct Vital {
    /// All tasks, to be awaited at the end.
    pub tasks: TaskTracker,
    /// Reports the failure of the program. The first message counts.
    pub failure: mpsc::Sender<anyhow::Error>,
    /// Cancelled when the tasks should end.
    pub ending: CancellationToken,
}

impl Vital {
    /// Creates it without tasks. The receiver yields the first failure.
    #[must_use]
    pub fn new(ending: CancellationToken) -> (Self, mpsc::Receiver<anyhow::Error>) {
        let (failure, failures) = mpsc::channel(1);
        let this = Self {
            tasks: TaskTracker::new(),
            failure,
            ending,
        };
        (this, failures)
    }

    /// Spawns a task. Its name appears in the failure.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let (failure, ending) = (self.failure.clone(), self.ending.clone());
        // A separate task, so that its panic does not end this one.
        let task = tokio::spawn(task);
        self.tasks.spawn(async move {
            let error = match task.await {
                Ok(()) => anyhow!("{name}: has ended"),
                Err(error) => anyhow::Error::new(error).context(name),
            };
            if !ending.is_cancelled() {
                // The first failure ends the program; later ones are consequences.
                let _ = failure.try_send(error);
            }
        });
    }

    /// Spawns a task that never ends by itself. It is dropped at the end of the program.
    pub fn spawn_endless(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = self.ending.clone().run_until_cancelled_owned(task);
        self.spawn(name, async move { task.await.unwrap_or_default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_or_panics_fails_the_program() {
        let (vital, mut failures) = Vital::new(CancellationToken::new());
        vital.spawn("loop", async {});
        let error = failures.recv().await.unwrap();
        assert_eq!(error.to_string(), "loop: has ended");
        vital.spawn_endless("follower", async {});
        let error = failures.recv().await.unwrap();
        assert_eq!(error.to_string(), "follower: has ended");
        vital.spawn("stream", async { panic!("a fault") });
        let error = format!("{:#}", failures.recv().await.unwrap());
        assert!(
            error.starts_with("stream: ") && error.contains("a fault"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn tasks_may_end_after_cancellation() {
        let (vital, mut failures) = Vital::new(CancellationToken::new());
        vital.spawn("loop", vital.ending.clone().cancelled_owned());
        vital.spawn_endless("follower", std::future::pending());
        vital.ending.cancel();
        vital.tasks.close();
        vital.tasks.wait().await;
        drop(vital);
        assert!(failures.recv().await.is_none());
    }
}
