//! Where a transition comes from, told to agents with it.

use std::time::Instant;

/// What is known of the events that made a transition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// How far the sources were, each a number that only grows: of an API server the highest
    /// resourceVersions of Services, EndpointSlices and Nodes, in this order. Empty if the sources
    /// have none: files.
    pub source_versions: Vec<u64>,
    /// The `endpoints.kubernetes.io/last-change-trigger-time` of each EndpointSlice that changed
    /// and has one, in milliseconds of Unix time; none while the source has not synced.
    pub trigger_times_ms: Vec<u64>,
    /// When the first event of the transition was seen.
    pub observed: Option<Instant>,
}
