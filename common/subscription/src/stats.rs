// SPDX-License-Identifier: Apache-2.0

//! Counts of a subscription, for metrics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::GuardStats;

/// Updated by the subscription, read by metrics.
#[derive(Debug, Default)]
pub struct StreamStats {
    /// Whether there is a stream now.
    pub connected: AtomicBool,
    /// Streams that were opened; all but the first are reconnects.
    pub streams: AtomicU64,
    /// Attempts without a stream.
    pub connect_failures: AtomicU64,
    /// Attempts and streams that ended because the controller is of another cluster.
    pub wrong_cluster: AtomicU64,
    /// Transitions that arrived whole.
    pub commits: AtomicU64,
    /// Those of them that were snapshots.
    pub snapshots: AtomicU64,
    /// Transitions that were dropped because they did not fit their hashes or could not be read:
    /// each is a fault of one of the two sides.
    pub hash_mismatches: AtomicU64,
    /// Frames of a kind that this version does not know.
    pub unknown_frames: AtomicU64,
    /// Held deletions.
    pub guard: GuardStats,
    /// Contact with controllers.
    contact: Mutex<Contact>,
}

/// Contact with controllers: frames of tables, and streams that have brought a whole one.
#[derive(Debug, Default)]
struct Contact {
    /// Whether the open stream has brought a Commit.
    is_current: bool,
    /// The last frame of a stream before its first Commit, or the end of a stream after it.
    last: Option<Instant>,
}

impl StreamStats {
    /// Time since the last contact with a controller; `None` before the first. A stream that has
    /// brought a Commit counts as contact while it is open: keepalives end it within 30 seconds of
    /// the last answer. Before its first Commit only its frames count, since a controller without
    /// tables may keep a stream open for ever.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        let contact = self.contact();
        match contact.is_current {
            true => Some(Duration::ZERO),
            false => contact.last.map(|at| at.elapsed()),
        }
    }

    fn contact(&self) -> MutexGuard<'_, Contact> {
        self.contact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Encodes the metrics of the stream, with a prefix before their names.
    ///
    /// # Errors
    /// If the encoder fails.
    pub fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        prefix: &str,
    ) -> Result<(), std::fmt::Error> {
        let connected = ConstGauge::new(i64::from(self.connected.load(Ordering::Relaxed)));
        let (name, help) = (format!("{prefix}connected"), "Whether a stream is open");
        connected.encode(encoder.encode_descriptor(
            &name,
            help,
            None,
            connected.metric_type(),
        )?)?;
        for (name, help, counter) in [
            ("streams", "Streams that were opened", &self.streams),
            (
                "connect_failures",
                "Attempts to open a stream that failed",
                &self.connect_failures,
            ),
            (
                "wrong_cluster",
                "Attempts and streams that ended because the controller is of another cluster",
                &self.wrong_cluster,
            ),
            (
                "commits",
                "Tables and changes received whole",
                &self.commits,
            ),
            ("snapshots", "Whole tables received", &self.snapshots),
            (
                "hash_mismatches",
                "Tables dropped because they did not fit their hashes",
                &self.hash_mismatches,
            ),
            (
                "unknown_frames",
                "Frames of a kind that this version does not know",
                &self.unknown_frames,
            ),
        ] {
            let metric = ConstCounter::new(counter.load(Ordering::Relaxed));
            let name = format!("{prefix}{name}");
            metric.encode(encoder.encode_descriptor(&name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }

    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Marks the subscription as connected while it lives, also if it is dropped in the middle.
pub(crate) struct Connected<'a>(&'a StreamStats);

impl<'a> Connected<'a> {
    pub(crate) fn new(stats: &'a StreamStats) -> Self {
        StreamStats::count(&stats.streams);
        stats.connected.store(true, Ordering::Relaxed);
        Self(stats)
    }

    /// Records a part of the stream's first table.
    pub(crate) fn part(&self) {
        self.0.contact().last = Some(Instant::now());
    }

    /// Records a Commit.
    pub(crate) fn commit(&self) {
        self.0.contact().is_current = true;
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        let mut contact = self.0.contact();
        if std::mem::take(&mut contact.is_current) {
            contact.last = Some(Instant::now());
        }
        drop(contact);
        self.0.connected.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_the_end_of_the_last_stream() {
        let stats = StreamStats::default();
        assert_eq!(stats.silence(), None);
        let connected = Connected::new(&stats);
        connected.commit();
        assert_eq!(stats.silence(), Some(Duration::ZERO));
        drop(connected);
        let first = stats.silence().unwrap();
        assert!(first < Duration::from_secs(60));
        assert!(stats.silence().unwrap() >= first);
    }

    #[test]
    fn an_open_stream_without_a_table_is_silent() {
        let stats = StreamStats::default();
        drop(Connected::new(&stats));
        assert_eq!(stats.silence(), None);
        let connected = Connected::new(&stats);
        connected.part();
        let last = stats.contact().last;
        assert!(last.is_some());
        assert_ne!(stats.silence(), Some(Duration::ZERO));
        drop(connected);
        drop(Connected::new(&stats));
        assert_eq!(stats.contact().last, last);
    }
}
