//! What is known of one token.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::token::LEEWAY;

/// Further away than any stream lasts: what a longer time counts as.
const FAR: Duration = Duration::from_secs(10 * 365 * 86_400);

/// What is known of one token.
pub(super) struct ReviewEntry {
    pub(super) node: Arc<str>,
    /// Kept while there is somebody who goes by it, or wants to.
    pub(super) token: Option<Arc<str>>,
    pub(super) streams: usize,
    /// When its turn is; where it stands in the queue.
    pub(super) due: Instant,
    /// When it was asked about last.
    pub(super) asked: Option<Instant>,
    pub(super) is_revoked: bool,
    /// Cancelled when it is found to be revoked.
    pub(super) revoked: CancellationToken,
    /// From then on it is not asked about: the API server does not take it, and its streams end soon.
    expires: Instant,
}

/// What is to be done at a turn.
pub(super) enum Turn {
    Ask(Arc<str>),
    Wait,
    Forget,
}

impl ReviewEntry {
    /// One whose turn is now: nothing was asked about it yet.
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

    /// What is to be done now that its turn has come; sets when the next one is.
    pub(super) fn turn(&mut self, now: Instant, period: Duration) -> Turn {
        if let Some(token) = &self.token
            && now < self.expires
        {
            let token = Arc::clone(token);
            self.due = now + period;
            self.asked = Some(now);
            if self.is_revoked {
                // Asked once for each time that it comes back.
                self.token = None;
                self.due = self.end();
            }
            return Turn::Ask(token);
        }
        // What was revoked is remembered for as long as it could be let in.
        if now < self.end() && (self.is_revoked || self.streams > 0) {
            self.due = self.end();
            return Turn::Wait;
        }
        Turn::Forget
    }

    /// Somebody comes back with one that was revoked: it is asked about again, not too often.
    pub(super) fn appeal(&mut self, now: Instant, pause: Duration) {
        let soonest = self.asked.map_or(now, |asked| asked + pause);
        self.due = soonest.max(now).min(self.end());
    }

    /// Whether it was revoked before.
    pub(super) fn found_good(&mut self, next: Instant) -> bool {
        if !self.is_revoked {
            return false;
        }
        self.is_revoked = false;
        // Who had it has left, and may come back now.
        self.token = None;
        self.revoked = CancellationToken::new();
        self.due = next;
        true
    }

    /// Whether it was good before.
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

    /// When nobody is let in with it any more, whatever the clocks say.
    fn end(&self) -> Instant {
        self.expires + Duration::from_secs(LEEWAY)
    }
}
