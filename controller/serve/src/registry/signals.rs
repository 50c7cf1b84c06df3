// SPDX-License-Identifier: Apache-2.0

//! Signals between a stream and the registry.
//!
//! A storm of reconnects creates thousands of these a second, each with one waiter. They therefore
//! share one allocation and one notification.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Signals shared by a session and its entry. Atomics keep frequent signals off the registry's
/// lock.
#[derive(Debug, Default)]
pub(super) struct SessionSignals {
    replaced: AtomicBool,
    deleted: AtomicBool,
    confirmed: After,
    sent: After,
    news: Notify,
}

/// An optional revision, stored plus one; 0 for none.
#[derive(Debug, Default)]
struct After(AtomicU64);

impl After {
    fn set(&self, revision: u64) {
        self.0.store(revision + 1, Ordering::Release);
    }

    fn get(&self) -> Option<u64> {
        self.0.load(Ordering::Acquire).checked_sub(1)
    }

    fn take_revision(&self) -> Option<u64> {
        self.0.swap(0, Ordering::AcqRel).checked_sub(1)
    }
}

impl SessionSignals {
    /// Tells the stream that a newer one of the same node has begun.
    pub(super) fn replace(&self) {
        self.replaced.store(true, Ordering::Release);
        self.news.notify_one();
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Tells the stream that its node is not served.
    pub(super) fn delete(&self) {
        self.deleted.store(true, Ordering::Release);
        self.news.notify_one();
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    /// Confirms held deletions. A later confirmation replaces an earlier one.
    pub(super) fn confirm(&self, revision: u64) {
        self.confirmed.set(revision);
        self.news.notify_one();
    }

    /// Takes the confirmed revision; each confirmation is returned once.
    pub(super) fn take_confirmed(&self) -> Option<u64> {
        self.confirmed.take_revision()
    }

    /// Completes when a signal has been given since the last completion. Supports a single waiter.
    pub(super) fn news(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Records that a Commit was handed to the connection.
    pub(super) fn set_sent(&self, revision: u64) {
        self.sent.set(revision);
    }

    /// The last revision sent on the stream.
    pub(super) fn last_sent(&self) -> Option<u64> {
        self.sent.get()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_signal_before_the_wait_is_not_lost() {
        type Tell = fn(&SessionSignals);
        let all: [Tell; 3] = [SessionSignals::replace, SessionSignals::delete, |signals| {
            signals.confirm(0)
        }];
        for tell in all {
            let signals = SessionSignals::default();
            assert_eq!(signals.news().now_or_never(), None);
            tell(&signals);
            assert_eq!(signals.news().now_or_never(), Some(()));
            assert_eq!(signals.news().now_or_never(), None);
        }
    }

    #[test]
    fn the_first_revision_is_one() {
        let signals = SessionSignals::default();
        assert_eq!(
            (signals.last_sent(), signals.take_confirmed()),
            (None, None)
        );
        signals.set_sent(0);
        signals.confirm(0);
        assert_eq!(
            (signals.last_sent(), signals.take_confirmed()),
            (Some(0), Some(0))
        );
        assert_eq!(
            (signals.last_sent(), signals.take_confirmed()),
            (Some(0), None)
        );
    }
}
