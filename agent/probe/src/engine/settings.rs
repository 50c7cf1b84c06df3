// SPDX-License-Identifier: Apache-2.0

//! Limits of the engine, and its clock.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Limits of probes that run at one time, and of starts in one second. 0 is taken as 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Probes at one time, programs apart.
    pub concurrency: usize,
    /// Probes that start in one second.
    pub per_second: u32,
    /// Programs at one time.
    pub program_concurrency: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            concurrency: 512,
            per_second: 2_000,
            program_concurrency: 32,
        }
    }
}

/// Time since boot: read once, and counted from there.
#[derive(Debug, Clone)]
pub struct Clock {
    boot: Arc<str>,
    base: Duration,
    start: Instant,
}

impl Clock {
    /// A clock that shows `now`, the time since the boot with this identifier; empty for an unknown one.
    #[must_use]
    pub fn new(boot: &str, now: Duration) -> Self {
        Self {
            boot: boot.into(),
            base: now,
            start: Instant::now(),
        }
    }

    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// The time since boot at an instant.
    pub(crate) fn at(&self, instant: Instant) -> Duration {
        self.base + instant.saturating_duration_since(self.start)
    }

    /// The instant of a time since boot; the start for an earlier one.
    pub(crate) fn instant(&self, time: Duration) -> Instant {
        self.start + time.saturating_sub(self.base)
    }
}
