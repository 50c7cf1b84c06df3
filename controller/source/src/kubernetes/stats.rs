// SPDX-License-Identifier: Apache-2.0

//! Counters of a source; the binary exports them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use portolan_catalog::Kind;

use crate::{Contact, HeldDeletions};

/// Counters of one source, by kind, and its held deletions.
#[derive(Debug, Default)]
pub struct Stats {
    holds: Arc<HeldDeletions>,
    files: Arc<Contact>,
    services: KindStats,
    slices: KindStats,
    nodes: KindStats,
    pods: KindStats,
    namespaces: KindStats,
    exports: KindStats,
    imports: KindStats,
    properties: KindStats,
    balancers: KindStats,
    directors: KindStats,
    policies: KindStats,
}

impl Stats {
    /// Counters of a source that shares its held deletions with others.
    #[must_use]
    pub fn holding(holds: &Arc<HeldDeletions>) -> Self {
        Self {
            holds: Arc::clone(holds),
            ..Self::default()
        }
    }

    /// The source's held deletions.
    #[must_use]
    pub fn holds(&self) -> &Arc<HeldDeletions> {
        &self.holds
    }

    /// The last contact with the files or with etcd, for the sources `file` and `etcd`.
    #[must_use]
    pub fn files(&self) -> &Arc<Contact> {
        &self.files
    }

    /// The silence of the files, or of the watch that has been silent for longest; `None` before the
    /// first contact.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        let kinds = [
            &self.services,
            &self.slices,
            &self.nodes,
            &self.pods,
            &self.namespaces,
        ];
        let kinds = kinds.into_iter().filter_map(KindStats::silence);
        kinds.chain(self.files.silence()).max()
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
            Kind::ServiceExport => &self.exports,
            Kind::ServiceImport => &self.imports,
            Kind::ClusterProperty => &self.properties,
            Kind::LoadBalancer => &self.balancers,
            Kind::Director => &self.directors,
            Kind::Policy => &self.policies,
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
    contact: Contact,
}

impl KindStats {
    /// Complete listings: one at the start, one more each time the server forgot.
    #[must_use]
    pub fn listings(&self) -> u64 {
        self.listings.load(Ordering::Relaxed)
    }

    /// Listings that the server streamed; the others came in pages.
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

    /// The time since the server's last answer or event; `None` before the first one.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        self.contact.silence()
    }

    pub(super) fn count_contact(&self) {
        self.contact.note();
    }

    pub(crate) fn count_listing(&self) {
        self.listings.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_streamed_listing(&self) {
        self.streamed_listings.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_watch_error(&self) {
        self.watch_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }
}
