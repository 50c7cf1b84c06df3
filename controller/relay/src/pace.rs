// SPDX-License-Identifier: Apache-2.0

//! The pace of publishing, which is that of a controller.

use std::time::{Duration, Instant};

use portolan_tablelog::Debounce;

/// The cost of sending one stream a small batch over TLS and of reading its answer (measured: 12 to 21
/// microseconds of one core).
const PER_STREAM: Duration = Duration::from_micros(20);

/// Batches changes that come faster than they can be sent to the relay's agents.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    debounce: Debounce,
    due: Option<Instant>,
}

impl Pace {
    /// Something has arrived. Deletions cannot be told from other changes, and are batched by the
    /// controller already: nothing waits for long.
    pub(crate) fn arrived(&mut self, now: Instant) {
        self.due = Some(self.debounce.changed(now, true));
    }

    /// When to publish, if there is anything.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Nothing is to be published any more.
    pub(crate) fn forget(&mut self) {
        self.due = None;
    }

    /// Everything was published, for so many streams on so many cores.
    pub(crate) fn published(&mut self, now: Instant, streams: usize, cores: u32) {
        let streams = u32::try_from(streams).unwrap_or(u32::MAX);
        let fan_out = PER_STREAM.saturating_mul(streams) / cores.max(1);
        self.debounce.flushed(now, fan_out);
        self.due = None;
    }
}
