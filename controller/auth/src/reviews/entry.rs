// SPDX-License-Identifier: Apache-2.0

//! The review state of one token.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::certified::LEEWAY;

/// Longest time to an expiry, more than any stream lasts. Longer times are shortened to it.
const FAR: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The review state of one token.
pub(super) struct ReviewEntry {
    pub(super) node: Arc<str>,
    /// The token; kept while a stream uses it, or after it was presented for another review.
    pub(super) token: Option<Arc<str>>,
    pub(super) streams: usize,
    /// Time of its turn, and key in the queue.
    pub(super) due: Instant,
    /// Time of the last review.
    pub(super) asked: Option<Instant>,
    pub(super) is_revoked: bool,
    /// Cancelled when a review finds the token to be revoked.
    pub(super) revoked: CancellationToken,
    /// End of reviews: the API server does not accept it any more, and its streams end soon.
    expires: Instant,
}

/// The action of a turn.
pub(super) enum Turn {
    Ask(Arc<str>),
    Wait,
    Forget,
}

impl ReviewEntry {
    /// Creates the state of a token without a review, whose turn is now.
    pub(super) fn new(node: &str, now: Instant, expires: Duration) -> Self {
        Self {
            node: node.into(),
            token: None,
            streams: 0,
            due: now,
            asked: None,
            is_revoked: false,
            revoked: CancellationToken::new(),
            expires: now + expires.min(FAR),
        }
    }

    /// Begins a turn: returns its action, and sets the time of the next turn.
    pub(super) fn turn(&mut self, now: Instant, period: Duration) -> Turn {
        if let Some(token) = &self.token
            && now < self.expires
        {
            let token = Arc::clone(token);
            self.due = now + period;
            self.asked = Some(now);
            if self.is_revoked {
                // One review for each time that it is presented.
                self.token = None;
                self.due = self.end();
            }
            return Turn::Ask(token);
        }
        // A revoked token is remembered for as long as it would be valid.
        if now < self.end() && (self.is_revoked || self.streams > 0) {
            self.due = self.end();
            return Turn::Wait;
        }
        Turn::Forget
    }

    /// Schedules another review of a revoked token that was presented again, at least `pause` after
    /// the last review.
    pub(super) fn appeal(&mut self, now: Instant, pause: Duration) {
        let soonest = self.asked.map_or(now, |asked| asked + pause);
        self.due = soonest.max(now).min(self.end());
    }

    /// Marks the token as good. Returns whether it was revoked before.
    pub(super) fn found_good(&mut self, next: Instant) -> bool {
        if !self.is_revoked {
            return false;
        }
        self.is_revoked = false;
        // Its streams have ended. Its agent may come back now, and presents it again.
        self.token = None;
        self.revoked = CancellationToken::new();
        self.due = next;
        true
    }

    /// Marks the token as revoked. Returns whether it was good before.
    pub(super) fn found_revoked(&mut self) -> bool {
        if self.is_revoked {
            return false;
        }
        self.is_revoked = true;
        self.token = None;
        self.due = self.end();
        self.revoked.cancel();
        true
    }

    /// Time from which the token is refused as expired, clock skew included.
    fn end(&self) -> Instant {
        self.expires + LEEWAY
    }
}
