//! What there is to count; the binary exports it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use portolan_catalog::Kind;
use tokio::time::Instant;

use crate::Holds;

/// Counters of one source, by kind, and what it holds back.
#[derive(Debug, Default)]
pub struct Stats {
    holds: Arc<Holds>,
    services: KindStats,
    slices: KindStats,
    nodes: KindStats,
    pods: KindStats,
    namespaces: KindStats,
}

impl Stats {
    /// What the source holds back.
    #[must_use]
    pub fn holds(&self) -> &Arc<Holds> {
        &self.holds
    }

    /// How long the watch that has been silent for longest has been silent; `None` before the first
    /// answer.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        let kinds = [
            &self.services,
            &self.slices,
            &self.nodes,
            &self.pods,
            &self.namespaces,
        ];
        kinds.into_iter().filter_map(KindStats::silence).max()
    }

    /// The counters of one kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> &KindStats {
        match kind {
            Kind::Service => &self.services,
            Kind::EndpointSlice => &self.slices,
            Kind::Node => &self.nodes,
            Kind::Pod => &self.pods,
            Kind::Namespace => &self.namespaces,
        }
    }
}

/// Counters of one watch. They only grow.
#[derive(Debug)]
pub struct KindStats {
    listings: AtomicU64,
    streamed_listings: AtomicU64,
    watch_errors: AtomicU64,
    malformed: AtomicU64,
    /// In milliseconds since the start, and 1; 0 for never. The wall clock may jump.
    contact: AtomicU64,
    start: Instant,
}

impl Default for KindStats {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            listings: zero(),
            streamed_listings: zero(),
            watch_errors: zero(),
            malformed: zero(),
            contact: zero(),
            start: Instant::now(),
        }
    }
}

impl KindStats {
    /// Complete listings: one at the start, one more each time the server forgot.
    #[must_use]
    pub fn listings(&self) -> u64 {
        self.listings.load(Ordering::Relaxed)
    }

    /// Those of them that the server streamed; the others came in pages.
    #[must_use]
    pub fn streamed_listings(&self) -> u64 {
        self.streamed_listings.load(Ordering::Relaxed)
    }

    /// Failures to list or to watch.
    #[must_use]
    pub fn watch_errors(&self) -> u64 {
        self.watch_errors.load(Ordering::Relaxed)
    }

    /// Objects that were refused, each time they came.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// How long the server has neither answered nor sent anything; `None` if it never has.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        let contact = self.contact.load(Ordering::Relaxed).checked_sub(1)?;
        Some(
            self.elapsed()
                .saturating_sub(Duration::from_millis(contact)),
        )
    }

    pub(super) fn count_contact(&self) {
        let now = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.contact.store(now.saturating_add(1), Ordering::Relaxed);
    }

    fn elapsed(&self) -> Duration {
        Instant::now() - self.start
    }

    pub(super) fn count_listing(&self) {
        self.listings.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_streamed_listing(&self) {
        self.streamed_listings.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_watch_error(&self) {
        self.watch_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }
}
