//! Tasks that a program is nothing without.

use std::future::Future;

use anyhow::anyhow;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Runs what the program is nothing without, until it is told to end: if one ends before that,
/// even by a panic, the program fails instead of going on with what there was.
#[derive(Debug, Clone)]
pub struct Vital {
    /// Where all tasks are, to be waited for at the end.
    pub tasks: TaskTracker,
    /// Where the program learns why it fails. One message is enough.
    pub failure: mpsc::Sender<anyhow::Error>,
    /// Cancelled when they are to end.
    pub ending: CancellationToken,
}

impl Vital {
    /// Runs nothing yet; the first reason to fail comes out of the receiver.
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

    /// Runs a task; `what` is what it is called if it ends too early.
    pub fn spawn(&self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let (failure, ending) = (self.failure.clone(), self.ending.clone());
        // A task of its own, so that its panic ends only itself.
        let task = tokio::spawn(task);
        self.tasks.spawn(async move {
            let error = match task.await {
                Ok(()) => anyhow!("{what}: has ended"),
                Err(error) => anyhow::Error::new(error).context(what),
            };
            if !ending.is_cancelled() {
                // The first failure ends the program; what fails then is of no account.
                let _ = failure.try_send(error);
            }
        });
    }

    /// As [`Self::spawn`], for a task that would go on for ever: it is dropped when it is to end.
    pub fn spawn_endless(
        &self,
        what: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = self.ending.clone().run_until_cancelled_owned(task);
        self.spawn(what, async move { task.await.unwrap_or_default() });
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
    async fn what_is_told_to_end_may() {
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
