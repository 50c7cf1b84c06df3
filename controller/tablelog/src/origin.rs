// SPDX-License-Identifier: Apache-2.0

//! The origin of a transition, sent to agents in its Commit.

use std::time::Instant;

/// The versions and times of the events that made a transition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The versions of the sources, each a number that only grows: for an API server the highest
    /// resourceVersions of Services, EndpointSlices and Nodes, in this order. Empty for sources
    /// without versions, such as files.
    pub source_versions: Vec<u64>,
    /// The `endpoints.kubernetes.io/last-change-trigger-time` of each changed EndpointSlice that
    /// has one, in milliseconds of Unix time. Empty while the source has not synced.
    pub trigger_times_ms: Vec<u64>,
    /// The time at which the first event of the transition was seen.
    pub observed: Option<Instant>,
}
