//! When what has arrived is published: as a controller paces what it computes.

use std::time::{Duration, Instant};

use portolan_tablelog::Debounce;

/// What it costs a core to send one stream a small batch over TLS and to take its answer (measured:
/// 12 to 21 microseconds).
const PER_STREAM: Duration = Duration::from_micros(20);

/// Batches what comes faster than our own agents can be sent it.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    debounce: Debounce,
    due: Option<Instant>,
}

impl Pace {
    /// Something has arrived. What takes something away cannot be told from what does not, and was
    /// batched already where it comes from: nothing waits for long.
    pub(crate) fn arrived(&mut self, now: Instant) {
        self.due = Some(self.debounce.changed(now, true));
    }

    /// When to publish, if there is anything.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Nothing is to be published after all.
    pub(crate) fn forget(&mut self) {
        self.due = None;
    }

    /// It was published, for so many streams on so many cores.
    pub(crate) fn published(&mut self, now: Instant, streams: usize, cores: u32) {
        let streams = u32::try_from(streams).unwrap_or(u32::MAX);
        let fan_out = PER_STREAM.saturating_mul(streams) / cores.max(1);
        self.debounce.flushed(now, fan_out);
        self.due = None;
    }
}
