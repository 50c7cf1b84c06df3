//! What there is to count; the binary exports it.

use std::sync::atomic::{AtomicU64, Ordering};

use portolan_catalog::Kind;

/// Counters of one source, by kind.
#[derive(Debug, Default)]
pub struct Stats {
    services: KindStats,
    slices: KindStats,
    nodes: KindStats,
    pods: KindStats,
    namespaces: KindStats,
}

impl Stats {
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
#[derive(Debug, Default)]
pub struct KindStats {
    listings: AtomicU64,
    streamed_listings: AtomicU64,
    watch_errors: AtomicU64,
    malformed: AtomicU64,
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
