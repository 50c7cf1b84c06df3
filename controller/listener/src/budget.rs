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

/// Cost of a read besides its bytes, in bytes: a small read is a wake-up and a TLS record.
const READ_BYTES: u32 = 256;

/// Budget at which reading continues after it was exhausted, in bytes.
const LEAST_BYTES: u32 = 16 << 10;

/// Budget of a peer that keeps its rate, in bytes. A peer that always has something to read never
/// has so much: it goes on at [`LEAST_BYTES`].
const RESTED_BYTES: u32 = 2 * LEAST_BYTES;

/// The rate that an agent may always keep, in bytes per second (docs/identity.md).
const AGENT_RATE: u32 = 64 << 10;

/// The input that a kind of peer is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Sustained rate, in bytes per second.
    bytes_per_second: u32,
    /// Largest budget, in bytes.
    saved_bytes: u32,
    /// Time with an exhausted budget after which the peer is cut off; `None` for a peer that is only
    /// slowed down.
    patience: Option<Duration>,
}

impl Allowance {
    /// An agent needs some hundred bytes for each change. When it reconnects, it sends a tenth of a
    /// MiB.
    ///
    /// The budget grows by a quarter more than [`AGENT_RATE`]. A peer that has spent it and keeps that rate so has
    /// [`RESTED_BYTES`] again within the patience.
    pub(crate) const AGENT: Self = Self {
        bytes_per_second: AGENT_RATE + AGENT_RATE / 4,
        saved_bytes: 1 << 20,
        patience: Some(Duration::from_secs(5)),
    };

    /// An edge controller sends all objects of its cluster when it connects, and may lag behind their
    /// changes for long. A cluster of 10,000 Services of 10 endpoints has some 10 MiB.
    pub(crate) const EDGE: Self = Self {
        bytes_per_second: 1 << 20,
        saved_bytes: 64 << 20,
        patience: None,
    };
}

/// The budget of one peer. A peer that exhausts it is first slowed down, then cut off.
#[derive(Debug)]
pub(crate) struct Budget {
    allowance: Allowance,
    bytes: f64,
    at: Instant,
    wait: Option<Pin<Box<Sleep>>>,
    /// Time since which the peer exceeds its rate; `None` again once it has [`RESTED_BYTES`].
    exceeded: Option<Instant>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            allowance: Allowance::AGENT,
            bytes: f64::from(Allowance::AGENT.saved_bytes),
            at: Instant::now(),
            wait: None,
            exceeded: None,
        }
    }
}

impl Budget {
    /// Allows a peer more from now on.
    pub(crate) fn raise(&mut self, allowance: Allowance) {
        if self.allowance == allowance {
            return;
        }
        let saved = allowance
            .saved_bytes
            .saturating_sub(self.allowance.saved_bytes);
        self.bytes += f64::from(saved);
        self.allowance = allowance;
        // It was for the lower rate.
        self.wait = None;
    }

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
        let exceeded = self.exceeded.zip(self.allowance.patience);
        if exceeded.is_some_and(|(since, patience)| now - since >= patience) {
            let message = "the peer says more than it can for too long";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
        }
        if self.bytes > 0.0 {
            return Poll::Ready(Ok(()));
        }
        self.exceeded.get_or_insert(now);
        let missing = f64::from(LEAST_BYTES) - self.bytes;
        let wait = Duration::from_secs_f64(missing / f64::from(self.allowance.bytes_per_second));
        let wait = self.wait.insert(Box::pin(sleep(wait)));
        ready!(wait.as_mut().poll(context));
        Poll::Ready(Ok(()))
    }

    fn earn(&mut self, now: Instant) {
        let saved = f64::from(self.allowance.saved_bytes);
        let rate = f64::from(self.allowance.bytes_per_second);
        self.bytes = (self.bytes + (now - self.at).as_secs_f64() * rate).min(saved);
        self.at = now;
        if self.bytes >= f64::from(RESTED_BYTES) {
            self.exceeded = None;
        }
    }
}

#[cfg(test)]
mod tests;
