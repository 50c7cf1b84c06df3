// SPDX-License-Identifier: Apache-2.0

//! State shared by the two halves of a stream.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::time::sleep;
use tonic::Status;

/// Hashes of an agent's buckets.
pub(crate) type BucketHashes = Vec<[u8; 8]>;

/// Link between the inbound half, which is a task, and the outbound half, which the connection
/// polls.
#[derive(Debug, Default)]
pub(crate) struct SessionControl {
    /// The end of the stream: an error, or `Ok` if the agent has left or had its Goaway.
    end: OnceLock<Result<(), Status>>,
    /// Set by each request for a message to the agent; cleared when the outbound half looks.
    requested: AtomicBool,
    goaway: AtomicBool,
    /// Number of buckets the agent was asked for and has not answered; 0 for none.
    asked: AtomicU32,
    answer: Mutex<Option<BucketHashes>>,
    /// The revision to confirm, plus one; 0 for none.
    confirm: AtomicU64,
    /// The sources' versions for a relay that asked.
    versions: Mutex<Option<Vec<u64>>>,
    /// Number of polls of the outbound half, doubled. Odd if the last one yielded something.
    polls: AtomicU64,
    outbound: Mutex<Option<Waker>>,
}

impl SessionControl {
    /// Ends the stream. Only the first call has an effect.
    pub(crate) fn end(&self, how: Result<(), Status>) {
        // An error means that the stream has already ended.
        let _ = self.end.set(how);
        self.wake();
    }

    pub(crate) fn ended(&self) -> Option<&Result<(), Status>> {
        self.end.get()
    }

    /// Makes the outbound half send Goaway.
    pub(crate) fn go_away(&self) {
        self.goaway.store(true, Ordering::Release);
        self.request();
    }

    /// Returns `true` if to send Goaway now; `true` once per request.
    pub(crate) fn take_goaway(&self) -> bool {
        self.goaway.swap(false, Ordering::AcqRel)
    }

    fn request(&self) {
        self.requested.store(true, Ordering::Release);
        self.wake();
    }

    /// True once after requests for a Goaway, a confirmation or versions. Thousands of streams ask at
    /// each poll, so without a request it costs one load.
    pub(crate) fn take_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire) && self.requested.swap(false, Ordering::AcqRel)
    }

    /// Makes the outbound half confirm a revision. A later revision replaces an earlier one.
    pub(crate) fn confirm(&self, revision: u64) {
        self.confirm.store(revision + 1, Ordering::Release);
        self.request();
    }

    /// Takes the revision to confirm; each request is returned once.
    pub(crate) fn take_confirm(&self) -> Option<u64> {
        self.confirm.swap(0, Ordering::AcqRel).checked_sub(1)
    }

    /// Makes the outbound half state the sources' versions.
    pub(crate) fn state_versions(&self, versions: Vec<u64>) {
        *self.versions.lock().unwrap_or_else(PoisonError::into_inner) = Some(versions);
        self.request();
    }

    /// Takes the versions to state; each statement is returned once.
    pub(crate) fn take_versions(&self) -> Option<Vec<u64>> {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        versions.take()
    }

    pub(crate) fn ask(&self, count: u32) {
        self.asked.store(count, Ordering::Release);
    }

    /// Takes the agent's hashes of its buckets.
    ///
    /// # Errors
    /// If the agent was not asked, or the length does not match the question.
    pub(crate) fn answer(&self, bytes: &[u8]) -> Result<(), Status> {
        let asked = self.asked.swap(0, Ordering::AcqRel);
        if asked == 0 {
            return Err(Status::invalid_argument("buckets: nobody asked for them"));
        }
        let (hashes, rest) = bytes.as_chunks();
        if hashes.len() != asked as usize || !rest.is_empty() {
            let message = format!("hashes: {} bytes for {asked} buckets", bytes.len());
            return Err(Status::invalid_argument(message));
        }
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(hashes.to_vec());
        self.wake();
        Ok(())
    }

    pub(crate) fn take_answer(&self) -> Option<BucketHashes> {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        answer.take()
    }

    /// Sets the waker for all events from now on; it may be woken any number of times.
    pub(crate) fn register(&self, waker: Waker) {
        *self.waker() = Some(waker);
    }

    fn wake(&self) {
        if let Some(waker) = self.waker().as_ref() {
            waker.wake_by_ref();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a poll of the outbound half, and whether it yielded something.
    pub(crate) fn polled(&self, gave: bool) {
        let next = (self.polls.load(Ordering::Relaxed) | 1) + 1 + u64::from(gave);
        self.polls.store(next, Ordering::Relaxed);
    }

    /// Completes when the connection has taken nothing for `patience`, or up to twice that, while
    /// something was there to take.
    pub(crate) async fn stalled(&self, patience: Duration) {
        let mut before = None;
        loop {
            sleep(patience).await;
            let (polls, waits) = self.progress();
            if waits && before == Some(polls) {
                return;
            }
            before = Some(polls);
        }
    }

    /// Progress of the outbound half, and whether the connection still has to take the last thing
    /// yielded before it polls again.
    pub(crate) fn progress(&self) -> (u64, bool) {
        let polls = self.polls.load(Ordering::Relaxed);
        (polls, polls % 2 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn only_what_was_asked_for_is_an_answer() {
        let control = SessionControl::default();
        let refused = |bytes: &[u8]| control.answer(bytes).unwrap_err().code();
        assert_eq!(refused(&[0; 16]), Code::InvalidArgument);
        for bad in [0, 15, 17, 24] {
            control.ask(2);
            assert_eq!(refused(&vec![0; bad]), Code::InvalidArgument, "{bad}");
        }
        control.ask(2);
        control.answer(&[7; 16]).unwrap();
        assert_eq!(control.take_answer(), Some(vec![[7; 8]; 2]));
        assert_eq!(control.take_answer(), None);
        assert_eq!(refused(&[0; 16]), Code::InvalidArgument);
    }

    #[test]
    fn each_request_is_noticed_once() {
        type Request = fn(&SessionControl);
        let all: [Request; 3] = [
            SessionControl::go_away,
            |control| control.confirm(0),
            |control| control.state_versions(vec![7]),
        ];
        for request in all {
            let control = SessionControl::default();
            assert!(!control.take_requested());
            request(&control);
            assert!(control.take_requested());
            assert!(!control.take_requested());
            let taken = (
                control.take_goaway(),
                control.take_confirm(),
                control.take_versions(),
            );
            assert_ne!(taken, (false, None, None));
            let again = (
                control.take_goaway(),
                control.take_confirm(),
                control.take_versions(),
            );
            assert_eq!(again, (false, None, None));
        }
    }

    #[test]
    fn polls_are_counted_and_tell_what_came_of_the_last() {
        let control = SessionControl::default();
        let mut last = control.progress().0;
        for gave in [true, true, false, false, true] {
            control.polled(gave);
            let (polls, waits) = control.progress();
            assert!(polls > last);
            assert_eq!(waits, gave);
            last = polls;
        }
    }
}
