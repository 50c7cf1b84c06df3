// SPDX-License-Identifier: Apache-2.0

//! The pace at which the messages of one cluster are taken, whatever number of streams they come over.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two transitions of a cluster, so that one that changes all the time costs the others
/// little. An edge has more changes in the next transition meanwhile.
pub(super) const TRANSITION: Duration = Duration::from_millis(50);

/// Sustained rate of a cluster, in bytes per second.
const BYTES_PER_SECOND: u32 = 1 << 20;

/// The time for which the rate is allowed at once: a first listing of 64 MiB does not wait.
const BURST: Duration = Duration::from_secs(64);

/// Cost of a message besides its objects, in bytes.
const MESSAGE_BYTES: usize = 256;

/// When the next message of a cluster is taken.
#[derive(Debug)]
pub(super) struct Pace {
    /// Not before this.
    next: Instant,
    /// When the messages so far are paid for at the sustained rate.
    paid: Instant,
}

impl Default for Pace {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            next: now,
            paid: now,
        }
    }
}

impl Pace {
    /// When the next message may be taken.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// A message with objects of so many bytes was taken.
    pub(super) fn took(&mut self, bytes: usize) {
        let now = Instant::now();
        let bytes = u32::try_from(bytes.saturating_add(MESSAGE_BYTES)).unwrap_or(u32::MAX);
        let cost = Duration::from_secs_f64(f64::from(bytes) / f64::from(BYTES_PER_SECOND));
        self.paid = self.paid.max(now) + cost;
        let owed = self.paid - now;
        self.next = self.next.max(now + owed.saturating_sub(BURST));
    }

    /// A transition was taken.
    pub(super) fn committed(&mut self) {
        self.next = self.next.max(Instant::now() + TRANSITION);
    }
}
