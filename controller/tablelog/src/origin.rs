// SPDX-License-Identifier: Apache-2.0

//! The origin of a transition, sent to agents in its Commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The versions and times of the events that made a transition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The origin of each cluster's part. A cluster without news may be absent.
    pub clusters: BTreeMap<Arc<str>, ClusterOrigin>,
    /// The time at which the first event of the transition was seen.
    pub observed: Option<Instant>,
}

/// The versions and times of the events of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterOrigin {
    /// The versions of the source, each a number that only grows: for an API server the highest
    /// resourceVersions of Services, EndpointSlices and Nodes, in this order. Empty for sources
    /// without versions, such as files.
    pub source_versions: Vec<u64>,
    /// The `endpoints.kubernetes.io/last-change-trigger-time` of each changed EndpointSlice that
    /// has one, in milliseconds of Unix time. Empty while the source has not synced.
    pub trigger_times_ms: Vec<u64>,
}

impl Origin {
    /// The origin of a transition that concerns one cluster.
    #[must_use]
    pub fn of(cluster: &Arc<str>, origin: ClusterOrigin) -> Self {
        Self {
            clusters: BTreeMap::from([(Arc::clone(cluster), origin)]),
            observed: None,
        }
    }

    /// The origin of a transition of one cluster, from a source with these versions.
    #[must_use]
    pub fn versions(cluster: &Arc<str>, source_versions: Vec<u64>) -> Self {
        let origin = ClusterOrigin {
            source_versions,
            ..ClusterOrigin::default()
        };
        Self::of(cluster, origin)
    }
}
