// SPDX-License-Identifier: Apache-2.0

//! The input budget of a peer.
//!
//! A frame of a few bytes costs as much work as one of thousands, and HTTP/2 answers some kinds of
//! frames without limit: pings and settings.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Sustained rate of a peer, in bytes per second. An agent needs some hundred for each change.
const BYTES_PER_SECOND: u32 = 64 << 10;

/// Largest budget, in bytes. An agent that reconnects sends a tenth of it.
const SAVED_BYTES: u32 = 1 << 20;

/// Cost of a read besides its bytes, in bytes: a small read is a wake-up and a TLS record.
const READ_BYTES: u32 = 256;

/// Budget at which reading continues after it was exhausted, in bytes.
const LEAST_BYTES: u32 = 16 << 10;

/// Time with an exhausted budget after which a peer is cut off.
const PATIENCE: Duration = Duration::from_secs(5);

/// The budget of one peer. A peer that exhausts it is first slowed down, then cut off.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: f64,
    at: Instant,
    wait: Option<Pin<Box<Sleep>>>,
    /// Time at which the budget was exhausted; `None` again once half of it is saved.
    exceeded: Option<Instant>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes: f64::from(SAVED_BYTES),
            at: Instant::now(),
            wait: None,
            exceeded: None,
        }
    }
}

impl Budget {
    /// Takes the cost of a read of `bytes` bytes.
    pub(crate) fn spend_read(&mut self, bytes: usize) {
        self.spend(
            u32::try_from(bytes)
                .unwrap_or(u32::MAX)
                .saturating_add(READ_BYTES),
        );
    }

    /// Takes `bytes` bytes.
    pub(crate) fn spend(&mut self, bytes: u32) {
        self.bytes -= f64::from(bytes);
    }

    /// Completes when the budget allows a read.
    ///
    /// # Errors
    /// If the budget was exhausted for too long.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(context));
            self.wait = None;
        }
        if self.bytes > 0.0 {
            return Poll::Ready(Ok(()));
        }
        let now = Instant::now();
        self.earn(now);
        if self.exceeded.is_some_and(|since| now - since >= PATIENCE) {
            let message = "the peer says more than it can for too long";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
        }
        if self.bytes > 0.0 {
            return Poll::Ready(Ok(()));
        }
        self.exceeded.get_or_insert(now);
        let missing = f64::from(LEAST_BYTES) - self.bytes;
        let wait = Duration::from_secs_f64(missing / f64::from(BYTES_PER_SECOND));
        let wait = self.wait.insert(Box::pin(sleep(wait)));
        ready!(wait.as_mut().poll(context));
        Poll::Ready(Ok(()))
    }

    fn earn(&mut self, now: Instant) {
        let earned = (now - self.at).as_secs_f64() * f64::from(BYTES_PER_SECOND);
        self.bytes = (self.bytes + earned).min(f64::from(SAVED_BYTES));
        self.at = now;
        if self.bytes >= f64::from(SAVED_BYTES / 2) {
            self.exceeded = None;
        }
    }
}

#[cfg(test)]
mod tests;
