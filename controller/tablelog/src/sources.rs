// SPDX-License-Identifier: Apache-2.0

//! Proof that the versions of a source went back.
//!
//! A controller that restarts after the restore of its API server has lower versions than its
//! agents. Only the API server's own newest version tells this from a controller that is late.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::feed::Feed;
use crate::shared::Shared;

/// The newest versions that a cluster's source stated when it was asked.
#[derive(Debug, Default)]
pub(crate) struct StatedVersions {
    doubted: Notify,
    last: RwLock<Option<(Instant, Vec<u64>)>>,
}

impl StatedVersions {
    pub(crate) fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// The versions that the source stated when it was asked at `since` or later.
    pub(crate) fn since(&self, since: Instant) -> Option<Vec<u64>> {
        let last = self.last.read().unwrap_or_else(PoisonError::into_inner);
        let (asked, versions) = last.as_ref()?;
        (*asked >= since).then(|| versions.clone())
    }

    /// Returns `true` if the source was asked after `since`, and had not reached the higher ones of
    /// these versions: such a version is from before a restore. Versions that are not higher than
    /// `ours` need no proof.
    pub(crate) fn went_back(&self, ours: &[u64], theirs: &[u64], since: Instant) -> bool {
        let last = self.last.read().unwrap_or_else(PoisonError::into_inner);
        let Some((_, stated)) = last.as_ref().filter(|(asked, _)| *asked >= since) else {
            return false;
        };
        stated.len() == theirs.len()
            && ours
                .iter()
                .zip(theirs)
                .zip(stated)
                .all(|((ours, theirs), stated)| theirs <= ours || theirs > stated)
    }
}

/// The handles of the sources of all clusters.
#[derive(Debug, Clone)]
pub struct Doubts(pub(crate) Arc<Shared>);

impl Doubts {
    /// The handle that proves to agents that the versions of a cluster's source went back, for the
    /// source.
    #[must_use]
    pub fn of(&self, cluster: &Arc<str>) -> SourceDoubts {
        SourceDoubts {
            shared: Arc::clone(&self.0),
            feed: self.0.feed(cluster),
            is_open: AtomicBool::new(false),
        }
    }
}

/// The side of one cluster's source: it is told of doubts, and states its newest versions.
#[derive(Debug)]
pub struct SourceDoubts {
    shared: Arc<Shared>,
    feed: Arc<Feed>,
    /// Returns `true` if a doubt waits for an answer.
    is_open: AtomicBool,
}

impl Drop for SourceDoubts {
    fn drop(&mut self) {
        if self.is_open.load(Ordering::Relaxed) {
            // Agents doubt once: the next source answers.
            self.feed.stated().doubt();
        }
    }
}

impl SourceDoubts {
    /// Completes when an agent has a table of later versions than the published ones.
    pub async fn doubted(&self) {
        self.feed.stated().doubted.notified().await;
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// States the source's newest versions, in the order of [`ClusterOrigin::source_versions`]. They
    /// were read from the source itself, not from a cache, by requests that began at `asked`.
    ///
    /// [`ClusterOrigin::source_versions`]: crate::ClusterOrigin::source_versions
    pub fn stated(&self, asked: Instant, versions: Vec<u64>) {
        let last = self.feed.stated().last.write();
        *last.unwrap_or_else(PoisonError::into_inner) = Some((asked, versions));
        self.is_open.store(false, Ordering::Relaxed);
        self.shared.raise();
    }
}
