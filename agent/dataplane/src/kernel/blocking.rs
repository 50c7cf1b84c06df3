// SPDX-License-Identifier: Apache-2.0

//! Blocking work on an async worker.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// Runs work that blocks, while other tasks of this worker move to another one.
///
/// The kernel executes a netlink batch within `send`: 10,000 Services are hundreds of milliseconds, in
/// which a worker answers no probe and reads no stream. A thread of its own with a queue would need
/// copies of all that requests borrow, and two wake-ups for each; handing the worker's tasks over costs
/// some microseconds, and nothing moves. A runtime with one thread has no other worker: there the work
/// blocks as before.
pub(super) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        _ => work(),
    }
}

/// Number of steps that take less time than another thread needs to wake up.
const FEW: usize = 4;

/// Runs work of so many steps: up to [`FEW`] on the worker itself, more of them like [`blocking`].
///
/// A change of one endpoint is one message, which the kernel executes within microseconds. A worker without others waits
/// longer only while another program holds the kernel's lock.
pub(super) fn blocking_steps<T>(steps: usize, work: impl FnOnce() -> T) -> T {
    match steps <= FEW {
        true => work(),
        false => blocking(work),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_of_the_worker_go_on() {
        let (say, heard) = mpsc::channel();
        let blocked = tokio::spawn(async move {
            tokio::spawn(async move { say.send(()) });
            blocking(|| heard.recv_timeout(Duration::from_secs(20)))
        });
        assert_eq!(blocked.await.unwrap(), Ok(()));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn few_steps_do_not_hand_the_tasks_of_the_worker_over() {
        for (steps, patience_ms, goes_on) in [(FEW, 50, false), (FEW + 1, 20_000, true)] {
            let (say, heard) = mpsc::channel();
            let patience = Duration::from_millis(patience_ms);
            let blocked = tokio::spawn(async move {
                tokio::spawn(async move { say.send(()) });
                blocking_steps(steps, || heard.recv_timeout(patience).is_ok())
            });
            assert_eq!(blocked.await.unwrap(), goes_on, "{steps}");
        }
    }

    #[tokio::test]
    async fn single_thread_runs_the_work_itself() {
        assert_eq!(blocking(|| 7), 7);
    }
}
