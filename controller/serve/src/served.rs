// SPDX-License-Identifier: Apache-2.0

//! The clusters that are served.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

/// The clusters that are served. Copies share one set, so that clusters may come and go while streams are
/// open. An agent of any other cluster is refused.
#[derive(Debug, Clone)]
pub struct ServedClusters(Arc<RwLock<BTreeSet<Arc<str>>>>);

impl Default for ServedClusters {
    /// The single cluster, of the empty name.
    fn default() -> Self {
        Self::new(["".into()])
    }
}

impl ServedClusters {
    /// A set of clusters.
    pub fn new(clusters: impl IntoIterator<Item = Arc<str>>) -> Self {
        let clusters = clusters.into_iter().collect();
        Self(Arc::new(RwLock::new(clusters)))
    }

    /// Serves a cluster from now on.
    pub fn insert(&self, cluster: Arc<str>) {
        let mut clusters = self.0.write().unwrap_or_else(PoisonError::into_inner);
        clusters.insert(cluster);
    }

    /// Refuses agents of a cluster from now on. Their open streams go on.
    pub fn remove(&self, cluster: &str) {
        let mut clusters = self.0.write().unwrap_or_else(PoisonError::into_inner);
        clusters.remove(cluster);
    }

    /// The shared name of a cluster; `None` if it is not served.
    #[must_use]
    pub fn get(&self, cluster: &str) -> Option<Arc<str>> {
        self.read(|clusters| clusters.get(cluster).cloned())
    }

    /// The cluster of a peer that names none: the only one there is.
    #[must_use]
    pub fn only(&self) -> Option<Arc<str>> {
        self.read(|clusters| clusters.first().filter(|_| clusters.len() == 1).cloned())
    }

    /// All clusters, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        self.read(|clusters| clusters.iter().cloned().collect())
    }

    fn read<T>(&self, look: impl FnOnce(&BTreeSet<Arc<str>>) -> T) -> T {
        look(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}
